"""Unwatched scopes leave the snapshot, and none of their objects is called deleted (P6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from fleetbus.snapshot.records import ResourceState
from fleetbus.watchers.spec import DENIED
from fleetbus_proto.events import Heartbeat, WatchSet
from fleetbus_reconciler.projector.unwatched_scopes import only_live
from support.eventually import eventually, stays
from support.rigs.projector import PODS, ProjectorRig, heartbeat, now
from support.rows import each_row
from support.stores.snapshot import Source

AFTER = timedelta(seconds=0.2)
LONG = 1.75 * AFTER.total_seconds()
NAMED = WatchSet()
Beat = Callable[[], Heartbeat]


@pytest.fixture(autouse=True)
def soon(rig: ProjectorRig) -> None:
    rig.settings["unwatched_after"] = AFTER


def beat(*scopes: str, replica: str = "r1", watch_set: WatchSet | None = NAMED) -> Beat:
    """Heartbeats of a replica that watches pods in these scopes, and what else is configured."""

    def made() -> Heartbeat:
        plain = heartbeat(at=now())
        statuses = [msgspec.structs.replace(plain.resources[0], scope=scope) for scope in scopes]
        return msgspec.structs.replace(
            plain, replica=replica, boot=replica, resources=statuses, watch_set=watch_set
        )

    return made


@asynccontextmanager
async def beating(rig: ProjectorRig, *beats: Beat) -> AsyncGenerator[None]:
    async def run() -> None:
        while True:
            await asyncio.gather(*(rig.publish(make_beat()) for make_beat in beats))
            await asyncio.sleep(0.05)  # the pace of the heartbeats

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def filled(rig: ProjectorRig, *scopes: str) -> None:
    """Each scope has an object of its own, and the tombstone of one."""
    await rig.started("eu1")
    for number, scope in enumerate(scopes, start=1):
        source = Source(scope=scope, rank=(100, number))
        await rig.publish_epoch(source, **{f"in-{scope}": 50})
        await rig.publish(
            source.added(f"was-{scope}", 101), source.deleted(f"was-{scope}", 102 + number)
        )
    await rig.publish(beat(*scopes)())
    await rig.synced()
    await eventually(lambda: _are_tombstones(rig, len(scopes)))
    rig.deleted.clear()


async def names(rig: ProjectorRig) -> Sequence[str]:
    return await rig.snapshot.names()


async def _are(rig: ProjectorRig, *expected: str) -> bool:
    return await names(rig) == sorted(expected)


async def _are_tombstones(rig: ProjectorRig, count: int) -> bool:
    return len([key async for key in rig.snapshot.reader.deleted_keys("eu1", PODS)]) == count


async def test_p6_a_narrowed_watch_leaves_what_is_outside_without_a_deletion(rig: ProjectorRig):
    await filled(rig, "a", "b")
    async with beating(rig, beat("a")):
        await eventually(lambda: _are(rig, "in-a"))
    await eventually(lambda: _are_tombstones(rig, 1))
    record = await rig.record()
    assert record is not None
    assert (record.state, list(record.scopes)) == (ResourceState.SYNCED, ["a"])
    assert {change for _, change, _ in (await rig.snapshot.feed())[-1:]} == {"unwatched"}
    assert not rig.deleted


async def test_p6_a_widened_watch_keeps_everything_until_its_list_is_there(rig: ProjectorRig):
    await filled(rig, "a")
    async with beating(rig, beat("")):
        await stays(["in-a"], lambda: names(rig), timedelta(seconds=LONG))
        request = await rig.resync_requested("no complete list")
        source = Source(rank=(200, request.min_epoch))
        await rig.publish_epoch(source, **{"in-a": 50, "in-b": 51})
        await eventually(lambda: _has_only_scope(rig, ""))
    assert await names(rig) == ["in-a", "in-b"]
    assert await rig.state() is ResourceState.SYNCED
    assert not rig.deleted


async def _has_only_scope(rig: ProjectorRig, scope: str) -> bool:
    record = await rig.record()
    return record is not None and list(record.scopes) == [scope]


async def test_p6_p14_a_resource_that_is_dropped_is_unknown_before_its_rows_go(rig: ProjectorRig):
    await filled(rig, "")
    async with beating(rig, beat()), asyncio.timeout(10):
        while await rig.snapshot.reader.count("eu1", PODS):  # noqa: ASYNC110 -- it counts at once
            await asyncio.sleep(0)
        assert await rig.record() is None  # at once: who finds nothing must not believe it
    assert (await rig.snapshot.reader.freshness(["eu1"], PODS))["eu1"].state == "unknown"
    await eventually(lambda: _has_no_scope(rig))
    assert not rig.deleted


async def _has_no_scope(rig: ProjectorRig) -> bool:
    return not await rig.snapshot.writer.removal.read_scopes("eu1")


async def test_p6_a_dropped_resource_that_is_watched_again_is_listed_again(rig: ProjectorRig):
    await filled(rig, "")
    async with beating(rig, beat()):
        await eventually(lambda: _are(rig))
    async with beating(rig, beat("")):
        request = await rig.resync_requested("no complete list")
        assert await rig.state() is ResourceState.LISTING
        await rig.publish_epoch(Source(rank=(300, request.min_epoch)), **{"in-": 50})
        await rig.synced()
    assert await names(rig) == ["in-"]


async def test_p6_nothing_is_dropped_as_long_as_a_live_replica_may_watch_it(rig: ProjectorRig):
    await filled(rig, "a", "b")
    watches_a, does_not_know = beat("a", replica="r2"), beat(replica="r2", watch_set=None)
    async with beating(rig, watches_a, beat("b", replica="r1")):
        await stays(["in-a", "in-b"], lambda: names(rig), timedelta(seconds=LONG))
    async with beating(rig, does_not_know, beat("b")):
        await stays(["in-a", "in-b"], lambda: names(rig), timedelta(seconds=LONG))
    async with beating(rig, beat("b")):  # the other one has gone; the newer one alone counts
        await eventually(lambda: _are(rig, "in-b"))
    assert not rig.deleted


async def test_p6_nothing_is_dropped_while_no_watcher_lives(rig: ProjectorRig):
    await filled(rig, "a")
    await rig.publish(beat()())
    await stays(["in-a"], lambda: names(rig), timedelta(seconds=LONG))


@each_row(
    ("skew", "alive"),
    [(0, ["often", "seldom"]), (-80, ["often", "seldom"]), (80, ["often", "seldom"]), (-200, [])],
)
def test_p6_who_lives_does_not_hang_on_whose_clock_is_right(skew: int, alive: list[str]):
    here = datetime(2026, 1, 1, tzinfo=UTC)
    there = here + timedelta(seconds=skew)
    reports = [
        (there - timedelta(seconds=s), n) for n, s in (("often", 1), ("seldom", 20), ("x", 99))
    ]
    assert only_live(reports, here, timedelta(seconds=90)) == alive


async def test_p6_a_longer_deny_list_drops_what_it_names(rig: ProjectorRig):
    await filled(rig, "")
    async with beating(rig, beat(watch_set=WatchSet(all=True, deny=[PODS]))):
        await eventually(lambda: _are(rig))
    assert not rig.deleted


@pytest.mark.parametrize("replicas", [1, 2])
async def test_p6_w17_what_was_never_listed_goes_when_nobody_reports_it(
    rig: ProjectorRig, replicas: int
):
    """A watcher of `*` has tried to list a removed type that discovery still had for a moment."""
    await rig.started("eu1")
    names = [f"r{number}" for number in range(replicas)]
    everything = WatchSet(all=True)

    def failing() -> Heartbeat:
        tried = beat("", replica=names[-1], watch_set=everything)()
        (status,) = tried.resources
        status = msgspec.structs.replace(status, state="failing", reason="Status404")
        return msgspec.structs.replace(tried, resources=[status])

    calm = [beat(replica=name, watch_set=everything) for name in names]
    async with beating(rig, *calm[:-1], failing):
        await eventually(lambda: _has_only_scope(rig, ""))
        await stays(True, lambda: _has_only_scope(rig, ""), timedelta(seconds=LONG))
    async with beating(rig, *calm):
        await eventually(lambda: _is_forgotten(rig))
    assert not rig.deleted


async def test_p6_what_was_listed_stays_although_a_watcher_of_all_reports_it_no_more(
    rig: ProjectorRig,
):
    await filled(rig, "")
    async with beating(rig, beat(watch_set=WatchSet(all=True))):
        await stays(True, lambda: _has_only_scope(rig, ""), timedelta(seconds=LONG))
    assert await names(rig) == ["in-"]


async def _is_forgotten(rig: ProjectorRig) -> bool:
    return await rig.record() is None


@each_row(
    ("watch_set", "scope", "may_hold"),
    [
        (NAMED, "", False),
        (WatchSet(all=True), "", True),  # also while its type is not served (W17)
        (WatchSet(all=True), "narrowed", False),
        (WatchSet(all=True, deny=["core/events"]), "", True),
        (WatchSet(all=True, deny=[PODS]), "", False),
        (WatchSet(served=["core/nodes"]), "a", True),  # an unknown name may mean it
        (WatchSet(served=[PODS]), "a", False),
    ],
)
def test_p6_what_a_watch_set_may_hold(watch_set: WatchSet, scope: str, may_hold: bool):
    assert watch_set.may_hold(PODS, scope) is may_hold


@pytest.mark.parametrize("scope", ["", "a"])
async def test_p6_s1_what_is_named_but_never_published_leaves_once(rig: ProjectorRig, scope: str):
    """Secrets that are still on the watch list when the option to read them is taken away."""
    await filled(rig, scope)

    def made() -> Heartbeat:
        template = beat("")()
        refused = msgspec.structs.replace(template.resources[0], state="failing", reason=DENIED)
        return msgspec.structs.replace(template, resources=[refused])

    with capture_logs() as logs:
        async with beating(rig, made):
            await eventually(lambda: _are(rig))
            await eventually(lambda: _has_only_scope(rig, ""))
            await asyncio.sleep(LONG)  # time for a second line in the log
    record = await rig.record()
    assert record is not None
    assert (record.state, record.reason) == (ResourceState.UNKNOWN, DENIED)
    assert [line["scope"] for line in logs if line["event"] == "scope_unwatched"] == [scope]
    assert not rig.deleted


async def test_p6_what_late_events_bring_back_goes_again(rig: ProjectorRig):
    await filled(rig, "a")
    async with beating(rig, beat()):
        await eventually(lambda: _are(rig))
        before = len(await rig.snapshot.feed())
        await rig.publish(Source(scope="a", rank=(100, 1)).modified("in-a", 120))
        # The feed keeps it: how long the row is there nobody can rely upon to see.
        await eventually(lambda: _was_fed(rig, before, "added", "unwatched"))
        await eventually(lambda: _are(rig))
    assert not rig.deleted


async def _was_fed(rig: ProjectorRig, before: int, *expected: str) -> bool:
    changes = tuple(change for _, change, _ in (await rig.snapshot.feed())[before:])
    return changes == expected


async def test_p7_a_hold_ends_with_its_scope(rig: ProjectorRig):
    await filled(rig, "a")
    await rig.publish_epoch(Source(scope="a", rank=(200, 7)))
    await rig.resync_requested("second list")
    async with beating(rig, beat()):
        await eventually(lambda: _are(rig))
    request = await rig.resync_request()
    # the projector looks each 25 ms here
    await stays(request, rig.resync_request)
    assert not rig.deleted
