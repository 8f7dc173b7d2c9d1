"""Whoever blocks the event loop is named, and nobody else is."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.process.error_text import render_stack
from fleetbus.worker.loop_guard import report_blocked_loop
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.loop_guard.PATIENCE", timedelta(milliseconds=80))


def hold_up(seconds: float) -> None:
    hidden = "S3CRET"
    time.sleep(seconds)  # it blocks the loop
    assert hidden


def events(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(line["event"]) for line in lines]


async def test_a_block_is_reported_once_with_its_place_and_once_when_it_is_over() -> None:
    before = counted()
    with capture_logs() as lines:
        async with report_blocked_loop():
            assert counted() == before
            await asyncio.create_task(_hold_up_soon(), name="my task")
            await eventually(lambda: "event_loop_recovered" in events(lines))
    assert events(lines) == ["event_loop_blocked", "event_loop_recovered"]
    assert lines[0]["task"] == "my task"
    assert "in hold_up\n    time.sleep(seconds)" in lines[0]["stack"]
    assert lines[0]["stack"].startswith(f'  File "{__file__}", line ')
    assert "in _hold_up_soon\n    hold_up(" in lines[0]["stack"].split("  File ")[1]
    assert "S3CRET" not in lines[0]["stack"].replace('hidden = "S3CRET"', "")
    assert lines[1]["seconds"] >= 0.1
    assert counted() == before + 1


def test_a_stack_begins_with_the_first_call_that_is_the_users() -> None:
    def where() -> str:
        return render_stack(here())

    async def act() -> str:
        return json.loads("[1]", parse_int=lambda _: where())[0]

    async def main() -> str:
        return await asyncio.create_task(act())

    stack = asyncio.run(main())
    calls = [line.rpartition(" in ")[2] for line in stack.splitlines() if "  File " in line]
    assert calls[0] == "act"
    assert calls[-2:] == ["<lambda>", "where"]
    assert "loads" in calls  # what the user's code calls is shown, whosever it is


def test_a_stack_of_a_deep_recursion_keeps_the_innermost_calls() -> None:
    def deeper(left: int) -> str:
        return deeper(left - 1) if left else render_stack(here())

    assert deeper(100).count("  File ") == 16


def here() -> FrameType:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back


def counted() -> float:
    value = REGISTRY.get_sample_value("fleetbus_event_loop_blocks_total")
    assert value is not None, "a rate needs a start"
    return value


async def _hold_up_soon() -> None:
    await asyncio.sleep(0.03)  # the loop is watched by then
    hold_up(0.3)


async def test_a_loop_that_turns_is_reported_nothing_of() -> None:
    with capture_logs() as lines:
        async with report_blocked_loop():
            for _ in range(30):
                await asyncio.sleep(0.005)  # a turn of the loop
    assert events(lines) == []
