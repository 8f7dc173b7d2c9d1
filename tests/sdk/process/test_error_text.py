"""The text of an error is bounded and contains no secret, whatever user code raises."""

from __future__ import annotations

import asyncio
import linecache
import pathlib
import runpy
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from fleetbus.process.error_text import describe, render
from fleetbus.process.redact import without_secret_words
from fleetbus.run.awaited import call_with_awaits
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "hunter2"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def deep(frames: int) -> None:
    local = f"password={CANARY}"
    if frames:
        deep(frames - 1)
    raise ValueError(local)


def caught(frames: int = 0) -> ValueError:
    with pytest.raises(ValueError, match="password") as reported:
        deep(frames)
    return reported.value


def many(error: Exception) -> Exception:
    return ExceptionGroup("many", 1000 * [error])


def test_an_error_is_its_kind_and_its_text_without_secrets() -> None:
    assert describe(caught()) == "ValueError: password=***"
    assert describe(caught(), is_quiet=True) == "ValueError"
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("ab " * 100), letters=5) == "ValueError: ab a…"


def test_an_error_is_reported_in_letters_that_can_be_stored() -> None:
    assert describe(ValueError("odd \udcff")) == "ValueError: odd \\udcff"
    assert "\udcff" not in render(ValueError("odd \udcff"))


def test_an_error_that_cannot_say_what_it_is_is_reported_all_the_same() -> None:
    assert describe(Mute()) == "Mute: its message cannot be formatted"
    assert "Mute" in render(Mute())


async def test_a_trace_begins_with_user_code_if_there_is_any() -> None:
    async def fail() -> None:
        raise ValueError("boom")

    (error,) = await asyncio.gather(call_with_awaits(fail(), []), return_exceptions=True)
    assert isinstance(error, ValueError)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code is call_with_awaits.__code__
    places = [line for line in render(error).splitlines() if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in places] == ["fail"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_trace_without_user_code_is_whole(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def fail() -> object:
        missing = asyncio.open_unix_connection("/nowhere/at/all")
        (error,) = await asyncio.gather(call_with_awaits(missing, []), return_exceptions=True)
        return error

    with asyncio.Runner(loop_factory=new_loop) as runner:
        error = runner.run(fail())
    assert isinstance(error, OSError)
    assert " in call_with_awaits\n" in render(error)


def test_a_trace_names_file_line_and_source_and_neither_variables_nor_secrets() -> None:
    text = render(caught())
    assert f'File "{__file__}", line ' in text
    assert "    raise ValueError(local)" in text
    assert text.endswith("ValueError: password=***")
    assert CANARY not in text
    assert render(caught(), is_quiet=True).endswith("\nValueError")


def test_no_source_file_stays_in_memory(tmp_path: pathlib.Path) -> None:
    """linecache keeps all lines of each file that it was asked for, for ever."""
    module = tmp_path / "raises.py"
    module.write_text("# filler\n" * 10_000 + "raise ValueError('here')\n")
    with pytest.raises(ValueError, match="here") as caught:
        runpy.run_path(str(module))
    for _ in range(2):
        assert "raise ValueError('here')" in render(caught.value)
    assert str(module) not in linecache.cache


def test_causes_and_members_come_with_it_and_hold_no_secret() -> None:
    group = ExceptionGroup(f"token: {CANARY}", [caught(), KeyError("k")])
    try:
        try:
            raise group
        except ExceptionGroup as e:
            raise LookupError("all") from e
    except LookupError as e:
        text = render(e)
    lines = text.splitlines()
    assert lines.index("It caused the following:") < lines.index("LookupError: all")
    assert "ExceptionGroup: token: ***" in text
    assert "  | ValueError: password=***" in lines
    assert "  | KeyError: 'k'" in lines
    assert CANARY not in text


def test_a_deep_and_huge_error_is_reported_briefly_and_soon() -> None:
    huge: Exception = ValueError("eyJ-" * 1_000_000)
    huge.__cause__ = caught(frames=800)
    for _ in range(6):
        huge = many(huge)
        huge.__context__ = caught(frames=800)
    began = time.perf_counter()
    text = render(huge)
    assert time.perf_counter() - began < 1
    assert len(text.splitlines()) <= 201
    assert len(text) < 100_000
    assert "more" in text


@each_row(
    "text",
    ["a" * 10**6, "eyJ-" * 10**5, "ab-" * 10**4 + "A", "secret='" * 10**4, "-----BEGIN " * 10**4],
)
def test_no_text_takes_long_to_be_cleaned(text: str) -> None:
    began = time.perf_counter()
    without_secret_words(text, limit=1000)
    assert time.perf_counter() - began < 0.5


def test_names_and_paths_are_no_tokens() -> None:
    for text in (
        "/apis/apps/v1/namespaces/default/deployments/one-with-a-name",
        "/opt/app/lib/site-packages/my_company_controllers/copy_things.py:30",
        "deploymentcopy-7d9f8b6c5d-x2x4z-97fe2dd5-5ad3-4ec2-8b26-aaa689474bad",
    ):
        assert without_secret_words(text, limit=300) == text
    for hidden in ("ab12" * 12, "Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5", "k" * 40):
        assert without_secret_words(f"got {hidden}", limit=300) == "got ***"
