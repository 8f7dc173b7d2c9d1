"""The printer of all commands (rule S11): terminals obey what they are sent."""

from __future__ import annotations

import json
import logging
import sys
from io import StringIO

import pytest
import structlog
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.process import printer
from fleetbus.process.logs import set_up_logs
from fleetbus.process.printer import block, json_text, line, note, print_traceback, value
from fleetbus_cli.documents import render_json, render_yaml
from support.logs import reset_logs

OBEYED = "\x00\x07\x08\x1b\x7f\x85\x9b\r\u200b\u202e\u2066\u2028\ufeff\U000e0041"
TEXTS = st.text(st.sampled_from(OBEYED) | st.characters(exclude_categories=["Cs"])) | st.text(
    st.sampled_from(OBEYED + '\n\t a"#:-é😀')
)
EVIL = "\x1b]0;owned\x07\x1b[2K\r\x9b31mfake\u202etxt\n= nothing to do"


def written(print_it: object, *args: object, **kwargs: object) -> str:
    """The output of a call on stdout or stderr; hypothesis runs many in one test."""
    with pytest.MonkeyPatch.context() as patch:
        out = StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", out)
        assert callable(print_it)
        print_it(*args, **kwargs)
        return out.getvalue()


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@given(TEXTS)
def test_s11_a_line_is_one_line_of_what_is_printed_as_itself(text: str):
    output = written(line, text)
    assert output.endswith("\n")
    assert output[:-1].isprintable()
    assert len(output) == len(text) + 1


@given(TEXTS)
def test_s11_texts_of_several_lines_and_notes_keep_their_lines_only(text: str):
    assert is_harmless(written(block, text))
    output = written(note, f"fleetbus: {text}")
    assert is_harmless(output)
    assert all(other.startswith("  ") for other in output.split("\n")[1:-1])


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2), max_size=3))
def test_s11_json_and_yaml_escape_and_lose_nothing(tree: dict[str, object]):
    output = written(json_text, render_json(tree))
    assert is_harmless(output)
    assert json.loads(output) == tree
    rendered = render_yaml(tree)
    assert is_harmless(rendered)
    assert yaml.safe_load(rendered) == tree


def test_s11_a_pipe_gets_the_values_of_a_template_and_a_terminal_does_not(
    monkeypatch: pytest.MonkeyPatch,
):
    assert written(value, EVIL) == EVIL
    monkeypatch.setattr(printer, "is_terminal", lambda: True)
    assert is_harmless(written(value, EVIL))


def test_s11_colours_are_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(printer, "is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert written(line, "a\x1b[8m", style="red") == "\x1b[31ma?[8m\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(line, "a\x1b[8m", style="red") == "a?[8m\n"


def test_s11_a_traceback_shows_no_message_as_it_is(capsys: pytest.CaptureFixture[str]):
    try:
        fail()
    except ValueError as error:
        print_traceback(type(error), error, error.__traceback__)
    errors = capsys.readouterr().err
    assert is_harmless(errors)
    assert "ValueError: ?]0;owned" in errors


def fail() -> None:
    raise ValueError(EVIL)


def test_s11_log_lines_for_people_have_nothing_that_a_terminal_obeys(
    monkeypatch: pytest.MonkeyPatch,
):
    out = StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(logging, "basicConfig", dict[str, object])
    set_up_logs("text", "info")
    try:
        log = structlog.get_logger()
        log.info("event_read", name=EVIL, tree={EVIL: EVIL}, error=EVIL)
        try:
            fail()
        except ValueError:
            log.exception("failed", cluster=EVIL)
    finally:
        reset_logs()
    output = out.getvalue()
    assert "?[2K" in output
    assert is_harmless(output)
