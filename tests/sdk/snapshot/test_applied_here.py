"""Projector and controllers of one process write each event once, and wait for nobody (P9, P10)."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as Lost

from fleetbus.snapshot import ApplyOutcome, StoreEmpty
from fleetbus.snapshot.applied_here import AppliedHere
from support.eventually import eventually, stays
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from fleetbus.snapshot import ApplyResult, CompletedEpoch
    from fleetbus_proto.events import Event

EU = Source(cluster="eu1")
SHORT = timedelta(milliseconds=50)


class Written:
    """A snapshot, what is written to it, and a way to stop and fail these writes."""

    def __init__(self, redis: Redis, **options: Any) -> None:
        self.snapshot = Snapshot(redis)
        self.calls: list[list[Event]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.failures: list[Exception] = []
        self.applied = AppliedHere(
            self,  # pyright: ignore[reportArgumentType]
            **options,
        )

    async def apply(self, events: Sequence[Event]) -> ApplyResult:
        self.calls.append(list(events))
        await self.is_open.wait()
        if self.failures:
            raise self.failures.pop()
        return await self.snapshot.writer.apply(events)


@pytest.fixture
async def written(redis: Redis) -> Written:
    return await set_up(redis)


async def set_up(redis: Redis, **options: Any) -> Written:
    written_snapshot = Written(redis, **options)
    await written_snapshot.snapshot.set_up("eu1")
    return written_snapshot


async def test_p9_whoever_comes_first_writes_it_and_both_learn_the_outcome(written: Written):
    first, second = EU.added("a", 7), EU.added("b", 8)
    assert (await written.applied.apply([first])).outcomes == [ApplyOutcome.APPLIED]
    assert await written.applied.ensure([first, second]) == [first, second]
    result = await written.applied.apply([first, second])
    assert result.outcomes == [ApplyOutcome.APPLIED, ApplyOutcome.APPLIED]
    assert written.calls == [[first], [second]]


async def test_p9_a_write_that_is_on_its_way_is_waited_for(written: Written):
    event = EU.added("a", 7)
    written.is_open.clear()
    first = asyncio.create_task(written.applied.apply([event]))
    await eventually(lambda: written.calls)
    second = asyncio.create_task(written.applied.ensure([event]))
    await stays((False, 1), lambda: (second.done(), len(written.calls)), SHORT)
    written.is_open.set()
    assert await second == [event]
    await first
    assert len(written.calls) == 1
    assert await written.snapshot.version("a") == "7"


async def test_p9_a_write_that_failed_is_tried_by_who_waited_for_it(written: Written):
    event = EU.added("a", 7)
    written.is_open.clear()
    written.failures.append(Lost("cut by the test"))
    first = asyncio.create_task(written.applied.apply([event]))
    await eventually(lambda: written.calls)
    second = asyncio.create_task(written.applied.ensure([event]))
    await asyncio.sleep(0)  # it waits now
    written.is_open.set()
    assert await second == [event]
    with pytest.raises(Lost):
        await first
    assert len(written.calls) == 2


async def test_p9_a_write_that_is_cancelled_is_done_by_who_waited_for_it(written: Written):
    event = EU.added("a", 7)
    written.is_open.clear()
    first = asyncio.create_task(written.applied.apply([event]))
    await eventually(lambda: written.calls)
    second = asyncio.create_task(written.applied.ensure([event]))
    await asyncio.sleep(0)  # it waits now
    first.cancel()
    await eventually(lambda: len(written.calls) == 2)
    written.is_open.set()
    assert await second == [event]


async def test_p5_the_same_state_in_another_list_is_counted(written: Written):
    live = EU.added("a", 7)
    listed = Source(cluster="eu1", rank=(9, 2)).listed("a", 7)
    again = Source(cluster="eu1", rank=(9, 3)).listed("a", 7)
    for event in (live, listed, again):
        await written.applied.apply([event])
    assert written.calls == [[live], [listed], [again]]


async def test_p6_an_epoch_that_a_controller_completes_is_reported(written: Written):
    completed: list[CompletedEpoch] = []
    written.applied.on_completed(completed.append)
    await written.snapshot.writer.end_epoch(EU.end(1))
    await written.applied.ensure([EU.listed("a", 7)])
    assert [epoch.resource_key for epoch in completed] == [PODS]


async def test_p10_only_what_the_snapshot_has_as_it_is_is_returned(written: Written):
    old, new = EU.added("a", 7), EU.modified("a", 8)
    assert await written.applied.ensure([old, new]) == [new]
    assert await written.applied.ensure([old]) == [], "written again, and stale"
    assert await written.applied.ensure([new]) == [new]
    assert written.calls == [[old, new], [old]]


async def test_p10_what_was_written_longer_ago_is_not_called_standing(redis: Redis):
    written = await set_up(redis, standing_for=timedelta())
    event = EU.added("a", 7)
    await written.applied.apply([event])
    assert await written.applied.ensure([event]) == []
    assert len(written.calls) == 1


async def test_p11_what_comes_again_later_is_written_again(redis: Redis):
    written = await set_up(redis, kept=timedelta())
    event = EU.added("a", 7)
    await written.applied.apply([event])
    result = await written.applied.apply([event])
    assert result.outcomes == [ApplyOutcome.SAME]
    assert len(written.calls) == 2


async def test_p13_an_emptied_store_is_given_everything_again(written: Written, redis: Redis):
    event = EU.added("a", 7)
    await written.applied.apply([event])
    await redis.flushdb()
    with pytest.raises(StoreEmpty):
        await written.applied.apply([EU.added("b", 8)])
    await written.snapshot.set_up("eu1")
    assert await written.applied.ensure([event]) == [event]
    assert await written.snapshot.version("a") == "7"


async def test_the_number_of_notes_is_limited(redis: Redis):
    written = await set_up(redis, max_notes=2)
    events = [EU.added(name, 7) for name in "abc"]
    await written.applied.apply(events)
    await written.applied.apply(events[1:])
    assert len(written.calls) == 1
    await written.applied.apply(events)
    assert written.calls == [events, events[:1]]


@pytest.mark.slow
async def test_notes_that_nobody_asks_for_any_more_take_no_memory(redis: Redis):
    """A process sees new objects all day: their names and UIDs would be megabytes."""
    written = await set_up(redis, kept=SHORT)
    for number in range(10):
        await written.applied.apply([EU.added(f"{number}-{n}", 7) for n in range(100)])
        await asyncio.sleep(2 * SHORT.total_seconds())  # until they are too old
    await written.applied.apply([EU.added("last", 7)])
    assert sum(type(obj).__name__ == "_Note" for obj in gc.get_objects()) == 1


async def test_events_are_expected_of_controllers_that_wrote_others_a_moment_ago(redis: Redis):
    written = await set_up(redis, kept=SHORT)
    pods, secrets = EU.added("b", 8), Source(cluster="eu1", resource="secrets").added("s", 8)
    assert not written.applied.is_ensured(pods), "a change that is alone waits for nobody"
    await written.applied.apply([EU.added("a", 6)])
    assert not written.applied.is_ensured(pods), "written by the projector"
    await written.applied.ensure([EU.added("a", 7)])
    assert written.applied.is_ensured(pods)
    assert not written.applied.is_ensured(secrets)
    assert not written.applied.is_ensured(EU.listed("b", 8)), "lists are the projector's"
    await eventually(lambda: not written.applied.is_ensured(pods))
