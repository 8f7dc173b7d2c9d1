"""Many agents: a distribution through them, a thousand that are idle, and all that reconnect.

    python tests/run.py bench.agents [--clusters 100] [--idle 1000] [--json]

All parts run on this machine. The agents share processes, but each has a connection, a gateway and
an account of its own, as the product renders it, on the NATS of the chart with TLS; only for the
distribution and the header it is without TLS, and for the former without accounts. Baselines of
the same run: for the distribution, direct access to the same emulated API servers; for the header
that an account adds to each answer, a NATS without accounts.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench.distributor import PATIENCE, all_there, quantiles
from bench.rig.agent_fleet import AgentsNats, agent_processes, agents_nats
from bench.rig.command import run_command
from bench.rig.counting_relay import counting_relay
from bench.rig.distribution import HUB, Distribution, distribution
from bench.rig.processes import cpu_seconds, rss_mb
from fleetbus.agent_calls.calls import agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.kube.client import KubeClient
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_devfleet.stack.register import only_context
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.subjects import answers_subject
from fleetbus_reconciler.for_each import for_each
from support.eventually import eventually
from support.rigs.agent_callers import Outcomes, calling

CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
CHECKS = 30.0
"""Seconds between two requests of the projector to each agent."""
PAUSE = 0.5
"""Seconds between two calls to a cluster while its agent is connected."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 100
    """Clusters of one MultiClusterResource with one object."""
    runs: int = 3
    """Each with a fresh process, for each way."""
    idle: int = 1_000
    """Agents on one server."""
    idle_seconds: float = 120
    reconnecting: int = 100
    """Agents that lose their server at once."""
    processes: int = 4
    """Processes that run the agents."""
    answers: int = 20_000
    """Answers for the cost of their header."""


TINY = Sizes(clusters=4, runs=1, idle=4, idle_seconds=0.5, reconnecting=4, processes=2, answers=100)


# --- one MultiClusterResource -------------------------------------------------------------------


async def measure_distribution(folder: Path, sizes: Sizes) -> dict[str, Any]:
    async with distribution(folder, sizes.clusters, watch_members=True) as fleet:
        for name in fleet.names:
            fleet.hub.create(CLUSTERS, {"metadata": {"name": name}, "spec": {"access": "Agent"}})
        figures = {"direct": await fresh_processes(fleet, "direct", sizes.runs)}
        urls = {name: fleet.servers.url(name) for name in fleet.names}
        async with agent_processes(
            folder, urls, processes=sizes.processes, FLEETBUS_NATS_URL=fleet.services.nats_url
        ):
            providers = providers_of_agents(fleet)
            figures["agents"] = await fresh_processes(
                fleet, "agents", sizes.runs, FLEETBUS_PROVIDERS=providers
            )
    return figures


def providers_of_agents(fleet: Distribution) -> str:
    """The hub by its kubeconfig, and its Cluster objects, whose access is an agent."""
    path = fleet.folder / "hub"
    document = yaml.load(fleet.services.kubeconfig.read_text(), yaml.CSafeLoader)
    path.write_text(json.dumps(only_context(document, HUB)))
    return json.dumps([{"type": "kubeconfig", "paths": [str(path)]}, {"type": "cluster"}])


async def fresh_processes(
    fleet: Distribution, way: str, runs: int, **environment: str
) -> dict[str, Any]:
    """One MultiClusterResource to all clusters, by processes that have never asked them."""
    waits, ends, costs = list[float](), list[float](), list[float]()
    for run in range(runs):
        name = f"{way}-{run}"
        await fleet.start_distributor(f"distributor-{name}", measures_lag=False, **environment)
        await fleet.quiet()
        cpu, begun = fleet.cpu(), time.monotonic()
        fleet.create(name, fleet.names, [name])
        await fleet.until(lambda n=name: all_there(fleet, fleet.names, [n]), PATIENCE)
        ended = [fleet.written[each, name] - begun for each in fleet.names]
        waits += ended
        ends.append(max(ended))
        await fleet.quiet()
        costs.append((fleet.cpu() - cpu) / len(fleet.names))
        await fleet.stop_distributors()
    return {
        "to_each_cluster": quantiles(waits),
        "to_all": quantiles(ends),
        "cpu_ms_per_object": round(statistics.median(costs) * 1e3, 2),
    }


# --- idle agents --------------------------------------------------------------------------------


