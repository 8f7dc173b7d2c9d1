"""A controller enqueues nothing before the snapshot has it, whoever has applied it (rule P9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import StoreEmpty, applied
from fleetbus.snapshot.applied import AppliedEvents
from support.eventually import never
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from fleetbus_proto.events import Event

EU = Source(cluster="eu1")


WITHOUT = timedelta(milliseconds=200)


class Watched:
    """A snapshot, a controller's check, and what that has applied itself."""

    def __init__(self, redis: Redis) -> None:
        self.snapshot = Snapshot(redis)
        self.by_controller: list[Event] = []
        self.check = AppliedEvents(
            writer=self,  # pyright: ignore[reportArgumentType]
            reader=self.snapshot.reader,
            without=WITHOUT,
        )

    async def apply(self, events: Sequence[Event]) -> Any:
        self.by_controller += events
        return await self.snapshot.writer.apply(events)


@pytest.fixture
async def watched(redis: Redis) -> Watched:
    watched_snapshot = Watched(redis)
    await watched_snapshot.snapshot.set_up("eu1")
    return watched_snapshot


@pytest.mark.parametrize(
    ("projected", "event"),
    [
        ([EU.added("a", 7)], EU.added("a", 7)),
        ([EU.added("a", 7), EU.modified("a", 8)], EU.added("a", 7)),
        ([EU.added("a", 9), EU.modified("a", 10)], EU.modified("a", 10)),
        ([EU.added("a", 7), EU.deleted("a", 8)], EU.added("a", 7)),
        ([EU.deleted("a", 8)], EU.deleted("a", 8)),
        ([Source(incarnation=2).added("a", 3)], EU.added("a", 7)),
    ],
    ids=["the same", "a newer state", "more digits", "deleted", "a deletion", "rebuilt cluster"],
)
async def test_p9_what_the_projector_has_applied_is_not_applied_again(
    watched: Watched, projected: list[Event], event: Event
):
    await watched.snapshot.apply(*projected)
    await watched.check.ensure([event])
    assert watched.by_controller == []


@pytest.mark.parametrize(
    ("projected", "event"),
    [
        ([], EU.added("a", 7)),
        ([EU.added("a", 7)], EU.modified("a", 8)),
        ([EU.added("a", 9)], EU.modified("a", 10)),
        ([EU.added("a", 7)], EU.deleted("a", 8)),
        ([EU.added("a", 7)], Source(incarnation=2).added("a", 3)),
        ([EU.added("a", 7)], EU.added("b", 7)),
        ([EU.added("a", 7)], Source(resource="secrets").added("a", 7)),
        ([EU.added("a", 7)], Source(cluster="us1").added("a", 7)),
    ],
)
async def test_p9_what_the_projector_does_not_apply_in_time_the_controller_applies(
    watched: Watched, projected: list[Event], event: Event
):
    await watched.snapshot.set_up("us1")
    await watched.snapshot.apply(*projected)
    await watched.check.ensure([event])
    assert watched.by_controller == [event]
    versions = await watched.snapshot.reader.versions(
        event.cluster, event.resource_key, [("prod", event.name)]
    )
    assert versions["prod", event.name].resource_version == event.resource_version


async def test_p9_it_waits_for_a_projector_that_is_a_moment_later(watched: Watched):
    event = EU.added("a", 7)
    checking = asyncio.create_task(watched.check.ensure([event, EU.added("b", 8)]))
    await never(checking.done, timedelta(seconds=0.01))
    await watched.snapshot.apply(event, EU.added("b", 8))
    await checking
    assert watched.by_controller == []


async def test_p10_only_events_that_the_snapshot_has_as_they_are_are_returned(
    watched: Watched,
):
    await watched.snapshot.apply(EU.added("a", 7), EU.added("b", 7), EU.deleted("b", 8))
    old, as_it_is, new = EU.added("a", 6), EU.added("a", 7), EU.modified("a", 8)
    buried = EU.added("b", 7)
    assert await watched.check.ensure([old, as_it_is, buried]) == [as_it_is]
    assert await watched.check.ensure([old, new, buried]) == [new], "applied by the controller"
    assert await watched.check.ensure([old, new, buried]) == [new], "applied already"


async def test_only_what_is_missing_is_applied(watched: Watched):
    await watched.snapshot.apply(EU.added("a", 7))
    await watched.check.ensure([EU.added("a", 7), EU.added("b", 8)])
    assert watched.by_controller == [EU.added("b", 8)]


async def test_nobody_waits_for_a_projector_that_is_away_and_it_is_asked_again_later(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def pauses_of(version: int) -> int:
        before = len(pauses)
        with monkeypatch.context() as patch:
            patch.setattr("fleetbus.snapshot.applied.asyncio.sleep", note)
            await watched.check.ensure([EU.modified("a", version)])
        return len(pauses) - before

    patient = len(applied.PAUSES) - 1
    assert [await pauses_of(version) for version in (1, 2, 3)] == [patient] * 3
    assert await pauses_of(4) == 0, "it is known to be away"
    await sleep(0.25)
    assert await pauses_of(5) == patient, "it may be back"
    await sleep(0.25)
    await watched.snapshot.apply(EU.modified("a", 6))
    assert await pauses_of(6) == 0
    assert await pauses_of(7) == patient, "it is back, and late once"
    assert [event.resource_version for event in watched.by_controller] == list("123457")


async def test_p13_an_empty_store_is_noticed_as_before(redis: Redis):
    watched = Watched(redis)
    with pytest.raises(StoreEmpty):
        await watched.check.ensure([EU.added("a", 7)])


async def test_p2_an_event_without_an_order_is_refused_by_the_snapshot(watched: Watched):
    await watched.snapshot.apply(EU.added("a", 7))
    await watched.check.ensure([EU.modified("a", "x7")])
    assert len(watched.by_controller) == 1
    assert (await watched.snapshot.reader.versions("eu1", PODS, [("prod", "a")]))[
        "prod", "a"
    ].resource_version == "7"
