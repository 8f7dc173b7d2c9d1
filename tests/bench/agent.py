"""Calls through an agent beside direct access to the same emulated API server.

    python tests/run.py bench.agent [--json]

The API server, NATS, the agent and this client are processes of their own. CPU is that of all of
them together, per call. Each round asks directly and through the agent in turn, so that both share
whatever else the machine does. A list is of realistic pods, which fill about 6 KB each.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from bench.rig.agent_fleet import kubeconfig
from bench.rig.command import run_command
from bench.rig.counting_relay import counting_relay
from bench.rig.processes import cpu_seconds, forget_peak, peak_mb, process, rss_mb
from fleetbus.agent_calls.calls import AgentCalls, agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import connected
from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto.resources import parse_resource
from support.eventually import eventually
from support.processes.programs import installed, module

PODS = WatchTarget(parse_resource("v1/pods"))
MAPS = "v1/configmaps"
CLUSTER, IDLE = "bench", "idle"
CHECKS = 30.0
"""Seconds between two requests of the projector to each agent."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    applies: int = 300
    """In each of the rounds."""
    rounds: int = 5
    parallel: int = 16
    """Callers at the same time, for the rate."""
    pods: int = 5_000
    lists: int = 3
    idle_seconds: float = 60


TINY = Sizes(applies=10, rounds=1, parallel=4, pods=60, lists=1, idle_seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """Two ways to one API server, and the processes on each of them."""

    direct: KubeClient
    through: KubeClient
    direct_pids: tuple[int, ...]
    agent_pid: int
    nats_pid: int
    calls: AgentCalls
    nats_url: str
    settings: Mapping[str, str]
    """Environment of every agent."""

    @property
    def all_pids(self) -> tuple[int, ...]:
        return (*self.direct_pids, self.agent_pid, self.nats_pid)


@asynccontextmanager
async def open_rig(folder: Path, pods: int) -> AsyncGenerator[Rig]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        servers = await enter(process(module("bench.programs.pod_servers", str(pods), "1")))
        assert servers.stdout is not None
        (url,) = json.loads(await servers.stdout.readline())
        document = kubeconfig(url)
        path = folder / "kubeconfig"
        path.write_text(document)
        nats = await enter(nats_server(store_dir=folder / "nats"))
        settings = {
            "FLEETBUS_AGENT_KUBECONFIG": str(path),
            "FLEETBUS_HEALTH_PORT": "0",
            "FLEETBUS_ALLOW_LOOPBACK": "1",
        }
        agent = await enter(
            process(
                installed("fleetbus-agent"),
                FLEETBUS_AGENT_CLUSTER=CLUSTER,
                FLEETBUS_NATS_URL=nats.url,
                **settings,
            )
        )
        bus = await enter(connected(nats.url, name="bench"))
        calls = await enter(agent_calls(bus, "bench"))
        through = await enter(client_through_agent(calls, CLUSTER))
        direct = await enter(KubeClient(KubeConfig(document, http=True)))
        await eventually(lambda: _answers(through))
        pids = (servers.pid, os.getpid())
        yield Rig(
            direct=direct,
            through=through,
            direct_pids=pids,
            agent_pid=agent.pid,
            nats_pid=nats.child.pid,
            calls=calls,
            nats_url=nats.url,
            settings=settings,
        )


async def _answers(client: KubeClient) -> bool:
    try:
        return bool(await client.get_json("/version"))
    except Unreachable:
        return False


# applies ----------------------------------------------------------------------------------------


async def time_applies(client: KubeClient, count: int, pids: tuple[int, ...]) -> dict[str, float]:
    """One after another: milliseconds, and CPU per call."""
    took: list[float] = []
    before = sum(map(cpu_seconds, pids))
    for number in range(count):
        began = time.perf_counter()
        await client.apply(MAPS, settings(number), field_manager="bench", force=True)
        took.append((time.perf_counter() - began) * 1e3)
    cpu = (sum(map(cpu_seconds, pids)) - before) * 1e3 / count
    return {"p50": statistics.median(took), "p99": sorted(took)[int(len(took) * 0.99)], "cpu": cpu}


def settings(number: int) -> dict[str, Any]:
    data = {f"KEY_{n}": f"some value of a setting {number}" for n in range(8)}
    metadata = {"name": f"c{number % 50}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def apply_rate(client: KubeClient, count: int, parallel: int) -> float:
    """Applies per second of many callers at the same time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await client.apply(MAPS, settings(number), field_manager="bench", force=True)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(parallel)))
    return count / (time.perf_counter() - began)


# lists ------------------------------------------------------------------------------------------


async def list_rate(client: KubeClient) -> float:
    """Megabytes of items per second of an unpaged list, as it is received."""
    size = 0
    began = time.perf_counter()
    async for page in list_pages(client, PODS, limit=0):
        size += sum(len(item) for item in page.items)
    return size / 1e6 / (time.perf_counter() - began)


# the report -------------------------------------------------------------------------------------


async def measure(sizes: Sizes) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        async with open_rig(Path(folder), sizes.pods) as rig:
            figures = await measure_applies(rig, sizes)
            figures |= await measure_lists(rig, sizes)
            figures |= await measure_idle(rig, sizes)
            return figures


async def measure_applies(rig: Rig, sizes: Sizes) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float]]] = {"direct": [], "agent": []}
    rates: dict[str, list[float]] = {"direct": [], "agent": []}
    for _ in range(sizes.rounds):
        for way, client, pids in (
            ("direct", rig.direct, rig.direct_pids),
            ("agent", rig.through, rig.all_pids),
        ):
            rounds[way].append(await time_applies(client, sizes.applies, pids))
            rates[way].append(await apply_rate(client, sizes.applies, sizes.parallel))
    figures: dict[str, Any] = {}
    for way, measured in rounds.items():
        for name in ("p50", "p99", "cpu"):
            figures[f"apply_{name}_{way}"] = statistics.median(each[name] for each in measured)
        figures[f"apply_rate_{way}"] = statistics.median(rates[way])
    return figures


async def measure_lists(rig: Rig, sizes: Sizes) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"direct": [], "agent": []}
    own, agent = rss_mb(), rss_mb(rig.agent_pid)
    forget_peak(rig.agent_pid)
    for _ in range(sizes.lists):
        rates["direct"].append(await list_rate(rig.direct))
        rates["agent"].append(await list_rate(rig.through))
    return {
        "list_direct": statistics.median(rates["direct"]),
        "list_agent": statistics.median(rates["agent"]),
        "list_agent_grown": peak_mb(rig.agent_pid) - agent,
        "list_caller_grown": rss_mb() - own,
        "agent_peak": peak_mb(rig.agent_pid),
    }


async def measure_idle(rig: Rig, sizes: Sizes) -> dict[str, Any]:
    """Another agent, which has only the request of the projector's check."""
    port = urlsplit(rig.nats_url).port
    assert port is not None
    async with (
        counting_relay(port) as relay,
        process(
            installed("fleetbus-agent"),
            FLEETBUS_AGENT_CLUSTER=IDLE,
            FLEETBUS_NATS_URL=f"nats://127.0.0.1:{relay.port}",
            **rig.settings,
        ) as agent,
        client_through_agent(rig.calls, IDLE) as client,
    ):
        await eventually(lambda: _answers(client), timedelta(seconds=60))
        cpu, size, began = cpu_seconds(agent.pid), relay.total, time.monotonic()
        while (left := began + sizes.idle_seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(CHECKS, left))
            await client.get_json("/version")
        seconds = time.monotonic() - began
        return {
            "idle_percent": (cpu_seconds(agent.pid) - cpu) / seconds * 100,
            "idle_bytes": (relay.total - size) / seconds,
            "agent_rss": rss_mb(agent.pid),
        }


def show(figures: dict[str, Any]) -> None:
    print(f"{'':<44}{'direct':>12}{'agent':>12}{'difference':>14}{'target':>12}")
    for name, key, target in (
        ("an apply, p50, ms", "apply_p50", "<= +3"),
        ("an apply, p99, ms", "apply_p99", ""),
        ("an apply, CPU of all parts, ms", "apply_cpu", "<= +1.5"),
    ):
        direct, agent = figures[f"{key}_direct"], figures[f"{key}_agent"]
        print(f"{name:<44}{direct:>12.2f}{agent:>12.2f}{agent - direct:>+14.2f}{target:>12}")
    for name, key, target in (
        ("applies of many callers, per second", "apply_rate", ">= 0.7 x"),
        ("a list of pods, MB/s", "list", ">= 0.5 x"),
    ):
        direct, agent = figures[f"{key}_direct"], figures[f"{key}_agent"]
        print(f"{name:<44}{direct:>12.1f}{agent:>12.1f}{agent / direct:>12.2f} x{target:>12}")
    for name, key, target in (
        ("the agent while it lists: more memory, MB", "list_agent_grown", "<= 16"),
        ("the agent: memory, at most, MB", "agent_peak", "<= 70"),
        ("an idle agent: % of a core", "idle_percent", "<= 0.3"),
        ("an idle agent: bytes per second on NATS", "idle_bytes", "<= 1000"),
        ("an idle agent: memory, MB", "agent_rss", ""),
    ):
        print(f"{name:<44}{'':>12}{figures[key]:>12.2f}{'':>14}{target:>12}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