async def measure_idle(folder: Path, sizes: Sizes) -> dict[str, Any]:
    names = [f"c{number:04}" for number in range(sizes.idle)]
    async with (
        serve([Cluster("idle")]) as servers,
        agents_nats(folder / "nats", names) as nats,
        counting_relay(nats.port) as relay,
        connected(nats.login.access("projector"), name="projector") as bus,
        agent_calls(bus, "projector") as calls,
        AsyncExitStack() as stack,
    ):
        nothing = rss_mb(nats.child.pid)
        environment = nats_environment(nats) | {
            "FLEETBUS_NATS_URL": f"tls://127.0.0.1:{relay.port}"
        }
        urls = dict.fromkeys(names, servers.url("idle"))
        processes = agent_processes(
            folder, urls, processes=sizes.processes, nkeys=nats.nkeys, **environment
        )
        pids = await stack.enter_async_context(processes)
        clients = [
            await stack.enter_async_context(client_through_agent(calls, name)) for name in names
        ]
        await for_each(clients, check)  # the first time each reads the UID of its cluster
        before = await sample(nats, pids)
        sent, received, began = relay.sent, relay.received, time.monotonic()
        while (left := began + sizes.idle_seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(CHECKS, left))
            await for_each(clients, check)
        seconds = time.monotonic() - began
        after = await sample(nats, pids)
        used = {key: (after[key] - before[key]) / seconds for key in before}
        wire = (relay.sent - sent + relay.received - received) / seconds
        return {
            "agents": sizes.idle,
            "connections": (await nats.monitor("/varz"))["connections"],
            "nats_mb_without_agents": round(nothing, 1),
            "nats_mb": round(rss_mb(nats.child.pid), 1),
            "nats_kb_per_agent": round((rss_mb(nats.child.pid) - nothing) * 1024 / sizes.idle, 1),
            "nats_cpu_percent": round(used["nats"] * 100, 2),
            "agents_cpu_percent_each": round(used["agents"] * 100 / sizes.idle, 3),
            "messages_per_second": round(used["messages"], 1),
            "bytes_per_second": round(wire),
            "bytes_per_second_per_agent": round(wire / sizes.idle, 1),
        }


def nats_environment(nats: AgentsNats) -> dict[str, str]:
    return {"FLEETBUS_NATS_CA_FILE": str(nats.login.ca)}


async def check(client: KubeClient) -> None:
    """The request of the projector's check."""
    await client.get_json("/version")


async def sample(nats: AgentsNats, pids: Sequence[int]) -> dict[str, float]:
    state = await nats.monitor("/varz")
    return {
        "nats": cpu_seconds(nats.child.pid),
        "agents": sum(map(cpu_seconds, pids)),
        "messages": state["in_msgs"] + state["out_msgs"],
    }


# --- all reconnect ------------------------------------------------------------------------------


