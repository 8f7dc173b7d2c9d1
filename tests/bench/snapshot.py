"""Apply and list on a real Valkey, beside the floor of the same run: raw HSETs, raw HMGET + join.

python tests/run.py bench.snapshot [--json]
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from bench.rig.command import run_command
from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot import (
    ClusterRecord,
    ListQuery,
    SnapshotReader,
    SnapshotWriter,
    connect,
)
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

BATCH = 100
PODS = "core/pods"
RANK = Rank("1", 1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    objects: int = 10_000
    rounds: int = 500
    """Rounds of a get; fewer for slower calls."""


TINY = Sizes(objects=200, rounds=1)


class Line(NamedTuple):
    job: str
    p50_ms: float
    per_second: int


def make_body(index: int, version: int) -> bytes:
    """About 3.6 KB, as a pod after its transform."""
    metadata = {
        "name": f"pod-{index}",
        "namespace": f"ns-{index % 20}",
        "uid": f"00000000-0000-0000-0000-{index:012d}",
        "resourceVersion": str(version),
        "labels": {
            "app": f"app-{index % 50}",
            "pod-template-hash": f"{index % 100:010d}",
            "team": f"team-{index % 7}",
            "tier": "web",
        },
        "ownerReferences": [{"uid": f"rs-{index % 100}", "kind": "ReplicaSet", "name": "rs"}],
    }
    spec = {"env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(40)]}
    return msgspec.json.encode({"metadata": metadata, "spec": spec})


def make_event(index: int, version: int) -> Event:
    return Event(
        cluster="eu1",
        incarnation=Incarnation(1, "kube-system"),
        group="core",
        version="v1",
        resource="pods",
        kind="Pod",
        namespace=f"ns-{index % 20}",
        name=f"pod-{index}",
        uid=f"00000000-0000-0000-0000-{index:012d}",
        resource_version=str(version),
        verb=Verb.MODIFIED,
        epoch=RANK,
        observed_at="2026-01-01T00:00:00.000000Z",
        object=make_body(index, version),
    )


async def measure_rounds(
    name: str, rounds: int, per_round: int, run: Callable[[int], Awaitable[object]]
) -> Line:
    """p50 of one round in ms, and what that makes per second."""
    times: list[float] = []
    gc.collect()
    for number in range(rounds):
        start = time.perf_counter()
        await run(number)
        times.append(time.perf_counter() - start)
    p50 = statistics.median(times)
    return Line(name, round(p50 * 1e3, 3), round(per_round / p50))


async def bench_apply(redis: Redis, objects: int) -> list[Line]:
    writer = SnapshotWriter(redis, SnapshotKeys())
    rounds = objects // BATCH

    def batches(version: int) -> list[list[Event]]:
        return [
            [make_event(index, version) for index in range(at, at + BATCH)]
            for at in range(0, objects, BATCH)
        ]

    async def floor(number: int) -> None:
        async with redis.pipeline(transaction=False) as pipe:
            for event in batch[number]:
                pipe.hset("floor", f"{event.namespace}/{event.name}", event.object)
            await pipe.execute()

    async def apply(number: int) -> None:
        await writer.apply(batch[number])

    batch = batches(10)
    lines = [await measure_rounds(f"floor: pipeline of {BATCH} HSET", rounds, BATCH, floor)]
    lines.append(await measure_rounds(f"apply {BATCH} new objects", rounds, BATCH, apply))
    batch = batches(11)
    lines.append(await measure_rounds(f"apply {BATCH} changes", rounds, BATCH, apply))
    lines.append(await measure_rounds(f"apply {BATCH} repeats", rounds, BATCH, apply))
    return lines


async def bench_read(redis: Redis, sizes: Sizes) -> list[Line]:
    reader = SnapshotReader(redis, SnapshotKeys())
    objects, often = sizes.objects, sizes.rounds
    seldom, some = max(often // 100, 1), max(often // 5, 1)
    chosen = objects // 50
    fields = [f"ns-{index % 20}/pod-{index}" for index in range(min(500, objects))]
    page = ListQuery(clusters=["eu1"], resource=PODS, limit=500)
    everything = ListQuery(clusters=["eu1"], resource=PODS)
    equality = ListQuery(
        clusters=["eu1"], resource=PODS, labels=LabelSelector.parse("app=app-1,tier=web")
    )
    residual = ListQuery(clusters=["eu1"], resource=PODS, labels=LabelSelector.parse("app!=app-1"))

    async def floor(_: int) -> bytes:
        bodies = await redis.hmget(SnapshotKeys().bodies("eu1", PODS), fields)
        return b",".join(cast("list[bytes]", bodies))

    async def listed(query: ListQuery) -> bytes:
        return b",".join(entry.body for entry in (await reader.list(query)).entries)

    return [
        await measure_rounds("floor: HMGET 500 + join", some, 500, floor),
        await measure_rounds("list 500 + join", some, 500, lambda _: listed(page)),
        await measure_rounds(
            f"list {objects:,} + join", seldom, objects, lambda _: listed(everything)
        ),
        await measure_rounds(
            f"list {chosen:,} of {objects:,} by labels",
            max(often // 10, 1),
            chosen,
            lambda _: listed(equality),
        ),
        await measure_rounds(
            f"list {objects - chosen:,} of {objects:,} by app!=",
            seldom,
            objects - chosen,
            lambda _: listed(residual),
        ),
        await measure_rounds(
            "get",
            often,
            1,
            lambda n: reader.get("eu1", PODS, f"ns-{n % objects % 20}", f"pod-{n % objects}"),
        ),
    ]


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench") as folder:
        async with valkey_server(dir=folder) as server:
            redis = await connect(server.url)
            writer = SnapshotWriter(redis, SnapshotKeys())
            await writer.ensure_generation()
            await writer.put_cluster("eu1", ClusterRecord(name="eu1"))
            lines = await bench_apply(redis, sizes.objects)
            await redis.unlink("floor")
            lines += await bench_read(redis, sizes)
            used = (await redis.info("memory"))["used_memory"]
            await redis.aclose()
    return {
        "lines": [line._asdict() for line in lines],
        "bytes_per_object": used // sizes.objects,
    }


def show(figures: dict[str, Any]) -> None:
    for line in figures["lines"]:
        print(f"{line['job']:<34} {line['p50_ms']:>9} ms {line['per_second']:>9}/s")
    size = len(make_body(1, 10))
    print(f"memory of an object of {size} bytes: {figures['bytes_per_object']} bytes")


if __name__ == "__main__":
    run_command(measure, show, TINY)
