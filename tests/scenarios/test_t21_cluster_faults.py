"""T21: a fault of one cluster is reported for it, affects no other, and deletes nothing.

All faults of B happen at once, each in a B of its own, as far as watchers, stream and snapshot are
concerned, and NATS is killed. Not here: the death of one of two watchers
(tests/watcher/test_peer_replicas.py), and cases that need T10's reconciler, a MultiClusterResource
or the kills of all processes.
"""

from __future__ import annotations

import asyncio
import pathlib
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any

import pytest
import yaml

from fleetbus.clusters.providers.file import FileProvider
from fleetbus.controller.controller import Controller
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import Cluster, CutAnswer, Expire, Fail, Partition
from fleetbus_reconciler.fleet_status.cluster_status import cluster_status
from fleetbus_watcher.timing import WatcherTiming
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.full import FULL
from support.objects import pod
from support.processes.running import seconds_denied
from support.rigs.fleet import Recorder, Rig, fleet_rig
from support.rigs.scenario import MAP_KEY, MAPS, WITHIN, Scenario, scenario

OpenRig = Callable[..., Awaitable[Rig]]
PODS, POD_KEY = "v1/pods", "core/pods"
WIDGETS = "example.com/v1/widgets"
WIDGET = definition("example.com", "widgets", "Widget")
HEALS = timedelta(seconds=30)
RATE = 10
OBJECTS = 22
"""More than the fuse would let go at once, and more than a page."""
_SOON = timedelta(seconds=2)
Expected = tuple[str, str, str]
"""Type, status and one of the reasons (`A|B`) of a condition."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:
        file: Any = FileProvider.__init__.__kwdefaults__
        monkeypatch.setitem(file, "every", timedelta(milliseconds=50))
        request = KubeClient.request

        async def give_up_soon(client: KubeClient, call: Call) -> bytes:
            return await request(client, call._replace(within=min(call.within, _SOON)))

        monkeypatch.setattr(KubeClient, "request", give_up_soon)


@dataclass(frozen=True)
class Fault:
    """A fault of a B, and the condition that is reported meanwhile."""

    expected: Expected
    begin: Callable[[Rig, str], Awaitable[None]]
    end: Callable[[Rig, str], Awaitable[None]]
    at_start: bool = False
    lacks: str = ""
    """The one resource that is not synced meanwhile; the others are."""


def by_rule(*actions: Any, **match: Any) -> dict[str, Any]:
    """Begin and end of rules."""

    async def begin(rig: Rig, name: str) -> None:
        for action in actions:
            rig.clusters[name].faults.add(action, **match)

    async def end(rig: Rig, name: str) -> None:
        rig.clusters[name].faults.clear()

    return {"begin": begin, "end": end}


async def nothing(_rig: Rig, _name: str) -> None: ...


async def forget(rig: Rig, name: str) -> None:
    """410 whenever a watch is to be resumed, for a while."""
    cluster = rig.clusters[name]
    cluster.faults.add(Expire("open"), verb="watch", count=6)
    cluster.compact()
    cluster.close_watches()


async def define(rig: Rig, name: str) -> None:
    rig.clusters[name].create(CRDS, WIDGET)


FAULTS: Mapping[str, Fault] = {
    "b-refuses": Fault(
        ("Connected", "False", "Unreachable"),
        lambda rig, name: rig.servers.stop(name),
        lambda rig, name: rig.servers.start(name),
        at_start=True,
    ),
    "b-hangs": Fault(
        ("Connected", "False", "Unreachable|Starting"),
        lambda rig, name: rig.servers.partition(name, Partition.HANG),
        lambda rig, name: rig.servers.heal(name),
        at_start=True,
    ),
    "b-dies": Fault(
        ("Connected", "False", "Unreachable"),
        lambda rig, name: rig.servers.stop(name),
        lambda rig, name: rig.servers.start(name),
    ),
    "b-stalls": Fault(
        ("Connected", "False", "Unreachable"),
        lambda rig, name: rig.servers.partition(name, Partition.HANG),
        lambda rig, name: rig.servers.heal(name),
    ),
    "b-forbids": Fault(
        ("Synced", "False", "NotListed"),
        **by_rule(Fail(403), verb="read", resource="pods"),
        at_start=True,
        lacks=POD_KEY,
    ),
    "b-lacks": Fault(
        ("Synced", "False", "NotListed"),
        nothing,
        define,
        at_start=True,
        lacks="example.com/widgets",
    ),
    "b-throttles": Fault(
        ("Synced", "False", "NotListed"),
        **by_rule(Fail(429, retry_after=timedelta(seconds=1)), verb="list"),
        at_start=True,
    ),
    "b-forgets": Fault(("Synced", "True", "AllListed"), forget, nothing),
    "b-cuts": Fault(
        ("Synced", "False", "NotListed"),
        **by_rule(CutAnswer(0.5), verb="list", resource="configmaps"),
        at_start=True,
        lacks=MAP_KEY,
    ),
}


async def conditions(story: Scenario, name: str) -> dict[str, tuple[str, str]]:
    """The conditions that a Cluster object would show."""
    record, resources = await story.record(name), await story.rig.reader.resources(name)
    entries = cluster_status(record, resources, is_silent=False)["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in entries}


async def is_reported(story: Scenario, name: str, fault: Fault) -> bool:
    kind, status, reasons = fault.expected
    condition = (await conditions(story, name))[kind]
    return condition[0] == status and condition[1] in reasons.split("|")


async def is_in_step(story: Scenario, *names: str) -> bool:
    """Whether the snapshot equals the API servers, and says that it is complete."""
    for name in names:
        for key, gvr in ((MAP_KEY, MAPS), (POD_KEY, PODS)):
            if not await story.is_synced(name, key=key):
                return False
            if await versions(story, name, key) != truth(story.rig.clusters[name], gvr):
                return False
    return True


async def versions(story: Scenario, name: str, key: str) -> dict[str, str]:
    page = await story.rig.reader.list(ListQuery(clusters=[name], resource=key))
    return {entry.name: entry.resource_version for entry in page.entries}


def truth(cluster: Cluster, gvr: str) -> dict[str, str]:
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in cluster.list(gvr)}


@dataclass
class Ticks:
    """Changes in A and C, and how long each took until its reconcile started."""

    story: Scenario
    written: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    denied: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Now and then, how long the machine had run others while this thread was ready."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.denied.append((loop.time(), seconds_denied()))
            for server in ("a", "c"):
                name = f"tick{len(self.written)}"
                self.written[server, name] = loop.time()
                self.story.write(server, name)
            await asyncio.sleep(1 / RATE)  # the pace of the load

    def latencies(self, since: float = 0) -> list[float]:
        """In seconds, of the changes since a time, without what the machine gave to others."""
        started: dict[tuple[str, str], float] = {}
        for run in self.story.recorders[0].runs:
            started.setdefault((run.request.cluster, run.request.name), run.started)
        written = {key: at for key, at in self.written.items() if at >= since}
        assert started.keys() >= written.keys(), "a change was lost"
        return [started[key] - at - self._denied(at, started[key]) for key, at in written.items()]

    def _denied(self, since: float, until: float) -> float:
        """Denied CPU of this time, and what is left of the ticks around it."""
        first = bisect_right(self.denied, (since, inf)) - 1
        last = min(bisect_left(self.denied, (until, 0)), len(self.denied) - 1)
        return self.denied[last][1] - self.denied[first][1]

    async def are_all_seen(self) -> bool:
        keys = {(r.request.cluster, r.request.name) for r in self.story.recorders[0].runs}
        return keys >= self.written.keys()


@asynccontextmanager
async def ticking(story: Scenario) -> AsyncGenerator[Ticks]:
    ticks = Ticks(story)
    task = asyncio.create_task(ticks.run())
    try:
        yield ticks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def write_clusters(path: pathlib.Path, rig: Rig, *names: str) -> None:
    entries = [
        {"name": name, "kubeconfig": str(rig.kubeconfig), "context": name}
        | ({"resources": [MAPS, PODS, WIDGETS]} if name == "b-lacks" else {})
        for name in names
    ]
    partial = path.with_suffix(".part")
    partial.write_text(yaml.safe_dump({"clusters": entries}))
    partial.rename(path)


@pytest.mark.timeout(600 if FULL else 180)  # twelve clusters: 12 s alone, 40 s on a busy machine
@pytest.mark.full  # CI runs the cut of `make faults`
async def test_t21_faults_in_b_are_reported_move_no_other_delete_nothing_and_heal(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", "c", *FAULTS)
    if not FULL:
        second = timedelta(seconds=1)
        rig.watcher_timing = WatcherTiming(silent_start=second, quiet=second, answers_within=second)
    for name in FAULTS:
        rig.clusters[name].create(PODS, pod("p"), "default")
    clusters = tmp_path / "clusters.yaml"
    write_clusters(clusters, rig, "a", "c")
    async with scenario(rig) as story:
        recorder = Recorder(Controller("ticks"), MAPS)
        recorder.controller.watch(MAPS, clusters=["a", "c"])
        story.use({"type": "file", "path": str(clusters)})
        story.start_reconciler(recorder)
        await story.start_pool(resources=(MAPS, PODS), page_size=15)
        for name in FAULTS:
            for number in range(OBJECTS):
                story.write(name, f"m{number}")
        await story.synced("a", "c")
        async with ticking(story) as ticks:
            await asyncio.sleep(10 if FULL else 0.7)  # latencies without a fault
            await eventually(ticks.are_all_seen, WITHIN)
            before = ticks.latencies()
            began = asyncio.get_running_loop().time()
            await begin_faults(story, clusters)
            await eventually(ticks.are_all_seen, WITHIN)
            meanwhile = ticks.latencies(began)
            for name, fault in FAULTS.items():
                await fault.end(rig, name)
            async with asyncio.TaskGroup() as group:
                for name in FAULTS:
                    group.create_task(heal(story, name))
            await eventually(lambda: story.is_synced("b-lacks", key="example.com/widgets"), HEALS)
        assert not story.deletions()
        check_latencies(before, meanwhile)
        await eventually(lambda: is_in_step(story, "a", "c"), WITHIN)
        await story.close(seen_of=["a", "c"])
        await rig.aclose()


async def heal(story: Scenario, name: str) -> None:
    """Wait until a cluster without its fault is in step."""
    try:
        await eventually(lambda: is_in_step(story, name), HEALS)
    except AssertionError as e:
        e.add_note(f"{name} is not in step")
        raise


async def begin_faults(story: Scenario, clusters: pathlib.Path) -> None:
    """Let every fault begin, and wait until each is reported."""
    rig = story.rig
    starts = {name for name, fault in FAULTS.items() if fault.at_start}
    for name in starts:
        await FAULTS[name].begin(rig, name)
    write_clusters(clusters, rig, "a", "c", *FAULTS)
    await eventually(lambda: is_in_step(story, *(FAULTS.keys() - starts)), WITHIN)
    for name in FAULTS.keys() - starts:
        await FAULTS[name].begin(rig, name)
    for name in FAULTS:
        story.write(name, "meanwhile")
    slow = timedelta(seconds=90)  # that of a hang, which is silent
    async with asyncio.TaskGroup() as group:
        for name, fault in FAULTS.items():
            group.create_task(eventually(lambda n=name, f=fault: is_reported(story, n, f), slow))
    lacking = [name for name, fault in FAULTS.items() if fault.lacks]
    for name in lacking:
        others = {MAP_KEY, POD_KEY} - {FAULTS[name].lacks}
        for key in others:
            await eventually(lambda n=name, k=key: story.is_synced(n, key=k), WITHIN)
        assert not await story.is_synced(name, key=FAULTS[name].lacks)


def check_latencies(before: list[float], meanwhile: list[float]) -> None:
    """Nobody waits for a B: half of the changes here, 99 of 100 in full."""
    if FULL:
        first, then = (statistics.quantiles(each, n=100)[98] for each in (before, meanwhile))
        assert then <= max(1.2 * first, 0.25)
    else:
        first, then = statistics.median(before), statistics.median(meanwhile)
        assert then <= max(3 * first, 1.0)


@pytest.mark.full  # CI runs the cut of `make faults`
async def test_t21_after_a_kill_of_nats_the_snapshot_equals_the_api_servers(
    tmp_path: pathlib.Path, valkey_url: str
) -> None:
    async with (
        nats_server(store_dir=tmp_path / "nats") as nats,
        fleet_rig(
            "a", "b", folder=tmp_path, nats_url=nats.url, valkey_url=valkey_url, resources=(MAPS,)
        ) as rig,
        scenario(rig) as story,
    ):
        recorder = Recorder(Controller("outage"), MAPS)
        recorder.controller.watch(MAPS)
        for number in range(OBJECTS):
            story.write("a", f"m{number}")
        story.start_reconciler(recorder)
        await story.start_pool(resources=(MAPS, PODS))
        await eventually(lambda: is_in_step(story, "a", "b"), WITHIN)
        nats.kill()
        story.write("a", "m0", "changed")
        story.write("b", "new")
        rig.clusters["a"].delete(MAPS, "default", "m1")
        await nats.restart()
        await eventually(lambda: is_in_step(story, "a", "b"), timedelta(seconds=60))
        gone = ("a", "default", "m1")
        await eventually(lambda: any(r.object is None for r in recorder.of(*gone)), WITHIN)
        assert {event.name for event in await story.stored("a") if event.verb == "deleted"} == {
            "m1"
        }
        await story.close()
        await rig.aclose()
