"""The watchers of many clusters in one process, for the benchmark of a large fleet.

python tests/run.py bench.programs.fleet_generator PLAN.json

It lists every cluster, and changes objects at a steady rate from SIGUSR1 on. When it is stopped it
writes what it has sent, and the versions of the sampled objects, beside the plan.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from nats.aio.msg import Msg

from bench.rig.generated_cluster import Connections, GeneratedCluster, Sent, Shape
from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import open_window
from fleetbus.process.lifecycle import run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus_proto.subjects import CONTROL_GRANTS

_TICK = 0.005
_AT_ONCE = 500
_LISTS_AT_ONCE = 64
"""As eight processes of the pool: more than the projector grants at once."""
_CONTROL = "fleetbus.control.*"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The clusters, and the changes to make."""

    nats_url: str
    clusters: dict[str, str]
    """Each with the UID of its kube-system."""
    rate: float
    objects: int
    """Objects of each cluster."""
    bytes: int
    sampled_every: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that were sent."""

    changes: int
    listed: int
    lists: int
    failed: int
    retries: int
    late: list[tuple[float, float]]
    versions: dict[str, list[tuple[str, str, str]]]
    """For each cluster: namespace, name and version of the sampled objects."""


def report_path(plan: Path) -> Path:
    """Where the report of a plan is."""
    return plan.with_suffix(".report")


async def send_changes(clusters: Sequence[GeneratedCluster], rate: float) -> None:
    """Change an object of each cluster in turn; what is late keeps its planned time."""
    begun, done = time.time(), 0
    while True:
        due = min(int((time.time() - begun) * rate), done + _AT_ONCE)
        for index in range(done, due):
            cluster = clusters[index % len(clusters)]
            if cluster.is_watching:
                await cluster.change(begun + (index + 1) / rate)
        done = due
        await asyncio.sleep(_TICK)


async def generate(bus: Bus, plan: Plan, sent: Sent, clusters: list[GeneratedCluster]) -> None:
    shape = Shape(objects=plan.objects, bytes=plan.bytes, sampled_every=plan.sampled_every)
    begin = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin.set)
    slots = asyncio.Semaphore(_LISTS_AT_ONCE)
    async with open_window(bus) as changes, open_window(bus) as lists:
        shared = Connections(bus=bus, kv=KeyValue(bus), changes=changes, lists=lists, slots=slots)
        for name, uid in plan.clusters.items():
            clusters.append(GeneratedCluster(name, uid, shape, shared, sent))
        of_name = {cluster.name: cluster for cluster in clusters}
        gc.freeze()

        async def on_control(message: Msg) -> None:
            if cluster := of_name.get(message.subject.rpartition(".")[2]):
                cluster.wake(is_about_grants=message.data == CONTROL_GRANTS)

        async with subscribed(bus, _CONTROL, on_control), asyncio.TaskGroup() as group:
            for cluster in clusters:
                group.create_task(cluster.run(), name=cluster.name)
            await begin.wait()
            if plan.rate:
                await send_changes(clusters, plan.rate)


def write_report(path: Path, sent: Sent, clusters: Sequence[GeneratedCluster]) -> None:
    report = Report(
        changes=sent.changes,
        listed=sent.listed,
        lists=sent.lists,
        failed=sent.failed,
        retries=sent.retries,
        late=sent.late,
        versions={cluster.name: cluster.objects.sampled_versions() for cluster in clusters},
    )
    path.write_bytes(msgspec.json.encode(report))


async def main(path: Path) -> None:
    plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    sent, clusters = Sent(), list[GeneratedCluster]()
    set_up_logs("text", "warning")
    async with connected(plan.nats_url, name="generator") as bus:
        await run_until_stopped(generate=generate(bus, plan, sent, clusters))
    write_report(report_path(path), sent, clusters)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
