"""A large fleet: many clusters and objects, a steady rate of changes, many controllers.

    python tests/run.py bench.fleet [--clusters 1000] [--objects 1000000] [--rate 2000] [--json]

Real parts are NATS, Valkey, one projector and two processes of controllers, of which the first
select every object and the others few. The watchers of all clusters are one process, which
publishes made-up objects with the watcher's own code; API servers answer only who they are. In one
run: the first sync of all clusters; a steady rate with the projector alone, with the controllers
that select everything, and with the others too; one more cluster that joins with many objects; and
a FLUSHALL of Valkey. Memory and CPU are those of each process, latencies those of every n-th object
from its planned change. Two smaller fleets before that show what grows with clusters, and what with
objects. Baselines of the same run: the same bodies in plain hashes of a Valkey, and an ordered
consumer of JetStream that only decodes.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bench.programs.fleet_generator import Report
from bench.rig.command import run_command
from bench.rig.fleet_observer import Waits
from bench.rig.generated_cluster import PODS, Objects, Shape
from bench.rig.large_fleet import LargeFleet, Usage, large_fleet, observe
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.scratch import scratch_folder

JOINER = "joiner"
GENERATOR = "generator"
SAMPLES_PER_SECOND = 50
_HASHED = 20_000
_FEW_SAMPLES = 20
_SETTLES = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 50
    objects: int = 10_000
    """In all clusters together."""
    rate: int = 100
    """Changes per second, in all clusters together."""
    controllers: int = 20
    wide: int = 2
    """Number of controllers that select every object."""
    joining: int = 5_000
    """Objects of the cluster that joins."""
    bytes: int = 1_000
    """Size of one body."""
    seconds: float = 15
    """Length of each measured span."""
    settle: float = 5
    """Seconds before a span that are not measured."""
    drain: float = 120
    """Seconds in which the controllers may work through what is there when they start."""
    patience: float = 1800
    """Seconds within which the snapshot must be complete."""
    smaller: int = 4
    """By how much the fleets for the slopes are smaller; 0 for none of them."""

    @property
    def each(self) -> int:
        """Objects of one cluster."""
        return max(self.objects // self.clusters, 1)

    @property
    def names_of_controllers(self) -> list[str]:
        """The names of all controllers."""
        kinds = {"wide": self.wide, "narrow": self.few}
        return [f"{kind}-{number}" for kind, count in kinds.items() for number in range(count)]

    @property
    def few(self) -> int:
        """Return how many controllers select few objects."""
        return self.controllers - self.wide

    @property
    def sampled_every(self) -> int:
        """One of so many objects is sampled."""
        return max(self.rate // SAMPLES_PER_SECOND, 1)


TINY = Sizes(
    clusters=3,
    objects=90,
    rate=60,
    controllers=3,
    wide=1,
    joining=30,
    seconds=0.8,
    settle=0.2,
    drain=20,
    smaller=0,
)


# --- what was measured --------------------------------------------------------------------------


def summary(waits: Waits, span: tuple[float, float]) -> dict[str, Any]:
    """Summarize the changes of other clusters than the joining one, planned in a span;
    milliseconds."""
    latencies = [w * 1000 for name, at, w in waits if span[0] <= at < span[1] and name != JOINER]
    if len(latencies) < _FEW_SAMPLES:
        return {"samples": len(latencies), "error": "too few"}
    cuts = statistics.quantiles(latencies, n=100)
    figures = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(latencies)}
    return {"samples": len(latencies)} | {name: round(value, 1) for name, value in figures.items()}


@dataclass(slots=True)
class Span:
    """A time in which something was measured."""

    name: str
    begin: float
    end: float
    cores: dict[str, float]

    def figures(self, fleet: LargeFleet, reconciles: Waits, rate: int) -> dict[str, Any]:
        span = (self.begin, self.end)
        return {
            "span": self.name,
            "seconds": round(self.end - self.begin, 1),
            "cores": self.cores,
            "cpu_us_per_change": {k: round(v / rate * 1e6) for k, v in self.cores.items()},
            "bare subscriber": summary(fleet.observer.on_bus, span),
            "snapshot": summary(fleet.observer.in_snapshot, span),
            "reconcile": summary(reconciles, span),
        }


class Recorder:
    """Collects the spans of one run."""

    def __init__(self, fleet: LargeFleet) -> None:
        self._fleet = fleet
        self.spans: dict[str, Span] = {}

    async def over(self, name: str, seconds: float) -> None:
        before = self._fleet.usage()
        await asyncio.sleep(seconds)
        self.since(name, before)

    def since(self, name: str, before: Usage) -> None:
        cores = self._fleet.cores_since(before)
        self.spans[name] = Span(name, before.at, time.time(), cores)
        print(f"{name}: {cores}", file=sys.stderr)


# --- phases -------------------------------------------------------------------------------------


def names_of(sizes: Sizes) -> list[str]:
    return [f"cluster-{number:04}" for number in range(sizes.clusters)]


async def first_sync(fleet: LargeFleet, sizes: Sizes) -> dict[str, Any]:
    """Start projector and watchers; how long until everything is in the snapshot, at what cost."""
    names = names_of(sizes)
    fleet.join(names)
    await fleet.start_projector()
    await observe(fleet)
    empty, before = fleet.memory(), fleet.usage()
    empty_store = await fleet.store_bytes()
    shape = {"objects": sizes.each, "bytes": sizes.bytes, "sampled_every": sizes.sampled_every}
    await fleet.start_generator(GENERATOR, names, rate=sizes.rate, **shape)
    objects = sizes.each * sizes.clusters
    seconds = await fleet.synced(names, objects, sizes.patience)
    cores = fleet.cores_since(before)
    store = await fleet.store_bytes() - empty_store
    idle = fleet.usage()
    await asyncio.sleep(sizes.seconds)
    memory = fleet.memory()
    print(f"first sync: {objects} objects in {seconds:.0f} s", file=sys.stderr)
    return {
        "clusters": sizes.clusters,
        "objects": objects,
        "seconds": round(seconds, 1),
        "objects_per_second": round(objects / seconds),
        "cpu_us_per_object": {k: round(v * seconds / objects * 1e6) for k, v in cores.items()},
        "idle_cores": fleet.cores_since(idle),
        "store_bytes": store,
        "store_bytes_per_object": round(store / objects),
        "rss_mb_when_empty": empty,
        "rss_mb": memory,
    }


async def bytes_in_plain_hashes(folder: Path, sizes: Sizes) -> int:
    """The baseline: what Valkey takes for each body alone, in one hash for each cluster."""
    shape = Shape(objects=sizes.each, bytes=sizes.bytes, sampled_every=sizes.sampled_every)
    done = 0
    async with valkey_server(dir=folder / "plain") as server:
        redis = await connect(server.url)
        empty = (await redis.info("memory"))["used_memory"]
        for name in names_of(sizes):
            objects = Objects(name, shape)
            bodies = {"/".join(objects.place(i)): objects.body(i) for i in range(sizes.each)}
            await cast("Any", redis.hset(name, mapping=cast("Any", bodies)))
            done += sizes.each
            if done >= _HASHED:
                break
        full = (await redis.info("memory"))["used_memory"]
        await redis.aclose()
    return round((full - empty) / done)


async def steady(fleet: LargeFleet, recorder: Recorder, sizes: Sizes) -> dict[str, Any]:
    """A steady rate with the projector alone, then with the controllers, added in two steps."""
    fleet.begin_changes(GENERATOR)
    await asyncio.sleep(sizes.settle)
    await recorder.over("projector alone", sizes.seconds)
    figures: dict[str, Any] = {}
    counts = {"wide": sizes.wide, "narrow": sizes.few}
    for kind, count in counts.items():
        if count:
            begun = time.monotonic()
            await fleet.start_workers(f"worker-{kind}", **{kind: count})
            ready = time.monotonic() - begun
            names = [f"{kind}-{number}" for number in range(count)]
            left, seconds = await fleet.drained(names, sizes.drain)
            figures[kind] = {
                "controllers": count,
                "ready_seconds": round(ready, 1),
                "drained_seconds": seconds,
                "left": left,
            }
        await asyncio.sleep(sizes.settle)
        await recorder.over(f"with {kind} controllers", sizes.seconds)
    return figures


async def join(fleet: LargeFleet, recorder: Recorder, sizes: Sizes) -> float:
    """One more cluster with many objects; how long until it is complete."""
    before = fleet.usage()
    fleet.join([*names_of(sizes), JOINER])
    shape = {"objects": sizes.joining, "bytes": sizes.bytes, "sampled_every": sizes.sampled_every}
    await fleet.start_generator(JOINER, [JOINER], rate=0, **shape)
    seconds = await fleet.synced([JOINER], sizes.joining, sizes.patience)
    recorder.since("while one joins", before)
    return seconds


async def lose_store(fleet: LargeFleet, recorder: Recorder, sizes: Sizes) -> float:
    """FLUSHALL; how long until the snapshot is whole again."""
    before = fleet.usage()
    await fleet.redis.flushall()
    objects = sizes.each * sizes.clusters + sizes.joining
    seconds = await fleet.synced([*names_of(sizes), JOINER], objects, sizes.patience)
    recorder.since("while it is rebuilt", before)
    await recorder.over("after it was rebuilt", sizes.seconds)
    return seconds


async def differences(fleet: LargeFleet, sent: Report) -> int:
    """Sampled objects that the snapshot does not hold at the version that was sent last."""
    wrong = 0
    deadline = time.monotonic() + _SETTLES
    for cluster, versions in sent.versions.items():
        expected = {(namespace, name): version for namespace, name, version in versions}
        while True:
            by_name = await fleet.reader.versions(cluster, PODS.key, list(expected))
            stored = {name: each.resource_version for name, each in by_name.items()}
            if stored == expected or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)  # the last changes are under way
        wrong += sum(stored.get(name) != version for name, version in expected.items())
    return wrong


async def measure_fleet(folder: Path, sizes: Sizes) -> dict[str, Any]:
    async with large_fleet(folder, [*names_of(sizes), JOINER]) as fleet:
        recorder = Recorder(fleet)
        synced = await first_sync(fleet, sizes)
        plain = await bytes_in_plain_hashes(folder, sizes)
        passes = await steady(fleet, recorder, sizes)
        memory = fleet.memory()
        joined = await join(fleet, recorder, sizes)
        # A store that is lost now would take the requests of the join with it.
        await fleet.drained(sizes.names_of_controllers, sizes.drain)
        rebuilt = await lose_store(fleet, recorder, sizes)
        sent = await fleet.stop_generator(GENERATOR)
        wrong = await differences(fleet, sent)
        await fleet.drained(sizes.names_of_controllers, sizes.drain)
        await asyncio.sleep(sizes.settle)
        await recorder.over("idle", sizes.seconds)
        reconciles = await fleet.stop_workers()
    if wrong or sent.failed or fleet.observer.lost:
        raise RuntimeError(
            f"{wrong} objects differ, {sent.failed} messages were not stored, and"
            f" {fleet.observer.lost} changes did not reach the snapshot"
        )
    stored: Waits = [("", *each) for each in sent.late]
    spans = {
        name: span.figures(fleet, reconciles, sizes.rate)
        | {"stored on the bus": summary(stored, (span.begin, span.end))}
        for name, span in recorder.spans.items()
    }
    return {
        "first_sync": synced,
        "plain_bytes_per_object": plain,
        "rss_mb": memory,
        "first_passes": passes,
        "spans": spans,
        "joined_seconds": round(joined, 1),
        "rebuilt_seconds": round(rebuilt, 1),
        "changes": sent.changes,
        "lists": sent.lists,
        "unanswered_requests": sent.retries,
    } | compare(spans, sizes)


def compare(spans: dict[str, dict[str, Any]], sizes: Sizes) -> dict[str, Any]:
    """Compute the cost of one more controller, and how far a joining cluster moves the others."""
    alone, wide, narrow = (
        sum(spans[name]["cores"].values())
        for name in ("projector alone", "with wide controllers", "with narrow controllers")
    )
    idle = spans["idle"]["cores"]
    kinds = {"wide": (wide - alone, sizes.wide), "narrow": (narrow - wide, sizes.few)}
    controllers = {
        kind: {
            "idle_cores": round(idle[f"worker-{kind}"] / count, 4),
            "cpu_us_per_change": round((cores - idle[f"worker-{kind}"]) / count / sizes.rate * 1e6),
        }
        for kind, (cores, count) in kinds.items()
        if count
    }
    moved = {
        stage: _ratio(spans["while one joins"][stage], spans["with narrow controllers"][stage])
        for stage in ("bare subscriber", "snapshot", "reconcile")
    }
    return {"one_more_controller": controllers, "p99_moved_by_a_join": moved}


def _ratio(now: dict[str, Any], before: dict[str, Any]) -> float | None:
    if "p99" not in now or "p99" not in before:
        return None
    return round(now["p99"] / before["p99"], 2)


# --- slopes -------------------------------------------------------------------------------------


def slopes(complete: dict[str, Any], few: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Compute the cost of one more cluster and of one more object, from three fleets.

    Args:
        complete: the first sync of the whole fleet.
        few: of one with as many objects in fewer clusters.
        small: of one with fewer objects in as many clusters.
    """
    objects = complete["objects"] - small["objects"]
    clusters = complete["clusters"] - few["clusters"]
    processes = complete["rss_mb"]
    return {
        "store_bytes_per_object": round((complete["store_bytes"] - small["store_bytes"]) / objects),
        "store_bytes_per_cluster": round((complete["store_bytes"] - few["store_bytes"]) / clusters),
        "rss_bytes_per_object": {
            name: round((mb - small["rss_mb"][name]) * 2**20 / objects)
            for name, mb in processes.items()
        },
        "rss_kb_per_cluster": {
            name: round((mb - few["rss_mb"][name]) * 1024 / clusters, 1)
            for name, mb in processes.items()
        },
        "idle_cpu_us_per_cluster_and_second": {
            name: round((cores - few["idle_cores"][name]) / clusters * 1e6)
            for name, cores in complete["idle_cores"].items()
        },
        "sync_ms_per_cluster": round((complete["seconds"] - few["seconds"]) / clusters * 1e3, 2),
        "sync_us_per_object": round((complete["seconds"] - small["seconds"]) / objects * 1e6),
    }


