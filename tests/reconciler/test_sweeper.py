"""Deletions that a complete list proves are published, never after one strange list (P6, P7)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from fleetbus.snapshot.outcomes import CompletedEpoch
from fleetbus.snapshot.records import ResourceState
from fleetbus_reconciler.projector.sweeper import Sweeper, SweepFuse
from support.eventually import eventually, stays
from support.rigs.projector import LATER, ProjectorRig, heartbeat
from support.rows import each_row
from support.stores.snapshot import Source

FIRST = LATER
"""Epoch ids are times in milliseconds; these lie ahead, so no earlier request is still open."""
FUSE = SweepFuse(objects=20, percent=50, wait=timedelta(seconds=30))


def objects(count: int, version: int = 10) -> dict[str, int]:
    return {f"o{number:02}": version for number in range(count)}


def held() -> float | None:
    return REGISTRY.get_sample_value("fleetbus_held_sweeps")


async def listed(rig: ProjectorRig, rank: tuple[int, int], count: int, **more: int) -> None:
    source = Source(rank=(rank[0], FIRST + rank[1] % FIRST))
    await rig.publish_epoch(source, **objects(count), **more)


async def filled(rig: ProjectorRig, count: int) -> None:
    """A fleet of one cluster that has so many objects, all of them listed."""
    await rig.started("eu1")
    await rig.publish(heartbeat())
    await listed(rig, (100, 1), count)
    await rig.synced(epoch=f"100 {FIRST + 1}")


async def quiet(rig: ProjectorRig) -> None:
    """A time in which something wrong would have happened: a dozen turns of the projector."""
    await stays([], lambda: rig.deleted, timedelta(seconds=0.3))


@each_row(
    ("gone", "known", "trips", "delay"),
    [
        (0, 0, False, 0),
        (1, 1, True, 0),
        (20, 20, True, 0),
        (21, 21, True, 30),
        (19, 20, False, 0),
        (20, 30, False, 30),
        (21, 42, False, 30),
        (21, 41, True, 30),
        (51, 100, True, 30),
        (50, 100, False, 30),
    ],
)
def test_p7_the_fuse_trips_above_20_and_50_percent_or_at_nothing_left(
    gone: int, known: int, delay: int, *, trips: bool
) -> None:
    assert FUSE.trips(gone=gone, known=known) is trips
    assert FUSE.delay(known=known) == timedelta(seconds=delay)


async def test_p6_what_a_list_lacks_is_published_once_with_its_last_state_and_the_lists_version(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 10)
    await listed(rig, (200, 2), 8)
    await rig.synced(epoch=f"200 {FIRST + 2}")
    await eventually(lambda: len(rig.deleted) == 2)
    await stays(2, lambda: len(rig.deleted))
    event, other = sorted(rig.deleted, key=lambda event: event.name)  # hashes have no order
    assert (event.name, other.name) == ("o08", "o09")
    assert event.observed_at.endswith("Z")  # the form of every other event
    assert (event.uid, event.resource_version, event.namespace) == ("uid-o08", "200", "prod")
    assert event.final_state_unknown
    assert event.object is not None
    assert b'"o08"' in event.object
    assert (event.epoch.resource_version, event.epoch.id) == ("200", FIRST + 2)
    # The snapshot follows when the deletions come back over the bus.
    await eventually(lambda: _names(rig, 8))


async def _names(rig: ProjectorRig, count: int) -> bool:
    return await rig.snapshot.names() == sorted(objects(count))


async def test_p6_a_change_that_is_newer_than_the_list_is_not_swept(rig: ProjectorRig) -> None:
    await filled(rig, 4)
    await rig.publish(Source().added("new", 300))
    await listed(rig, (200, 2), 3)
    await rig.synced(epoch=f"200 {FIRST + 2}")
    await eventually(lambda: [event.name for event in rig.deleted] == ["o03"])


async def test_p6_a_sweep_that_a_crash_cut_off_is_finished_by_the_next_start(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 10)
    await rig.stop()
    # As after a crash between completion and sweep: counted, acknowledged, not swept.
    state = await rig.snapshot.run_epoch(Source(rank=(200, FIRST + 2)), **objects(8))
    assert state.complete
    rig.start()
    await eventually(lambda: len(rig.deleted) == 2)
    await rig.synced(epoch=f"200 {FIRST + 2}")


async def test_p6_a_sweep_whose_process_has_gone_is_finished_by_another_without_a_restart(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 10)
    state = await rig.snapshot.run_epoch(Source(rank=(200, FIRST + 2)), **objects(8))
    assert state.complete
    await eventually(lambda: len(rig.deleted) == 2)
    await rig.synced(epoch=f"200 {FIRST + 2}")


async def test_p7_too_many_deletions_are_held_shown_and_released_by_a_second_list_that_agrees(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    await eventually(lambda: _is(rig, ResourceState.DEGRADED))
    assert held() == 1
    record = await rig.record()
    assert record is not None
    assert "a list lacks 50 of 60 objects" in record.reason
    await rig.publish(heartbeat())  # it knows nothing of the hold
    await stays(ResourceState.DEGRADED, rig.state)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    assert rig.deleted == []
    await listed(rig, (201, request.min_epoch), 10)
    await rig.synced(epoch=f"201 {request.min_epoch}")
    await eventually(lambda: len(rig.deleted) == 50)
    assert held() == 0


async def _is(rig: ProjectorRig, state: ResourceState) -> bool:
    return await rig.state() is state


@pytest.mark.slow
async def test_p7_a_second_list_before_the_time_does_not_release_the_hold(
    rig: ProjectorRig,
) -> None:
    rig.settings["fuse_wait"] = timedelta(seconds=3)
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    await eventually(lambda: held() == 1)
    await listed(rig, (201, 3), 10)
    await quiet(rig)
    assert held() == 1
    request = await rig.resync_requested("second list", after=FIRST + 3)
    await listed(rig, (202, request.min_epoch), 10)
    await eventually(lambda: len(rig.deleted) == 50)


@pytest.mark.parametrize("count", [60, 5])
async def test_p7_a_server_that_returns_one_empty_list_deletes_nothing(
    rig: ProjectorRig, count: int
) -> None:
    await filled(rig, count)
    await listed(rig, (200, 2), 0)
    await eventually(lambda: held() == 1)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    await listed(rig, (201, request.min_epoch), count)
    await rig.synced(epoch=f"201 {request.min_epoch}")
    assert held() == 0
    await quiet(rig)
    # The hold is over, so nobody asks for lists any more.
    assert await rig.resync_request() == request
    assert await _names(rig, count)


async def test_p7_an_empty_list_of_few_objects_is_looked_at_again_at_once_and_then_believed(
    rig: ProjectorRig,
) -> None:
    rig.settings["fuse_wait"] = timedelta(minutes=10)
    await filled(rig, 5)
    await listed(rig, (200, 2), 0)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    assert rig.deleted == []
    await listed(rig, (201, request.min_epoch), 0)
    await eventually(lambda: len(rig.deleted) == 5)
    await rig.synced(epoch=f"201 {request.min_epoch}")


async def test_p7_a_second_list_after_an_etcd_restore_agrees_although_its_version_is_lower(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    await eventually(lambda: held() == 1)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    restored = Source(rank=(150, request.min_epoch), incarnation=2)
    await rig.publish_epoch(restored, **objects(10))
    await eventually(lambda: len(rig.deleted) == 50)


async def test_p7_a_hold_that_a_restart_forgot_is_made_again(rig: ProjectorRig) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    await eventually(lambda: _is(rig, ResourceState.DEGRADED))
    await rig.stop()
    rig.start()
    await quiet(rig)
    assert await rig.state() is ResourceState.DEGRADED
    request = await rig.resync_requested("second list", after=FIRST + 2)
    await listed(rig, (201, request.min_epoch), 10)
    await eventually(lambda: len(rig.deleted) == 50)


async def begun(rig: ProjectorRig, rank: tuple[int, int], count: int) -> None:
    """A list of which so many objects have come, and no end yet."""
    source = Source(rank=(rank[0], FIRST + rank[1]))
    await rig.publish(*(source.listed(name, 10) for name in objects(count)))


async def test_p7_an_empty_list_is_not_believed_because_half_of_the_next_one_has_come(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 60)
    await begun(rig, (201, 3), 45)
    await listed(rig, (200, 2), 0)
    await quiet(rig)
    await listed(rig, (201, 3), 60)
    await rig.synced(epoch=f"201 {FIRST + 3}")
    await quiet(rig)
    assert await _names(rig, 60)


@pytest.mark.slow
async def test_p7_a_restart_in_the_middle_of_the_second_list_does_not_release_the_hold(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 0)
    await eventually(lambda: held() == 1)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    await begun(rig, (201, request.min_epoch - FIRST), 45)
    await eventually(rig.is_through)
    await rig.stop()
    rig.start()
    await quiet(rig)
    await listed(rig, (201, request.min_epoch), 60)
    await rig.synced(epoch=f"201 {request.min_epoch}")
    assert held() == 0
    await quiet(rig)
    assert await _names(rig, 60)


async def test_p7_a_hold_outlives_its_process_when_most_of_what_it_was_for_has_changed(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 0)
    await eventually(lambda: held() == 1)
    await rig.stop()
    changed = [Source().modified(name, 300) for name in objects(45)]
    await rig.snapshot.apply(*changed)
    rig.start()
    await quiet(rig)
    assert await rig.state() is ResourceState.DEGRADED


async def test_p7_the_second_list_is_asked_for_once_so_that_a_slow_one_can_end(
    rig: ProjectorRig,
) -> None:
    rig.timing = replace(rig.timing, resync_repeated=timedelta(seconds=0.1))
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    request = await rig.resync_requested("second list", after=FIRST + 2)
    await stays(request, rig.resync_request, timedelta(seconds=0.3))


async def test_p7_a_hold_ends_with_its_cluster(rig: ProjectorRig) -> None:
    await filled(rig, 60)
    await listed(rig, (200, 2), 10)
    await eventually(lambda: held() == 1)
    rig.provider.tell("us1")
    await eventually(lambda: held() == 0)
    await quiet(rig)


async def test_b11_a_last_state_that_is_too_large_for_the_bus_is_left_out_not_the_deletion(
    rig: ProjectorRig,
) -> None:
    await filled(rig, 3)
    large = b'{"metadata":{"name":"large"},"x":"' + b"y" * (8 * 1024 * 1024 - 2000) + b'"}'
    await rig.snapshot.apply(Source().added("large", 150, body=large))
    await listed(rig, (200, 2), 3)
    await eventually(lambda: [event.name for event in rig.deleted] == ["large"])
    assert rig.deleted[0].object is None
    await rig.synced(epoch=f"200 {FIRST + 2}")


async def test_sweeps_of_different_resources_run_at_once_and_those_of_one_after_each_other(
    rig: ProjectorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: set[tuple[str, str]] = set()
    most, twice = 0, 0
    sweep = vars(Sweeper)["_sweep"]

    async def slow(self: Sweeper, completed: CompletedEpoch) -> None:
        nonlocal most, twice
        place = (completed.cluster, completed.resource_key)
        twice += place in running
        running.add(place)
        most = max(most, len(running))
        await asyncio.sleep(0.2)  # a slow sweep
        running.discard(place)
        await sweep(self, completed)

    monkeypatch.setattr(Sweeper, "_sweep", slow)
    await rig.started("eu1", "us1")
    await rig.publish(heartbeat("eu1"), heartbeat("us1"))
    for cluster in ("eu1", "us1"):
        for number in (1, 2):
            await rig.publish_epoch(Source(cluster=cluster, rank=(100, FIRST + number)), a=10)
    await rig.synced(epoch=f"100 {FIRST + 2}")
    assert (most, twice) == (2, 0)
