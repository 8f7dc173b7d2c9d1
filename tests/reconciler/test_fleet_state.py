"""Heartbeats become records, silence becomes stale, and resync requests are few (P14, P17, W20)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from redis.asyncio import Redis

from fleetbus.bus.jetstream import call_jetstream, ensure_bucket
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import BusError
from fleetbus.kube.connection import kubeconfig_document as document
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.yaml_document import parse_yaml
from fleetbus.process.clock import now_ms, rfc3339
from fleetbus.snapshot.records import ResourceState
from fleetbus.store.connection import StoreEmpty
from fleetbus.watchers.resync import ResyncRequest, read_resync, request_resync
from fleetbus_proto.admission import FURTHEST_AHEAD_MS
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.resources import parse_resource
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from support.eventually import eventually
from support.rigs.projector import Clock, ProjectorRig, completed, fleet_state, heartbeat, now
from support.stores.snapshot import Source

PODS = parse_resource("v1/pods")
HOUR = timedelta(hours=1)
KUBECONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://c%d"}}]
users: [{name: x, user: {token: t}}]
"""


async def writes(redis: Redis) -> int:
    """Return how many commands have written to the store so far."""
    return int((await redis.info("persistence"))["rdb_changes_since_last_save"])


async def test_p17_a_heartbeat_becomes_the_records_of_cluster_and_resource(
    rig: ProjectorRig, state: FleetState
) -> None:
    at = now()
    beat = heartbeat(state="listing", incarnation=4, at=at, resource_version="77")
    served = {"server_version": "v1.35", "platform": "linux/arm64"}
    await state.apply_heartbeat(msgspec.structs.replace(beat, **served))
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert (cluster.connected, cluster.incarnation, cluster.reported_at) == (True, 4, at)
    assert (cluster.server_version, cluster.platform) == ("v1.35", "linux/arm64")
    assert cluster.labels == {"region": "eu"}
    record = await rig.record()
    assert record is not None
    assert (record.state, record.kind, record.resource_version) == ("listing", "Pod", "77")


async def test_p14_a_resource_is_synced_by_its_epoch_not_by_what_a_watcher_says(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat(state="watching"))
    assert await rig.state() is ResourceState.LISTING
    await completed(rig, state)
    assert await rig.state() is ResourceState.SYNCED
    await state.apply_heartbeat(heartbeat(state="failing", message="403"))
    record = await rig.record()
    assert record is not None
    assert (record.state, record.reason, record.epoch) == ("stale", "403", "5 1")
    await state.apply_heartbeat(heartbeat())
    assert await rig.state() is ResourceState.SYNCED


async def test_p14_a_resource_that_failed_before_its_first_list_is_unknown(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat(state="failing", message="403"))
    assert await rig.state() is ResourceState.UNKNOWN


async def test_p17_without_heartbeats_it_is_stale_until_the_next_one(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat(at=now(HOUR)))
    await completed(rig, state)
    await state.mark_stale(2 * HOUR)
    assert await rig.state() is ResourceState.SYNCED
    await state.mark_stale(HOUR / 2)
    record = await rig.record()
    assert record is not None
    assert (record.state, record.reason) == ("stale", "no heartbeat has reported it for 1800 s")
    await state.apply_heartbeat(heartbeat())
    assert await rig.state() is ResourceState.SYNCED


async def test_p17_an_idle_fleet_writes_nothing(rig: ProjectorRig, state: FleetState) -> None:
    beat = heartbeat()
    await state.apply_heartbeat(beat)
    await completed(rig, state)
    before = await writes(rig.redis)
    for _ in range(3):
        await state.converge()
        await state.apply_heartbeat(beat)
        await state.mark_stale(timedelta(seconds=90))
    assert await writes(rig.redis) == before


