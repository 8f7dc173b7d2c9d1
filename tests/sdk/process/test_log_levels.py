"""Levels of logs that change while a process runs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog

from fleetbus.errors import ConfigError
from fleetbus.process.log_levels import LEVELS, follow_levels, read_levels
from fleetbus.process.logs import set_up_logs
from support.eventually import eventually
from support.rows import each_row

log = structlog.get_logger()


class Written(io.StringIO):
    """The lines since the last look."""

    def lines(self) -> list[dict[str, Any]]:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return [json.loads(line) for line in text.splitlines()]

    def has(self, text: str) -> bool:
        return text in self.getvalue()


@pytest.fixture(autouse=True)
def written() -> Generator[Written]:
    """Logs as a service sets them up, in a stream; undone afterwards."""
    before, stream = structlog.get_config(), Written()
    set_up_logs("json", "info")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=stream))
    yield stream
    LEVELS.set("info")
    structlog.configure(**before)


def log_everything() -> None:
    for controller in ("", "copier", "other"):
        bound = log.bind(controller=controller) if controller else log
        for level in ("debug", "info", "warning", "error"):
            getattr(bound, level)(f"{level} {controller}")


def test_one_controller_is_looked_at_more_closely_than_the_rest(written: Written):
    LEVELS.set("warning", {"copier": "debug", "other": "error"})
    log_everything()
    assert [line["event"] for line in written.lines()] == [
        "warning ",
        "error ",
        "debug copier",
        "info copier",
        "warning copier",
        "error copier",
        "error other",
    ]
    assert LEVELS.shows_debug("copier")
    assert not LEVELS.shows_debug("other")


def test_a_quieter_controller_needs_no_debug_of_the_rest(written: Written):
    LEVELS.set("info", {"other": "error"})
    log_everything()
    shown = [line["event"] for line in written.lines()]
    assert "info copier" in shown
    assert "debug copier" not in shown
    assert [event for event in shown if event.endswith("other")] == ["error other"]


async def test_a_file_is_followed_and_one_that_is_unusable_changes_nothing(
    tmp_path: Path, written: Written
):
    file = tmp_path / "levels.yaml"
    file.write_text("default: info\n")
    following = asyncio.create_task(follow_levels(file, every=0.01))
    try:
        await eventually(lambda: written.has("log_levels_changed"))
        file.write_text("default: info\ncontrollers: {copier: debug}\n")
        await eventually(lambda: LEVELS.shows_debug("copier"))
        file.write_text("default: loud, and longer than before\n")
        await eventually(lambda: written.has("'loud, and longer than before' is not"))
        file.unlink()
        await eventually(lambda: written.has("No such file"))
        assert LEVELS.shows_debug("copier")
        file.write_text("default: error\n")
        await eventually(lambda: not LEVELS.shows_debug("copier"))
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


@each_row(
    ("text", "reason"),
    [
        ("", "needs `default: info`"),
        ("[1]", "needs `default: info`"),
        ("{default: info", "not YAML"),
        ("level: debug", "unknown field 'level'"),
        ("default: loud", "default: 'loud' is not one of debug, info"),
        ("controllers: [copier]", "a map of levels"),
        ("controllers: {copier: 7}", "controllers.copier: 7 is not one of"),
    ],
)
def test_what_names_no_levels_is_refused_by_field(text: str, reason: str):
    with pytest.raises(ConfigError) as refused:
        read_levels(text, "levels.yaml")
    assert reason in str(refused.value)
