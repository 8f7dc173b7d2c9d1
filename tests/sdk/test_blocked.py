"""Whoever blocks the event loop is named, and nobody else is."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from eventually import eventually
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.worker.blocked import telling_of_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.blocked.PATIENCE", timedelta(milliseconds=80))


def hold_up(seconds: float) -> None:
    hidden = "S3CRET"
    time.sleep(seconds)
    assert hidden


def events(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(line["event"]) for line in lines]


async def test_a_block_is_told_once_with_its_place_and_once_when_it_is_over() -> None:
    before = counted()
    with capture_logs() as lines:
        async with telling_of_blocks():
            assert counted() == before
            await asyncio.create_task(_hold_up_soon(), name="my task")
            await eventually(lambda: "event_loop_goes_on" in events(lines))
    assert events(lines) == ["event_loop_blocked", "event_loop_goes_on"]
    assert lines[0]["task"] == "my task"
    assert "in hold_up\n    time.sleep(seconds)" in lines[0]["stack"]
    assert "S3CRET" not in lines[0]["stack"].replace('hidden = "S3CRET"', "")
    assert lines[1]["seconds"] >= 0.1
    assert counted() == before + 1


def counted() -> float:
    value = REGISTRY.get_sample_value("fleetbus_event_loop_blocks_total")
    assert value is not None, "a rate needs a start"
    return value


async def _hold_up_soon() -> None:
    await asyncio.sleep(0.03)
    hold_up(0.3)


async def test_a_loop_that_turns_is_told_nothing_of() -> None:
    with capture_logs() as lines:
        async with telling_of_blocks():
            for _ in range(30):
                await asyncio.sleep(0.005)
    assert events(lines) == []