@pytest.mark.parametrize("text", ["", "yesterday", "2020-01-01T00:00:00"])
async def test_a_time_that_cannot_be_read_is_stale_and_stops_nothing(
    rig: ProjectorRig, state: FleetState, text: str
) -> None:
    await state.apply_heartbeat(msgspec.structs.replace(heartbeat(), observed_at=text or "no time"))
    await completed(rig, state)
    await state.mark_stale(HOUR)
    assert await rig.state() is ResourceState.STALE


async def test_a_heartbeat_that_comes_again_later_changes_nothing(
    rig: ProjectorRig, state: FleetState
) -> None:
    new = heartbeat(at=now(), incarnation=5, resource_version="9")
    await state.apply_heartbeat(new)
    await state.apply_heartbeat(heartbeat(state="failing", at=now(HOUR), incarnation=5))
    await state.apply_heartbeat(heartbeat(state="failing", incarnation=4))
    record, cluster = await rig.record(), await rig.snapshot.reader.cluster("eu1")
    assert record is not None
    assert cluster is not None
    assert (record.state, record.resource_version) == ("listing", "9")
    assert (cluster.incarnation, cluster.reported_at) == (5, new.observed_at)


async def test_a_watcher_whose_clock_ran_ahead_does_not_shut_out_the_next_one(
    rig: ProjectorRig, state: FleetState
) -> None:
    ahead = rfc3339(datetime.now(UTC) + HOUR)
    await state.apply_heartbeat(heartbeat(at=ahead))
    right = heartbeat(resource_version="10")
    await state.apply_heartbeat(right)
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert cluster.reported_at == right.observed_at


async def test_a4_a_watcher_whose_clock_is_ahead_makes_no_answer_look_newer(
    rig: ProjectorRig, state: FleetState
) -> None:
    observed = datetime.now(UTC) + HOUR
    answered = rfc3339(observed - timedelta(seconds=40))
    beat = heartbeat(at=rfc3339(observed))
    await state.apply_heartbeat(
        msgspec.structs.replace(beat, last_answer="0001-01-01T00:00:00+23:59")
    )
    await state.apply_heartbeat(msgspec.structs.replace(beat, last_answer=answered))
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    age = cluster.age(datetime.now(UTC))
    assert age is not None
    assert timedelta(seconds=39) < age < timedelta(minutes=2)


async def test_p1_a_heartbeat_of_a_cluster_that_left_leaves_nothing(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat())
    rig.provider.tell("us1")
    await eventually(lambda: rig.connections.clusters.get("eu1") is None)
    await state.apply_heartbeat(heartbeat())  # the registry knows, the store does not yet
    assert await state.converge() == {"eu1"}
    await state.apply_heartbeat(heartbeat())
    epoch = await rig.snapshot.run_epoch(Source(cluster="eu1"), a=4)
    await state.mark_synced(epoch.epoch)
    assert not [key for key in await rig.snapshot.all_keys() if "eu1" in key]
    assert await rig.has_members("us1")


async def test_a_change_of_labels_is_written_and_keeps_what_was_reported(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat())
    rig.provider.tell("eu1", "us1", region="asia")
    await eventually(lambda: _region(rig) == "asia")
    await state.converge()
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert (cluster.labels, cluster.connected) == ({"region": "asia"}, True)


def _region(rig: ProjectorRig) -> str:
    info = rig.connections.clusters.get("eu1")
    return info.labels["region"] if info else ""


async def test_p13_two_projectors_and_a_lost_store_at_any_moment_never_call_it_synced(
    rig: ProjectorRig, state: FleetState
) -> None:
    """Promise 1 hangs on it: an empty snapshot that is called synced reads as "all deleted"."""
    other = fleet_state(rig)
    await state.apply_heartbeat(heartbeat())
    for turn in range(40):
        rank = (10 * (turn + 1), turn + 1)
        epoch = await rig.snapshot.run_epoch(Source(rank=rank), a=4)
        beats = [
            state.apply_heartbeat(heartbeat()),
            other.apply_heartbeat(heartbeat()),
            state.mark_synced(epoch.epoch),
        ]
        tasks = [asyncio.ensure_future(step) for step in (*beats, other.mark_stale(HOUR))]
        for _ in range(turn % 10):
            await asyncio.sleep(0)
        await rig.redis.flushall()
        await asyncio.gather(state.rebuild({0}), *tasks, return_exceptions=True)
        assert await rig.state() in (ResourceState.UNKNOWN, ResourceState.LISTING)
        record = await rig.record()
        assert record is None or not record.epoch


