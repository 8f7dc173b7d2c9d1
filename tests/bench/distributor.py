"""The distributor: how fast objects reach many clusters, at what cost, and what stays quiet.

    python tests/run.py bench.distributor [--runs 3] [--clusters 100] [--json]

All parts run on this machine: emulated API servers in this process, NATS, Valkey, one projector,
one watcher of all clusters, and the distributor as a process. Baseline of the same run: a plain
loop of server-side applies with kubernetes_asyncio, which reads, records and guards nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.rig.command import run_command
from bench.rig.distribution import HUB, MAPS, RESOURCE, Distribution, distribution
from fleetbus_emulator.apiserver import Hang
from fleetbus_emulator.scratch import scratch_folder
from support.processes.programs import module

PATIENCE = 300.0
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 100
    """Clusters of one MultiClusterResource with one object."""
    runs: int = 5
    """Each with a fresh process."""
    many: int = 200
    """MultiClusterResources with one object each; 0 to measure only the large ones below."""
    wide: int = 10
    """Clusters of each of these."""
    deleted: int = 200
    """Copies deleted one after the other."""
    foreign: int = 50
    """Foreign changes on one cluster."""
    idle: float = 60
    """Seconds."""
    templates: int = 500
    """Templates of one MultiClusterResource; 0 for none."""
    templates_clusters: int = 100
    fleet: int = 1_000
    """Clusters of the largest fleet; 0 for none."""
    fleet_objects: int = 50


TINY = Sizes(
    clusters=4,
    runs=1,
    many=4,
    wide=2,
    deleted=4,
    foreign=5,
    idle=1,
    templates=5,
    templates_clusters=3,
    fleet=5,
    fleet_objects=3,
)


def quantiles(seconds: Iterable[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(second * 1e3 for second in seconds)
    cuts = (
        statistics.quantiles(ordered, n=100, method="inclusive")
        if len(ordered) > 1
        else ordered * 99
    )
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(ordered[-1], 1)}


async def loop_of_applies(fleet: Distribution, *numbers: int) -> dict[str, Any]:
    """The baseline, in a process of its own."""
    kubeconfig = str(fleet.services.kubeconfig)
    command = module("bench.programs.apply_loop", kubeconfig, *map(str, numbers))
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    answer, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError("the loop of applies has failed")
    report = json.loads(answer)
    return {
        "seconds": round(report["seconds"], 2),
        "objects_per_second": round(report["objects"] / report["seconds"]),
        "cpu_ms_per_object": round(report["cpu_ms_per_object"], 2),
        "request": quantiles(report["waits"]),
    }


# --- phases -------------------------------------------------------------------------------------


async def fresh_process(fleet: Distribution, sizes: Sizes) -> dict[str, Any]:
    """One MultiClusterResource to many clusters, by a process that has never asked them."""
    waits, ends, costs = list[float](), list[float](), list[float]()
    for run in range(sizes.runs):
        name, clusters = f"fresh-{run}", fleet.names[: sizes.clusters]
        await fleet.start_distributor(f"distributor-{run}")
        await fleet.quiet()
        cpu, begun = fleet.cpu(), time.monotonic()
        fleet.create(name, clusters, [name])
        await fleet.until(lambda c=clusters, n=name: all_there(fleet, c, [n]), PATIENCE)
        ended = [fleet.written[each, name] - begun for each in clusters]
        waits += ended
        ends.append(max(ended))
        await fleet.quiet()
        costs.append((fleet.cpu() - cpu) / len(clusters))
        await fleet.stop_distributors()
    return {
        "clusters": sizes.clusters,
        "runs": sizes.runs,
        "to_each_cluster": quantiles(waits),
        "to_all": quantiles(ends),
        "cpu_ms_per_object": round(statistics.median(costs) * 1e3, 2),
        "loop, one after the other": await loop_of_applies(fleet, sizes.clusters, 1, 1),
        "loop, side by side": await loop_of_applies(fleet, sizes.clusters, 1, sizes.clusters),
    }


def all_there(fleet: Distribution, clusters: Iterable[str], names: Iterable[str]) -> bool:
    return all((cluster, name) in fleet.written for name in names for cluster in clusters)


async def many_objects(fleet: Distribution, sizes: Sizes, processes: int) -> dict[str, Any]:
    """Many MultiClusterResources at once, until the last object is there and all is quiet."""
    clusters = fleet.names[: sizes.wide]
    for number in range(processes):
        await fleet.start_distributor(f"many-{processes}-{number}")
    fleet.create("warm", clusters, ["warm"])
    await fleet.until(lambda: all_there(fleet, clusters, ["warm"]), PATIENCE)
    await fleet.quiet()
    names = [f"many-{processes}-{number}" for number in range(sizes.many)]
    fleet.forget_requests()
    cpu, begun = fleet.cpu(), time.monotonic()
    for name in names:
        fleet.create(name, clusters, [name])
    await fleet.until(lambda: all_there(fleet, clusters, names), PATIENCE)
    seconds = max(fleet.written[cluster, name] for name in names for cluster in clusters) - begun
    until_applied = fleet.cpu() - cpu
    await fleet.quiet()
    count = len(names) * len(clusters)
    figures = {
        "processes": processes,
        "objects": count,
        "seconds": round(seconds, 2),
        "objects_per_second": round(count / seconds),
        "cpu_ms_per_object": round(until_applied / count * 1e3, 2),
        "cpu_ms_per_object_until_quiet": round((fleet.cpu() - cpu) / count * 1e3, 2),
        "requests_per_object": round(fleet.asked(fleet.names) / count, 2),
        "requests_to_the_hub_per_resource": round(fleet.asked([HUB]) / len(names), 2),
        "seconds_until_quiet": round(time.monotonic() - begun, 1),
    }
    fleet.delete_all()
    await fleet.until(lambda: not fleet.hub.names(RESOURCE), PATIENCE)
    await fleet.quiet()
    await fleet.stop_distributors()
    return figures


async def deleted_copies(fleet: Distribution, sizes: Sizes) -> dict[str, Any]:
    """Somebody deletes a copy; how long until it is back."""
    clusters = fleet.names[: sizes.wide]
    fleet.create("copies", clusters, ["copies"])
    await fleet.until(lambda: all_there(fleet, clusters, ["copies"]), PATIENCE)
    await fleet.quiet()
    waits: list[float] = []
    cpu = fleet.cpu()
    for number in range(sizes.deleted):
        cluster = clusters[number % len(clusters)]
        begun = time.monotonic()
        fleet.clusters[cluster].delete(MAPS, "default", "copies")
        await fleet.until(lambda c=cluster, b=begun: fleet.written[c, "copies"] > b, PATIENCE)
        waits.append(fleet.written[cluster, "copies"] - begun)
        await asyncio.sleep(_PAUSE)
    await fleet.quiet()
    cost = (fleet.cpu() - cpu) / len(waits) * 1e3
    return {"deletions": len(waits), "back": quantiles(waits), "cpu_ms_each": round(cost, 1)}


async def foreign_changes(fleet: Distribution, sizes: Sizes) -> dict[str, Any]:
    """Changes of others on one cluster; what the others are asked meanwhile."""
    first, *others = fleet.names[: sizes.wide]
    fleet.forget_requests()
    for number in range(sizes.foreign):
        change = {"metadata": {"annotations": {"foreign": str(number)}}}
        fleet.clusters[first].patch(MAPS, "default", "copies", change)
        await asyncio.sleep(_PAUSE)
    await fleet.quiet()
    return {
        "changes": sizes.foreign,
        "requests_to_the_cluster": fleet.asked([first]),
        "requests_to_the_others": fleet.asked(others),
    }


async def idle(fleet: Distribution, sizes: Sizes) -> dict[str, Any]:
    """Nothing happens."""
    fleet.forget_requests()
    cpu = fleet.cpu()
    await asyncio.sleep(sizes.idle)
    return {
        "seconds": sizes.idle,
        "requests_to_targets": fleet.asked(fleet.names),
        "requests_to_the_hub": fleet.asked([HUB]),
        "cpu_percent": round((fleet.cpu() - cpu) / sizes.idle * 100, 2),
    }


async def one_dead_cluster(fleet: Distribution, sizes: Sizes) -> dict[str, Any]:
    """The same edits with all clusters, and with one that accepts and never answers."""
    clusters = fleet.names[: sizes.wide]
    dead, others = clusters[-1], clusters[:-1]
    healthy = await edits(fleet, sizes, clusters, others, "healthy")
    rule = fleet.clusters[dead].faults.add(Hang())
    with_dead = await edits(fleet, sizes, clusters, others, "dead")
    rule.remove()
    return {
        "resources": sizes.many,
        "healthy": healthy,
        "one of them dead": with_dead,
        "slower_by_percent": round((with_dead["seconds"] / healthy["seconds"] - 1) * 100),
    }


async def edits(
    fleet: Distribution, sizes: Sizes, clusters: list[str], others: list[str], word: str
) -> dict[str, Any]:
    names = [f"{word}-{number}" for number in range(sizes.many)]
    cpu, begun = fleet.cpu(), time.monotonic()
    for name in names:
        fleet.create(name, clusters, [name])
    await fleet.until(lambda: all_there(fleet, others, names), PATIENCE)
    waits = [fleet.written[cluster, name] - begun for name in names for cluster in others]
    seconds = max(waits)
    cost = (fleet.cpu() - cpu) / len(waits) * 1e3
    return {
        "seconds": round(seconds, 2),
        "to_the_others": quantiles(waits),
        "cpu_ms_per_object": round(cost, 2),
    }


async def large(fleet: Distribution, clusters: int, objects: int) -> dict[str, Any]:
    """One MultiClusterResource with many objects on many clusters."""
    names = fleet.names[:clusters]
    maps = [f"large-{number}" for number in range(objects)]
    await fleet.start_distributor("large", FLEETBUS_DISTRIBUTOR_TIMEOUT="1h")
    await fleet.quiet()
    fleet.forget_lag()
    cpu, begun = fleet.cpu(), time.monotonic()
    fleet.create("large", names, maps)
    count = clusters * objects
    await fleet.until(lambda: len(fleet.written) >= count, PATIENCE * 4)
    seconds = time.monotonic() - begun
    applied = fleet.cpu() - cpu
    await fleet.until(lambda: fleet.is_ready("large"), PATIENCE)
    figures = {
        "clusters": clusters,
        "objects_each": objects,
        "seconds": round(seconds, 1),
        "objects_per_second": round(count / seconds),
        "seconds_until_ready": round(time.monotonic() - begun, 1),
        "cpu_ms_per_object": round(applied / count * 1e3, 2),
        "event_loop": await fleet.lag(),
        "peak_mb": round(fleet.peak_mb()),
        "ready": fleet.status("large").get("summary"),
    }
    await fleet.stop_distributors()
    return figures


# --- all of them --------------------------------------------------------------------------------


async def measure(sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with scratch_folder("bench") as folder:
        if sizes.many:
            members = max(sizes.clusters, sizes.wide)
            async with distribution(folder / "small", members, watch_members=True) as fleet:
                await measure_small(fleet, sizes, figures)
        for name, shape in large_shapes(sizes).items():
            async with distribution(folder / name, shape[0], watch_members=False) as fleet:
                figures[name] = await large(fleet, *shape)
                if name == "largest":
                    loop = await loop_of_applies(fleet, shape[0], shape[1], 16)
                    figures[name]["loop"] = loop
    return figures


async def measure_small(fleet: Distribution, sizes: Sizes, figures: dict[str, Any]) -> None:
    figures["fresh process"] = await fresh_process(fleet, sizes)
    fleet.delete_all()
    loop = await loop_of_applies(fleet, sizes.wide, sizes.many, sizes.wide)
    for processes in (1, 2):
        key = f"many objects, {processes} process(es)"
        figures[key] = await many_objects(fleet, sizes, processes)
    figures["many objects, 1 process(es)"]["loop"] = loop
    await fleet.start_distributor("steady")
    figures["deleted copies"] = await deleted_copies(fleet, sizes)
    figures["foreign changes"] = await foreign_changes(fleet, sizes)
    figures["idle"] = await idle(fleet, sizes)
    figures["one dead cluster"] = await one_dead_cluster(fleet, sizes)


def large_shapes(sizes: Sizes) -> dict[str, tuple[int, int]]:
    shapes = {
        "many templates": (sizes.templates_clusters, sizes.templates),
        "largest": (sizes.fleet, sizes.fleet_objects),
    }
    return {name: shape for name, shape in shapes.items() if all(shape)}


TARGETS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("fresh process", ("to_all", "p99"), "1000 ms from creation to all clusters"),
    ("fresh process", ("loop, one after the other", "seconds"), ""),
    ("many objects, 1 process(es)", ("objects_per_second",), "400, or the loop beside it"),
    ("many objects, 1 process(es)", ("loop", "objects_per_second"), ""),
    ("many objects, 1 process(es)", ("cpu_ms_per_object",), "the loop beside it"),
    ("many objects, 1 process(es)", ("loop", "cpu_ms_per_object"), ""),
    ("many objects, 1 process(es)", ("requests_per_object",), ""),
    ("many objects, 2 process(es)", ("objects_per_second",), ""),
    ("many objects, 2 process(es)", ("cpu_ms_per_object",), ""),
    ("many objects, 2 process(es)", ("requests_per_object",), ""),
    ("deleted copies", ("back", "p99"), "250 ms"),
    ("foreign changes", ("requests_to_the_others",), "0"),
    ("idle", ("requests_to_targets",), "0"),
    ("idle", ("requests_to_the_hub",), "0"),
    ("one dead cluster", ("slower_by_percent",), "less than 20"),
    ("many templates", ("event_loop", "worst_cpu_ms"), "50 ms"),
    ("many templates", ("event_loop", "over_50_cpu_ms"), "0"),
    ("many templates", ("peak_mb",), ""),
    ("largest", ("seconds",), ""),
    ("largest", ("peak_mb",), ""),
    ("largest", ("objects_per_second",), "the loop beside it"),
    ("largest", ("loop", "objects_per_second"), ""),
)
"""The figures that count, and what they are to be."""


def show(figures: dict[str, Any]) -> None:
    print("| what | figure | target |")
    print("|---|---|---|")
    for name, path, target in TARGETS:
        figures_part: Any = figures.get(name)
        for key in path:
            figures_part = figures_part.get(key) if figures_part else None
        figure = "not measured" if figures_part is None else figures_part
        print(f"| {name}: {', '.join(path)} | {figure} | {target} |")
    print("\n| what | figures |")
    print("|---|---|")
    for name, rows in figures.items():
        for label, value in rows.items():
            print(f"| {name}: {label} | {value} |")


if __name__ == "__main__":
    run_command(measure, show, TINY, uvloop.run)