async def measure_slopes(folder: Path, sizes: Sizes, syncs: dict[str, Any]) -> dict[str, Any]:
    complete: list[dict[str, Any]] = []
    for name, smaller in {
        "few": replace(sizes, clusters=max(sizes.clusters // sizes.smaller, 1)),
        "small": replace(sizes, objects=sizes.objects // sizes.smaller),
    }.items():
        async with large_fleet(folder / name, names_of(smaller)) as fleet:
            complete.append(await first_sync(fleet, smaller))
    return {"fewer_clusters": complete[0], "fewer_objects": complete[1], **slopes(syncs, *complete)}


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench-fleet") as folder:
        figures = await measure_fleet(folder / "whole", sizes)
        if sizes.smaller:
            figures["slopes"] = await measure_slopes(folder, sizes, figures["first_sync"])
    return {"benchmark": "a large fleet", "sizes": _as_dict(sizes), **figures}


def _as_dict(sizes: Sizes) -> dict[str, Any]:
    return {name: getattr(sizes, name) for name in Sizes.__slots__}


# --- the table ----------------------------------------------------------------------------------


def show(report: dict[str, Any]) -> None:
    sizes, sync = report["sizes"], report["first_sync"]
    print(
        f"{sizes['clusters']} clusters, {sync['objects']} objects of {sizes['bytes']} bytes,"
        f" {sizes['rate']} changes/s, {sizes['controllers']} controllers of which"
        f" {sizes['wide']} select all"
    )
    print(f"first sync: {sync['seconds']} s, {sync['objects_per_second']} objects/s")
    print(f"  CPU, us per object: {sync['cpu_us_per_object']}")
    print(f"  idle, cores: {sync['idle_cores']}")
    print(
        f"memory of Valkey: {sync['store_bytes_per_object']} bytes per object;"
        f" baseline, the bodies in plain hashes: {report['plain_bytes_per_object']}"
    )
    print(f"memory of processes, MB: {report['rss_mb']}")
    for kind, passes in report["first_passes"].items():
        print(f"first pass of {kind} controllers: {passes}")
    for name, span in report["spans"].items():
        print(f"{name}, {span['seconds']} s; latencies in ms from the planned change")
        print(f"  cores: {span['cores']}")
        print(f"  CPU, us per change: {span['cpu_us_per_change']}")
        for stage in ("stored on the bus", "bare subscriber", "snapshot", "reconcile"):
            if span[stage]["samples"]:
                print(f"  {stage:18} {span[stage]}")
    print(f"one more controller: {report['one_more_controller']}")
    print(f"one cluster joins with {sizes['joining']} objects in {report['joined_seconds']} s;")
    print(f"  p99 of the others times {report['p99_moved_by_a_join']}; target < 2")
    print(f"store lost: whole again after {report['rebuilt_seconds']} s")
    for name, slope in report.get("slopes", {}).items():
        if not isinstance(slope, dict) or "seconds" not in slope:
            print(f"slope: {name}: {slope}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