async def test_two_projectors_at_once_lose_no_epoch(rig: ProjectorRig, state: FleetState) -> None:
    other = fleet_state(rig)
    for turn in range(30):
        rank = (10 * (turn + 1), turn + 1)
        epoch = await rig.snapshot.run_epoch(Source(rank=rank), a=4)
        await asyncio.gather(
            state.apply_heartbeat(heartbeat(resource_version=str(turn))),
            other.apply_heartbeat(heartbeat(resource_version=str(turn))),
            state.mark_synced(epoch.epoch),
            other.mark_synced(epoch.epoch),
        )
        record = await rig.record()
        assert record is not None
        assert record.epoch == f"{rank[0]} {rank[1]}"


async def test_p13_a_heartbeat_that_meets_an_emptied_store_raises(
    rig: ProjectorRig, state: FleetState
) -> None:
    await rig.redis.flushall()
    with pytest.raises(StoreEmpty):
        await state.apply_heartbeat(heartbeat())
    assert await rig.snapshot.all_keys() == set()


# --- resync requests ------------------------------------------------------------------------


async def test_w20_a_resync_request_carries_the_highest_incarnation_and_epoch_that_were_seen(
    rig: ProjectorRig, state: FleetState, resyncs: ResyncRequests
) -> None:
    await state.apply_heartbeat(heartbeat(state="listing", incarnation=7))
    await completed(rig, state, (50, 9_999_999_999_999))
    await resyncs.request("eu1", PODS, "a test")
    request = await rig.resync_request()
    assert request is not None
    assert (request.incarnation, request.epoch) == (7, 9_999_999_999_999)
    assert request.min_epoch == 10_000_000_000_000
    assert request.reason == "a test"


async def test_w20_a_complete_list_that_waits_for_its_sweep_is_not_asked_for_again(
    rig: ProjectorRig, state: FleetState
) -> None:
    epoch = await rig.snapshot.run_epoch(Source(rank=(5, 1)), a=4)
    assert epoch.complete
    await state.apply_heartbeat(heartbeat(state="watching"))
    assert await rig.resync_request() is None
    await rig.redis.flushall()  # a list that is gone is asked for, whoever knew of it
    await state.rebuild({0})
    await state.apply_heartbeat(heartbeat(state="watching"))
    assert await rig.resync_request() is not None


@pytest.mark.usefixtures("state")
async def test_b8_a_resync_request_of_a_clock_that_was_days_ahead_does_not_outlive_it(
    rig: ProjectorRig, resyncs: ResyncRequests
):
    days_ahead = ResyncRequest(min_epoch=now_ms() + 3 * FURTHEST_AHEAD_MS)
    await request_resync(rig.bus, rig.connections.kv, "eu1", PODS, days_ahead)
    await resyncs.request("eu1", PODS, "a list lacks objects", newer_than=5)
    request = await read_resync(rig.connections.kv, "eu1", PODS)
    assert request is not None
    assert request.min_epoch <= now_ms()


async def test_w20_resync_requests_for_one_resource_are_at_least_30_s_apart(
    rig: ProjectorRig, state: FleetState, resyncs: ResyncRequests, clock: Clock
) -> None:
    for _ in range(3):
        await state.apply_heartbeat(heartbeat())
        clock.now += 10
    first = await rig.resync_request()
    assert first is not None
    await resyncs.request("us1", PODS, "another cluster need not wait")
    assert await rig.resync_request("us1") is not None
    clock.now += 1
    await state.apply_heartbeat(heartbeat())
    second = await rig.resync_request()
    assert second is not None
    assert second.min_epoch > first.min_epoch


