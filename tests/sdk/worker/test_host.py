"""A hosted controller loses no change: bus, store or mapping may fail (B17, P12, P13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
import structlog
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.bus.connection import connected
from fleetbus.bus.durables import consumer_info
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.errors import NotSynced
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.workqueue import Add, RedisQueue
from fleetbus_proto.keys import SnapshotKeys, queue_checkpoint, queue_replay_claim
from fleetbus_proto.subjects import STREAM, Verb, event_subject
from support.eventually import eventually, stays
from support.objects import pod
from support.rigs.fleet import Recorder, Rig
from support.rigs.fleet_fixtures import with_quick_checks
from support.stores.snapshot import Source

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
SOON = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.worker.initial_sync.FIRST_RESYNC", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))


@pytest.fixture
def open_rig(open_rig: OpenRig) -> OpenRig:
    return with_quick_checks(open_rig)


@pytest.mark.slow
async def test_p13_a_deletion_that_stood_in_the_queue_of_a_lost_store_is_reconciled(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a")
    controller = Controller("pods", concurrency=1)
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    for name in ("busy", "doomed", "stays"):
        rig.clusters["a"].create(PODS, pod(name), "default")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await eventually(lambda: len(recorder.keys()) == 3, within=SOON)
    await rig.synced("core/pods")
    await rig.quiet("pods")
    recorder.pause = 1.0  # the only slot is taken, so the deletion waits in the queue
    rig.clusters["a"].patch(PODS, "default", "busy", {"metadata": {"labels": {"x": "y"}}})
    await eventually(lambda: recorder.running)
    recorder.runs.clear()
    rig.clusters["a"].delete(PODS, "default", "doomed")

    async def is_gone() -> bool:
        return await rig.reader.get("a", "core/pods", "default", "doomed") is None

    async def is_queued() -> bool:
        return bool((await RedisQueue(rig.redis, "pods").stats()).depth)

    await eventually(is_gone)
    await eventually(is_queued)
    await rig.redis.flushall()
    recorder.pause = 0.0
    await eventually(lambda: recorder.of("a", "default", "doomed"), within=SOON)
    await eventually(lambda: recorder.of("a", "default", "doomed")[-1].object is None, within=SOON)
    await rig.synced("core/pods", within=SOON)
    async with connected(rig.shared.nats_url, name="test") as bus:

        async def is_tidy() -> bool:
            return await consumer_info(bus, "pods-replay") is None

        await eventually(is_tidy)


def mapped_unless(is_broken: Sequence[bool]) -> Recorder:
    """Requests of a controller whose map fails while that says so."""

    async def to_itself(_obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        if is_broken[0]:
            raise NotSynced("not yet")
        return [request]

    controller = Controller("mapped")
    controller.watch(PODS, map=to_itself)
    return Recorder(controller, PODS)


async def test_a_map_that_failed_for_a_while_is_tried_again_without_another_change(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a")
    is_broken = [True]
    recorder = mapped_unless(is_broken)
    rig.clusters["a"].create(PODS, pod("p"), "default")
    rig.start_reconciler(recorder.controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("mapped")
    assert recorder.runs == []
    is_broken[0] = False
    await eventually(lambda: recorder.of("a", "default", "p"), within=SOON)


@pytest.mark.slow
async def test_p9_pending_resyncs_of_several_clusters_outlive_a_store_that_fails_for_the_first(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=400))
    rig = await open_rig("a", "b")
    is_broken = [True]
    keys_of_fleet = [SnapshotKeys().resources("a"), SnapshotKeys().resources("b")]
    recorder = mapped_unless(is_broken)
    rig.start_reconciler(recorder.controller)
    with capture_logs() as lines:
        for name in "ab":
            rig.start_watcher(name)
        await rig.synced("core/pods")
        await rig.quiet("mapped")
        for key in keys_of_fleet:
            await rig.redis.rename(key, f"aside:{key}")
            await rig.redis.set(key, "of another program")
        for name in "ab":
            rig.clusters[name].create(PODS, pod("p"), "default")
        await eventually(lambda: [line for line in lines if line["event"] == "initial_sync_failed"])
        is_broken[0] = False
        for key in keys_of_fleet:
            await rig.redis.rename(f"aside:{key}", key)
        await eventually(lambda: recorder.of("a", "default", "p"), within=SOON)
        await eventually(lambda: recorder.of("b", "default", "p"), within=SOON)


async def test_p10_an_old_event_that_comes_again_is_not_what_the_run_reads(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a")
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    rig.clusters["a"].create(PODS, pod("doomed"), "default")
    await eventually(lambda: recorder.of("a", "default", "doomed"), within=SOON)
    rig.clusters["a"].delete(PODS, "default", "doomed")
    await eventually(lambda: recorder.of("a", "default", "doomed")[-1].object is None, within=SOON)
    await rig.quiet("pods")
    recorder.runs.clear()
    async with connected(rig.shared.nats_url, name="test") as bus:
        stream = bus.nc.jetstream()
        added = event_subject("a", "core", "pods", "default", "doomed", Verb.ADDED)
        old = await stream.get_last_msg(STREAM, added)
        sent = cast("dict[str, str]", old.headers)
        del sent["Nats-Msg-Id"]
        await stream.publish(added, old.data or b"", headers=sent)
    await eventually(lambda: recorder.of("a", "default", "doomed"), within=SOON)
    await rig.quiet("pods")
    assert {run.object is None for run in recorder.runs} == {True}, "it is deleted"


async def test_p8_a_map_is_asked_about_each_state_that_waited(open_rig: OpenRig) -> None:
    rig = await open_rig("a")
    gate, turns = asyncio.Event(), list[str]()

    async def hold(obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        turns.append(obj["metadata"].get("labels", {}).get("turn", ""))
        await gate.wait()
        return [request]

    controller = Controller("mapped")
    controller.watch(PODS, map=hold)
    Recorder(controller, PODS)
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("mapped")
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: turns == [""])
    for turn in "12":
        rig.clusters["a"].patch(PODS, "default", "p", {"metadata": {"labels": {"turn": turn}}})

    async with connected(rig.shared.nats_url, name="test") as bus:

        async def is_in_line() -> bool:
            info = await consumer_info(bus, "mapped-1")
            return info is not None and info["num_ack_pending"] == 3

        await eventually(is_in_line)
    gate.set()
    await eventually(lambda: turns == ["", "1", "2"])


async def test_p9_initial_sync_outlives_a_store_that_is_away(open_rig: OpenRig) -> None:
    rig = await open_rig("a")
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("pods")
    for _ in range(20):  # every connection is cut, at any moment of every loop
        await rig.redis.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.02)  # the pace of the cuts
    rig.clusters["a"].create(PODS, pod("late"), "default")
    await eventually(lambda: recorder.of("a", "default", "late"), within=SOON)


async def test_p12_of_processes_that_start_at_once_one_enqueues_and_the_others_say_so_calmly(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a")
    controller = Controller("pods")
    controller.watch(PODS)
    Recorder(controller, PODS)
    await rig.redis.set(queue_replay_claim("pods"), "of the other one")
    with capture_logs() as lines:

        def logged(event: str) -> list[str]:
            return [line["log_level"] for line in lines if line["event"] == event]

        rig.start_reconciler(controller)
        await eventually(lambda: logged("initial_sync_by_another_process"), within=SOON)
        # three more looks
        await stays(
            ["info"], lambda: logged("initial_sync_by_another_process"), timedelta(seconds=0.3)
        )
        assert "initial_sync_failed" not in [line["event"] for line in lines]
        await rig.redis.delete(queue_replay_claim("pods"))
        await rig.quiet("pods")
        async with rig.redis.pipeline(transaction=True) as pipe:
            pipe.hdel(queue_checkpoint("pods", "pods-1"), "synced")
            pipe.set(SnapshotKeys().resources("a"), "of another program")
            await pipe.execute()
        await eventually(lambda: logged("initial_sync_failed"), within=SOON)
    assert set(logged("initial_sync_failed")) == {"warning"}


async def test_b17_p12_a_controller_that_missed_messages_reconciles_what_it_missed_once(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a")
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    for name in ("known", "missed"):
        rig.clusters["a"].create(PODS, pod(name), "default")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await eventually(lambda: len(recorder.keys()) == 2, within=SOON)
    await rig.quiet("pods")
    recorder.runs.clear()
    # The projector applied a change whose message this controller never gets.
    entry = await rig.reader.get("a", "core/pods", "default", "missed")
    assert entry is not None
    source = Source(cluster="a", incarnation=entry.incarnation)
    version = int(entry.resource_version) + 1
    missed = source.modified("missed", version, namespace="default", uid=entry.uid)
    await SnapshotWriter(rig.redis, SnapshotKeys()).apply([missed])
    await rig.redis.hincrby(
        queue_checkpoint("pods", "pods-1"), "breaks", 1
    )  # as the projector tells it
    await eventually(lambda: recorder.of("a", "default", "missed"), within=SOON)
    await rig.quiet("pods")
    # three more looks
    await stays(
        ["missed"], lambda: [run.request.name for run in recorder.runs], timedelta(seconds=0.3)
    )


async def test_r8_no_run_begins_before_the_fleet_is_known(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    run = Clusters.run

    async def run_later(clusters: Clusters) -> None:
        await asyncio.sleep(0.5)  # a late start
        await run(clusters)

    monkeypatch.setattr(Clusters, "run", run_later)
    controller = Controller("pods")
    controller.watch(PODS)
    attempts: list[int] = []

    @controller.reconcile
    async def use(request: Request, fleet: Fleet) -> None:
        fleet.cluster(request.cluster)
        attempts.append(structlog.contextvars.get_contextvars()["attempt"])

    rig = await open_rig("a")
    requests = RedisQueue(redis, "pods")
    await requests.add([Add(Request("pods", "a", "default", "p"))])
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await eventually(lambda: attempts, within=SOON)
    await requests.aclose()
    assert attempts[0] == 1
