"""Nothing hangs on a message being there once, in order, or for ever: rules B1, B2, B5."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.store.connection import StoreEmpty
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig, fleet_rig
from support.rigs.projector import subject_of
from support.rigs.watcher import read_stream
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
KEY = "core/pods"
SOON = timedelta(seconds=20)
QUICK: dict[str, Any] = {
    "heartbeat_busy": timedelta(milliseconds=100),
    "heartbeat_idle": timedelta(milliseconds=100),
}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.intake.binding.CHECK_EVERY", timedelta(milliseconds=100))


def recording() -> tuple[Controller, Recorder]:
    controller = Controller("pods")
    controller.watch(PODS)
    return controller, Recorder(controller, PODS)


def write(rig: Rig, name: str, value: str) -> None:
    cluster = rig.clusters["a"]
    if cluster.get(PODS, "default", name) is None:
        cluster.create(PODS, pod(name, labels={"value": value}), "default")
    else:
        cluster.patch(PODS, "default", name, {"metadata": {"labels": {"value": value}}})


def truth(rig: Rig) -> dict[str, str]:
    pods = rig.clusters["a"].list(PODS)
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in pods}


async def held(rig: Rig) -> dict[str, str]:
    page = await rig.reader.list(ListQuery(clusters=["a"], resource=KEY))
    return {entry.name: entry.resource_version for entry in page.entries}


def reconciled(recorder: Recorder, names: set[str]) -> dict[str, str]:
    """Return the resourceVersion that each object's last run saw; without objects now gone."""
    last = {name: recorder.of("a", "default", name)[-1:] for name in names}
    objects = {name: runs[0].object for name, runs in last.items() if runs}
    return {name: obj["metadata"]["resourceVersion"] for name, obj in objects.items() if obj}


async def break_bus(rig: Rig, server: NatsServer, turn: int, *, wiped: bool) -> None:
    server.kill()
    for number in range(10):
        write(rig, f"p{number}", f"{turn}")
    rig.clusters["a"].delete(PODS, "default", f"p{turn}")
    if wiped:
        shutil.rmtree(server.store_dir / "jetstream")
    await server.restart()


@pytest.mark.full  # CI runs the cut of `make faults`
@pytest.mark.parametrize("wiped", [False, True], ids=["killed", "wiped"])
async def test_b1_a_bus_that_dies_under_load_costs_no_change(
    tmp_path: Path, valkey_url: str, *, wiped: bool
) -> None:
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        fleet_rig("a", folder=tmp_path, nats_url=server.url, valkey_url=valkey_url) as rig,
    ):
        rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=100))
        controller, recorder = recording()
        rig.start_reconciler(controller)
        rig.start_watcher("a", **QUICK)
        for number in range(10):
            write(rig, f"p{number}", "first")
        await eventually(lambda: len(recorder.keys()) == 10, SOON)
        for turn in range(2):
            await break_bus(rig, server, turn, wiped=wiped)

        async def is_rebuilt() -> bool:
            names = {f"p{number}" for number in range(10)}
            return await held(rig) == truth(rig) == reconciled(recorder, names)

        await eventually(is_rebuilt, SOON)


@pytest.mark.slow
async def test_b2_a_store_that_was_wiped_after_the_stream_aged_out_is_listed_again(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(PODS,))
    rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=100))
    controller, recorder = recording()
    for number in range(5):
        write(rig, f"p{number}", "v")
    rig.start_reconciler(controller, stream_max_bytes=1024**2)
    rig.start_watcher("a", **QUICK)
    await eventually(lambda: len(recorder.keys()) == 5, SOON)
    await rig.synced(KEY)
    async with connected(rig.shared.nats_url, name="test") as bus:
        await age_out(bus)
        assert await names_reported(bus) == set()
        recorder.runs.clear()
        await rig.redis.flushall()
        await eventually(lambda: is_whole(rig, recorder), SOON)
        assert "deleted" not in {e.verb for e in await events(bus)}


async def is_whole(rig: Rig, recorder: Recorder) -> bool:
    try:
        return await held(rig) == truth(rig) and len(recorder.keys()) == 5
    except StoreEmpty:
        return False


async def age_out(bus: Bus) -> None:
    """Push all that is on the stream out of it, past the heartbeats that go on meanwhile."""
    source = Source(cluster="elsewhere")
    for number in range(12):
        filler = source.modified(f"filler-{number}", number + 1, body=b"x" * 100_000)
        answer = await bus.request(
            subject_of(filler), codec.encode(filler), headers=headers.build(filler, MESSAGE_KEY)
        )
        assert b'"error"' not in answer.data
        await asyncio.sleep(0.05)  # the pace of the load


async def events(bus: Bus) -> list[Event]:
    messages = [stored.message for stored in await read_stream(bus)]
    return [m for m in messages if isinstance(m, Event) and m.cluster == "a"]


async def names_reported(bus: Bus) -> set[str]:
    return {event.name for event in await events(bus)}


class Overlaps:
    """A controller of two processes with four slots each, that watches itself for overlaps."""

    def __init__(self) -> None:
        self.running: list[Request] = []
        self.most = 0
        self.twice: list[Request] = []
        self.last: dict[str, str] = {}

    def controller(self) -> Controller:
        pods_controller = Controller("pods", concurrency=4)
        pods_controller.watch(PODS)
        pods_controller.reconcile(self._reconcile)
        return pods_controller

    async def _reconcile(self, request: Request, fleet: Fleet) -> None:
        if request in self.running:
            self.twice.append(request)
        self.running.append(request)
        self.most = max(self.most, len(self.running))
        await asyncio.sleep(0.02)  # a slow reconcile
        obj = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
        self.running.remove(request)
        if obj is not None:
            self.last[request.name] = obj["metadata"]["resourceVersion"]


@pytest.mark.full  # tests/sdk/workqueue/test_redis.py has it, and the cut of `make faults-workers`
async def test_b5_events_of_one_key_in_two_processes_never_run_at_the_same_time(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(PODS,))
    rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=100))
    overlaps = Overlaps()
    rig.start_reconciler(overlaps.controller(), name="one")
    rig.start_reconciler(overlaps.controller(), name="two", projector=False)
    rig.start_watcher("a")
    await rig.synced(KEY)
    await rig.quiet("pods")
    for turn in range(30):
        for number in range(4):  # few keys and many changes: both processes get some of each
            write(rig, f"p{number}", f"{turn}")
        await asyncio.sleep(0.01)  # the pace of the load
    await eventually(lambda: overlaps.last == truth(rig), SOON)
    assert overlaps.twice == []
    assert overlaps.most >= 3, "different keys were meant to run side by side"