async def test_w20_a_resync_request_that_could_not_be_written_is_tried_again_at_once(
    rig: ProjectorRig, state: FleetState, resyncs: ResyncRequests
) -> None:
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await state.apply_heartbeat(heartbeat())  # B18: the messages behind it go on
    with pytest.raises(BusError):
        await resyncs.write_pending()
    await ensure_bucket(rig.bus)
    await resyncs.write_pending()
    assert await rig.resync_request() is not None


async def test_b8_a_number_that_is_no_longer_used_shuts_out_no_watcher_for_good(
    rig: ProjectorRig, state: FleetState
) -> None:
    high, ago = now_ms() + 80_000_000, now(timedelta(seconds=100))
    await state.apply_heartbeat(heartbeat(incarnation=high, state="listing", at=ago))
    await state.apply_heartbeat(heartbeat(incarnation=7, state="listing"))
    request = await rig.resync_requested("lower than one that was seen")
    assert request.incarnation == high


async def test_w23_a_replica_that_is_late_with_a_new_number_causes_no_list(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat(incarnation=8, state="listing"))
    await state.apply_heartbeat(heartbeat(incarnation=7, state="listing"))
    assert await rig.resync_request() is None


@pytest.mark.usefixtures("state")
async def test_w20_an_open_resync_request_is_not_renewed_when_any_newer_epoch_will_do(
    rig: ProjectorRig, resyncs: ResyncRequests, clock: Clock
) -> None:
    await resyncs.request("eu1", PODS, "first", newer_than=5)
    first = await rig.resync_request()
    clock.now += 31
    await resyncs.request("eu1", PODS, "second", newer_than=5)
    assert await rig.resync_request() == first
    assert first is not None
    await resyncs.request("eu1", PODS, "third", newer_than=first.min_epoch)
    third = await rig.resync_request()
    assert third is not None
    assert third.min_epoch > first.min_epoch


async def test_w20_a_cluster_that_joins_again_need_not_wait_for_what_was_asked_before(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat())
    first = await rig.resync_request()
    rig.provider.tell("us1")
    await eventually(lambda: rig.connections.clusters.get("eu1") is None)
    await state.converge()
    rig.provider.tell("eu1", "us1")
    await eventually(lambda: rig.connections.clusters.get("eu1") is not None)
    await state.converge()
    await asyncio.sleep(0.01)  # numbers are milliseconds
    await state.apply_heartbeat(heartbeat())
    second = await rig.resync_request()
    assert first is not None
    assert second is not None
    assert second.min_epoch > first.min_epoch


@pytest.mark.usefixtures("state")
async def test_nothing_is_asked_of_a_cluster_that_left(
    rig: ProjectorRig, resyncs: ResyncRequests
) -> None:
    await resyncs.request("mars", PODS, "nobody is there")
    assert await rig.resync_request("mars") is None


async def test_a_kubeconfig_is_parsed_once_however_often_the_fleet_converges(
    rig: ProjectorRig, state: FleetState, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0

    def counted(text: str, *, aliases: bool) -> object:
        nonlocal parsed
        parsed += 1
        return parse_yaml(text, aliases=aliases)

    monkeypatch.setattr(document, "parse_yaml", counted)
    infos = [
        ClusterInfo(name=f"c{n}", labels={}, provider="test", config=KubeConfig(KUBECONFIG % n))
        for n in range(200)
    ]
    rig.provider.tell_infos(*infos)
    await eventually(lambda: len(rig.connections.clusters.all()) == len(infos))
    for _ in range(3):
        await state.converge()
    assert parsed == len(infos)
    record = await rig.snapshot.reader.cluster("c199")
    assert record is not None
    assert record.host == "https://c199"
