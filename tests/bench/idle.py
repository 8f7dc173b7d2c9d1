"""Measure a quiet fleet: CPU, wake-ups, requests to the API servers, messages and store calls.

    python tests/run.py bench.idle [--clusters 50] [--seconds 60] [--json]

All parts run as processes of their own: NATS, Valkey, a projector, a pool watcher of all types of
all clusters, and a distributor with MultiClusterResources on all clusters. Nobody changes anything.
The baseline is the emulated API servers' own CPU, which any client that holds watches causes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from bench.rig.command import run_command
from bench.rig.config_maps import config_map
from bench.rig.distribution import MAPS, Distribution, distribution
from bench.rig.pipeline import PODS, make_pod
from bench.rig.processes import cpu_seconds, wake_ups
from fleetbus.bus.connection import Bus, connected
from fleetbus_emulator.apiserver import LoggedRequest
from fleetbus_emulator.scratch import scratch_folder

ALL_TYPES: Final = ("*",)
_PATIENCE: Final = 300.0
_CONNECTIONS: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"
TARGET: Final = 4.0
"""Percent of a core for all parts, with 50 clusters; 0.03 for each further one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 50
    objects: int = 20
    """Pods and ConfigMaps of each cluster, in equal parts."""
    resources: int = 5
    """MultiClusterResources on all clusters."""
    settles: float = 60
    """Seconds without changes before the measurement."""
    seconds: float = 60


TINY = Sizes(clusters=3, objects=2, resources=1, settles=0.5, seconds=1)


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one time; all of them only grow."""

    at: float
    cpu: dict[str, float]
    wake_ups: dict[str, int]
    messages: Counter[str]
    """Received from and sent to the clients of NATS, by the name of their connection."""
    commands: Counter[str]
    clients: int


async def read_usage(fleet: Distribution, bus: Bus) -> Usage:
    stats = await fleet.redis.info("commandstats")
    commands = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    pids = fleet.pids | {"apiservers": os.getpid()}
    messages = await count_messages(bus)
    return Usage(
        at=time.monotonic(),
        cpu={name: cpu_seconds(pid) for name, pid in pids.items()},
        wake_ups={name: wake_ups(pid) for name, pid in pids.items()},
        messages=messages,
        commands=Counter(commands),
        clients=(await fleet.redis.info("stats"))["total_connections_received"],
    )


async def count_messages(bus: Bus) -> Counter[str]:
    answer = await bus.nc.request(_CONNECTIONS)
    counts = Counter[str]()
    for connection in json.loads(answer.data)["data"]["connections"]:
        counts[connection["name"]] += connection["in_msgs"] + connection["out_msgs"]
    return counts


def kind_of(request: LoggedRequest) -> str:
    """Who asks for what, such as `fleetbus-watcher: discovery 304`."""
    sender = request.user_agent.partition("/")[0]
    parts = request.path.strip("/").split("/")
    is_discovery = len(parts) <= {"api": 2, "apis": 3}.get(parts[0], 0)
    verb = "discovery" if is_discovery else request.verb
    return f"{sender}: {verb}{' 304' if request.status == 304 else ''}"


def per_cluster_and_minute(fleet: Distribution, seconds: float) -> dict[str, float]:
    counts = Counter(
        kind_of(each) for name in fleet.names for each in fleet.clusters[name].requests
    )
    return {
        kind: round(count / len(fleet.names) / seconds * 60, 2)
        for kind, count in counts.most_common()
    }


def per_second(counts: Counter[str], seconds: float) -> dict[str, float]:
    return {name: round(count / seconds, 2) for name, count in counts.most_common()}


def describe(before: Usage, after: Usage, fleet: Distribution) -> dict[str, Any]:
    seconds = after.at - before.at
    percent = {n: (after.cpu[n] - before.cpu[n]) / seconds * 100 for n in after.cpu}
    servers = percent.pop("apiservers")
    total = sum(percent.values())
    return {
        "clusters": len(fleet.names),
        "seconds": round(seconds, 1),
        "cpu_percent": {name: round(value, 2) for name, value in percent.items()},
        "cpu_percent_total": round(total, 2),
        "cpu_percent_per_cluster": round(total / len(fleet.names), 4),
        "cpu_percent_of_the_api_servers": round(servers, 2),
        "wake_ups_per_s": {
            n: round((after.wake_ups[n] - before.wake_ups[n]) / seconds, 1) for n in percent
        },
        "requests_per_cluster_and_minute": per_cluster_and_minute(fleet, seconds),
        "nats_messages_per_s": per_second(after.messages - before.messages, seconds),
        "store_commands_per_s": per_second(after.commands - before.commands, seconds),
        "store_connections": after.clients - before.clients,
    }


async def fill(fleet: Distribution, sizes: Sizes) -> None:
    """Apply the MultiClusterResources, and wait until each has its copies."""
    names = [f"idle-{number}" for number in range(sizes.resources)]
    for name in names:
        fleet.create(name, fleet.names, [name])

    await fleet.until(lambda: all(fleet.is_ready(name) for name in names), _PATIENCE)


def create_objects(fleet: Distribution, sizes: Sizes) -> None:
    for name in fleet.names:
        for number in range(sizes.objects // 2):
            fleet.clusters[name].create(PODS, make_pod(number), "default")
            fleet.clusters[name].create(MAPS, config_map(f"own-{number}"), "default")


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench") as folder:
        async with distribution(
            folder, sizes.clusters, watch_members=True, resources=ALL_TYPES
        ) as fleet:
            create_objects(fleet, sizes)
            await fleet.start_distributor("distributor", measures_lag=False)
            await fill(fleet, sizes)
            await fleet.quiet()
            async with connected(fleet.services.nats_url, name="bench") as bus:
                await asyncio.sleep(sizes.settles)
                fleet.forget_requests()
                before = await read_usage(fleet, bus)
                await asyncio.sleep(sizes.seconds)
                after = await read_usage(fleet, bus)
            return describe(before, after, fleet)


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['clusters']} quiet clusters, {figures['seconds']} s")
    print("| part | % of a core | wake-ups/s |\n|---|--:|--:|")
    for name, percent in figures["cpu_percent"].items():
        print(f"| {name} | {percent} | {figures['wake_ups_per_s'][name]} |")
    print(f"| all | {figures['cpu_percent_total']} (target {TARGET:g} with 50 clusters) | |")
    for name in (
        "cpu_percent_per_cluster",
        "cpu_percent_of_the_api_servers",
        "requests_per_cluster_and_minute",
        "nats_messages_per_s",
        "store_commands_per_s",
        "store_connections",
    ):
        print(f"{name}: {figures[name]}")


if __name__ == "__main__":
    run_command(measure, show, TINY, uvloop.run)