async def measure_reconnect(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The server is killed and started again during calls to every agent."""
    names = [f"c{number:04}" for number in range(sizes.reconnecting)]
    clusters = [Cluster(name, requests_capacity=100_000) for name in names]
    async with (
        serve(clusters) as servers,
        agents_nats(folder / "nats", names) as nats,
        connected(nats.login.access("distributor"), name="distributor") as bus,
        agent_calls(bus, "distributor") as calls,
        AsyncExitStack() as stack,
    ):
        environment = nats_environment(nats) | {"FLEETBUS_NATS_URL": nats.login.address}
        urls = {name: servers.url(name) for name in names}
        processes = agent_processes(
            folder, urls, processes=sizes.processes, nkeys=nats.nkeys, **environment
        )
        await stack.enter_async_context(processes)
        clients = {
            name: await stack.enter_async_context(client_through_agent(calls, name))
            for name in names
        }
        async with calling(clients, "m", pause=PAUSE) as outcomes:
            await eventually(lambda: all(len(each.answered) >= 3 for each in outcomes.values()))
            nats.child.kill()
            killed = time.monotonic()
            nats.child.respawn()
            await eventually(lambda: nats.monitor("/varz"))
            started = time.monotonic() - killed
            answered = {name: len(each.answered) for name, each in outcomes.items()}
            served = await first_answers(outcomes, answered, killed)
        for cluster in clusters:
            outcomes[cluster.name].check(cluster)
    every = outcomes.values()
    return {
        "agents": sizes.reconnecting,
        "server_back_ms": round(started * 1e3),
        "serve_again": quantiles(served.values()),
        "calls": sum(len(each.begun) for each in every),
        "not_sent": sum(len(each.not_sent) for each in every),
        "unknown": sum(len(each.unknown) for each in every),
        "without_an_outcome": sum(len(each.begun - each.answered - each.failed) for each in every),
    }


async def first_answers(
    outcomes: Mapping[str, Outcomes], answered: Mapping[str, int], since: float
) -> dict[str, float]:
    """The seconds until a further call to each cluster was answered."""
    served: dict[str, float] = {}
    while len(served) < len(outcomes):
        for name, each in outcomes.items():
            if name not in served and len(each.answered) > answered[name]:
                served[name] = time.monotonic() - since
        if time.monotonic() > since + PATIENCE:
            raise RuntimeError(f"{len(outcomes) - len(served)} agents have not come back")
        await asyncio.sleep(0.005)
    return served


# --- the header of an account -------------------------------------------------------------------


async def measure_header(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Small answers of an agent, with its account and on a server without accounts."""
    figures: dict[str, Any] = {}
    async with agents_nats(folder / "accounts", ["eu1"], is_tls=False) as nats:
        nkey = SecretFile("FLEETBUS_NATS_NKEY_FILE", nats.nkeys["eu1"])
        agent = NatsAccess(url=nats.login.address, nkey=nkey)
        async with (
            connected(nats.login.access("distributor"), name="distributor") as hub,
            connected(agent, name="agent.eu1") as bus,
        ):
            figures["account"] = await send_answers(bus, hub, nats.child.pid, sizes.answers)
    async with (
        nats_server(store_dir=folder / "plain") as nats,
        connected(nats.url, name="distributor") as hub,
        connected(nats.url, name="agent.eu1") as bus,
    ):
        figures["none"] = await send_answers(bus, hub, nats.pid, sizes.answers)
    return figures


async def send_answers(agent: Bus, hub: Bus, pid: int, count: int) -> dict[str, float]:
    """Send answers of 200 bytes; the CPU and the bytes of each."""
    received = header = 0

    async def take(message: Any) -> None:
        nonlocal received, header
        fields: dict[str, str] = message.headers or {}
        received += 1
        header += sum(len(key) + len(value) + 4 for key, value in fields.items())

    call_id = "distributor.bench.1"
    subject, body = answers_subject("eu1", call_id), bytes(200)
    async with subscribed(hub, f"fleetbus.answers.*.{call_id}", take):
        await hub.nc.flush()
        server, client = cpu_seconds(pid), time.process_time()
        sent = 0
        while sent < count:
            for _ in range(100):
                agent.publish_directly(subject, body)
            sent += 100
            await eventually(lambda: received == sent)  # noqa: B023
        return {
            "server_us": round((cpu_seconds(pid) - server) / sent * 1e6, 1),
            "both_clients_us": round((time.process_time() - client) / sent * 1e6, 1),
            "header_bytes": round(header / sent, 1),
        }


# --- all of them --------------------------------------------------------------------------------


async def measure(sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {"load": os.getloadavg()[0]}
    with scratch_folder("bench") as folder:
        figures["header"] = await measure_header(folder / "header", sizes)
        figures["distribution"] = await measure_distribution(folder / "fleet", sizes)
        figures["reconnect"] = await measure_reconnect(folder / "reconnect", sizes)
        figures["idle"] = await measure_idle(folder / "idle", sizes)
    return figures


TARGETS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("distribution", ("agents", "to_all", "p99"), "1500 ms from creation to all clusters"),
    ("distribution", ("direct", "to_all", "p99"), "500 ms"),
    ("distribution", ("agents", "cpu_ms_per_object"), ""),
    ("distribution", ("direct", "cpu_ms_per_object"), ""),
    ("idle", ("connections",), ""),
    ("idle", ("nats_mb",), ""),
    ("idle", ("nats_kb_per_agent",), ""),
    ("idle", ("nats_cpu_percent",), ""),
    ("idle", ("agents_cpu_percent_each",), "0.3"),
    ("idle", ("messages_per_second",), ""),
    ("idle", ("bytes_per_second",), ""),
    ("idle", ("bytes_per_second_per_agent",), "1000"),
    ("reconnect", ("server_back_ms",), ""),
    ("reconnect", ("serve_again", "p50"), ""),
    ("reconnect", ("serve_again", "max"), ""),
    ("reconnect", ("calls",), ""),
    ("reconnect", ("not_sent",), ""),
    ("reconnect", ("unknown",), ""),
    ("reconnect", ("without_an_outcome",), "0"),
    ("header", ("account", "header_bytes"), ""),
    ("header", ("account", "server_us"), "those of none beside it"),
    ("header", ("none", "server_us"), ""),
    ("header", ("account", "both_clients_us"), "those of none beside it"),
    ("header", ("none", "both_clients_us"), ""),
)
"""The figures that count, and what they are to be."""


def show(figures: dict[str, Any]) -> None:
    print(f"load at the beginning: {figures['load']:.1f}\n")
    print("| what | figure | target |")
    print("|---|---|---|")
    for name, path, target in TARGETS:
        figure: Any = figures[name]
        for key in path:
            figure = figure[key]
        print(f"| {name}: {', '.join(path)} | {figure} | {target} |")


if __name__ == "__main__":
    run_command(measure, show, TINY, uvloop.run)
