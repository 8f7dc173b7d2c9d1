"""The same is done for many clusters, some at once."""

from __future__ import annotations

import asyncio

import pytest

from fleetbus_reconciler.for_each import AT_ONCE, for_each


async def test_results_are_in_the_order_of_the_items_whichever_ends_first():
    async def late(item: int) -> int:
        await asyncio.sleep(0.001 * (5 - item % 5))  # an item that takes its time
        return item * 2

    assert await for_each(range(100), late) == [item * 2 for item in range(100)]
    assert await for_each([], late) == []


async def test_no_more_than_the_limit_run_at_once_and_one_that_hangs_delays_no_other():
    running = most = done = 0
    released = asyncio.Event()

    async def one(item: int) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await (released.wait() if item == 0 else asyncio.sleep(0))
        running -= 1
        done += 1
        if done == 3 * AT_ONCE - 1:  # all but the first
            released.set()

    async with asyncio.timeout(5):
        await for_each(range(3 * AT_ONCE), one)
    assert most == AT_ONCE


async def test_an_error_is_raised_when_nothing_runs_any_more_and_stops_few_others():
    done: list[int] = []

    async def one(item: int) -> None:
        await asyncio.sleep(0)
        if item == 3:
            raise ValueError(item)
        await asyncio.sleep(0.01)  # a slow item
        done.append(item)

    items = range(3 * AT_ONCE)
    with pytest.raises(ValueError, match="3"):
        await for_each(items, one)
    assert sorted(done) == [item for item in items if item != 3]
