"""Garbage that only the collector finds is freed, however seldom it works on its own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Generator

import pytest

from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.garbage import collect_garbage, pause_after
from support.eventually import eventually


class Cyclic:
    """Something that holds itself, as an error does that is kept where it was raised."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def little_to_collect() -> Generator[None]:
    """No collection by itself, and none that takes long."""
    gc.disable()
    gc.collect()
    gc.freeze()
    yield
    gc.enable()


async def test_what_holds_itself_is_freed_again_and_again():
    collecting = asyncio.create_task(collect_garbage(0.02), name="collect-garbage")
    try:
        for _ in range(2):
            left = weakref.ref(Cyclic())
            assert left() is not None, "it would be freed without a collector"
            await eventually(lambda left=left: left() is None)
    finally:
        await cancel_and_wait(collecting)


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 300.0), (0.05, 300.0), (1.0, 5_000.0)])
def test_where_it_takes_long_it_is_done_seldom(seconds: float, pause: float):
    assert pause_after(seconds) == pause
