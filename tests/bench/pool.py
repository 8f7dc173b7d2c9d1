"""The pool under load: members join, leave politely and are killed; what each change costs.

    python tests/run.py bench.pool [--json] [--clusters 200] [--rate 200]

Clusters and NATS run beside the watchers, each of which is a process with its default timers. At
the end the stream's last state of every object is compared with the API servers'. A cluster has no
owner while its lease names a member that is dead; it has no watch while its API server has none
open; a change is late by the time from the API server to a subscriber of the stream.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.rig.command import run_command
from bench.rig.processes import rss_mb
from fleetbus.bus.connection import Bus, NoAnswer, connected, subscribed
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import KV_POOL_LEASES
from fleetbus_watcher.pool.records import PoolStore
from support.processes.programs import installed
from support.rigs.watcher import Stored, mirror, read_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.msg import Msg

NAMESPACE = "fleet"
PROVIDER = {"type": "secrets", "namespace": NAMESPACE}
RESOURCES = {"configmaps": "v1/configmaps", "services": "v1/services"}
PATIENCE = timedelta(seconds=60)
SETTLES_WITHIN = timedelta(seconds=300)
LOOK = 0.2
TARGETS = {"owner_seconds": 10.0, "lost": 0, "repeated": 0, "unevenness": 1.3}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    clusters: int = 200
    rate: float = 200
    """Changes per second, in all."""
    members: int = 3
    changes: int = 5
    """Changes of the membership."""
    lease: float = 5
    """Seconds after which a silent member is replaced."""
    calm: float = 3
    """Seconds in which nothing moves before the pool is settled."""


TINY = Sizes(clusters=6, rate=20, members=2, changes=2, lease=1, calm=0.5)


@dataclass
class Fleet:
    """The clusters, and what the bench knows of each."""

    clusters: dict[str, Cluster]
    servers: ApiServers
    bus: Bus
    folder: Path
    nats_url: str
    sizes: Sizes
    # When each change was made: (cluster, resource, name, version) → monotonic seconds.
    written: dict[tuple[str, str, str, str], float] = field(
        default_factory=dict[tuple[str, str, str, str], float]
    )
    # Of the present phase.
    late: float = 0.0
    unwatched: float = 0.0
    members: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )
    # When each lease was last written by somebody, and by whom.
    leases: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])

    async def owners(self) -> dict[str, str]:
        while True:
            with suppress(NoAnswer):  # on a busy machine we are slow as well
                leases = await PoolStore(self.bus, KeyValue(self.bus)).leases()
                return {name: lease.member for name, lease in leases.items()}


# --- members ----------------------------------------------------------------------------------


async def start_member(fleet: Fleet, name: str) -> None:
    environment = {
        "FLEETBUS_NATS_URL": fleet.nats_url,
        "FLEETBUS_PROVIDERS": json.dumps([PROVIDER]),
        "FLEETBUS_HUB_KUBECONFIG": str(fleet.folder / "kubeconfig"),
        "FLEETBUS_HUB_CONTEXT": "hub",
        "FLEETBUS_WATCHER_RESOURCES": json.dumps(list(RESOURCES)),
        "FLEETBUS_WATCHER_POOL_LEASE": f"{fleet.sizes.lease}s",
        "FLEETBUS_WATCHER_GRANT_PATIENCE": "0s",  # there is no projector to ask
        "FLEETBUS_LOG_LEVEL": "warning",
    }
    with (fleet.folder / f"{name}.log").open("wb") as log:
        fleet.members[name] = await asyncio.create_subprocess_exec(
            *installed("fleetbus-watcher", "--pool", "--replica", name),
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        )


async def end_member(fleet: Fleet, name: str) -> None:
    member = fleet.members.pop(name)
    if member.returncode is None:
        member.terminate()
    await member.wait()


# --- load, and what is seen of it -------------------------------------------------------------


async def churn(fleet: Fleet, rate: float, seed: int) -> None:
    """Creates, changes and deletions in all clusters, evenly spread over time."""
    chance = random.Random(seed)
    begun, count, loop = time.monotonic(), 0, asyncio.get_running_loop()
    names = list(fleet.clusters)
    while True:
        due = int((time.monotonic() - begun) * rate)
        for _ in range(min(due - count, 50)):
            _change(fleet, names[count % len(names)], chance, loop.time())
            count += 1
        await asyncio.sleep(0.005)


def _change(fleet: Fleet, cluster: str, chance: random.Random, now: float) -> None:
    changed_cluster, plural = fleet.clusters[cluster], chance.choice(list(RESOURCES))
    gvr, name = RESOURCES[plural], f"o-{chance.randrange(5)}"
    body: dict[str, Any] = {"metadata": {"name": name, "annotations": {"at": str(now)}}}
    if plural == "services":
        body["spec"] = {"ports": [{"port": 80}]}
    if changed_cluster.get(gvr, "default", name) is None:
        version = changed_cluster.create(gvr, body, "default")["metadata"]["resourceVersion"]
    elif chance.random() < 0.2:
        changed_cluster.delete(gvr, "default", name)
        return
    else:
        changed = changed_cluster.patch(gvr, "default", name, {"metadata": body["metadata"]})
        version = changed["metadata"]["resourceVersion"]
    fleet.written[cluster, plural, name, version] = now


async def watch_watches(fleet: Fleet) -> None:
    """Return how long any cluster has a resource that nobody watches."""
    loop = asyncio.get_running_loop()
    since: dict[str, float] = {}
    while True:
        now = loop.time()
        for name, cluster in fleet.clusters.items():
            if cluster.open_watches < len(RESOURCES):
                fleet.unwatched = max(fleet.unwatched, now - since.setdefault(name, now))
            else:
                since.pop(name, None)
        await asyncio.sleep(0.02)


@asynccontextmanager
async def observed(fleet: Fleet) -> AsyncGenerator[None]:
    """Record every event and every lease, with the time of arrival."""
    loop = asyncio.get_running_loop()

    async def on_event(message: Msg) -> None:
        try:
            event = codec.decode(message.data)
        except MalformedMessage:
            return
        if isinstance(event, Event):
            key = (event.cluster, event.resource, event.name, event.resource_version)
            written = fleet.written.pop(key, None)
            if written is not None:
                fleet.late = max(fleet.late, loop.time() - written)

    def on_lease(key: str, value: bytes) -> None:
        if value:
            member = json.loads(value)["member"]
            fleet.leases[key.removeprefix(f"{KV_POOL_LEASES}.")] = (member, loop.time())

    async with (
        subscribed(fleet.bus, "fleetbus.events.>", on_event),
        KeyValue(fleet.bus).follow(KV_POOL_LEASES, on_lease),
    ):
        yield


# --- phases -----------------------------------------------------------------------------------


@dataclass
class Phase:
    """One change of the membership, until the pool is settled again."""

    name: str
    members: int
    unevenness: float = 0.0
    settled_seconds: float = 0.0
    ownerless_seconds: float = 0.0
    unwatched_seconds: float = 0.0
    late_seconds: float = 0.0
    moved: int = 0
    rss_mb: float = 0.0


async def run_phase(fleet: Fleet, name: str, action: Any, *, killed: str = "") -> Phase:
    """Do something to the membership under load, and wait until everything has settled."""
    loop = asyncio.get_running_loop()
    fleet.late = fleet.unwatched = 0.0
    before = await fleet.owners()
    begun = loop.time()
    await action
    async with asyncio.timeout(SETTLES_WITHIN.total_seconds()):
        while not (settled := await _settled(fleet)):  # noqa: ASYNC110 -- many things settle
            await asyncio.sleep(LOOK)
    phase = Phase(name, len(fleet.members), settled_seconds=loop.time() - fleet.sizes.calm - begun)
    after = await fleet.owners()
    gaps = [at - begun for n, (_, at) in fleet.leases.items() if killed and before[n] == killed]
    phase.ownerless_seconds = max(gaps, default=0.0)
    phase.unevenness = max(Counter(settled.values()).values()) / (len(after) / len(fleet.members))
    phase.moved = sum(before.get(cluster) != member for cluster, member in after.items())
    phase.unwatched_seconds, phase.late_seconds = fleet.unwatched, fleet.late
    phase.rss_mb = max(rss_mb(member.pid) for member in fleet.members.values())
    print(phase, file=sys.stderr)
    return phase


async def _settled(fleet: Fleet) -> dict[str, str]:
    """The owners, once every member has some, each resource is watched once, and nothing moves."""
    quiet_since = max((at for _, at in fleet.leases.values()), default=0.0)
    if asyncio.get_running_loop().time() < quiet_since + fleet.sizes.calm:
        return {}
    if any(c.open_watches != len(RESOURCES) for c in fleet.clusters.values()):
        return {}
    owners = await fleet.owners()
    is_shared = owners.keys() == fleet.clusters.keys() and set(owners.values()) == set(
        fleet.members
    )
    # A busy machine may pause in the middle of a hand-over; with less than an even share of the
    # moves made it has not settled.
    most = max(Counter(owners.values()).values(), default=0)
    is_even = most * len(fleet.members) <= TARGETS["unevenness"] * len(fleet.clusters)
    return owners if is_shared and is_even else {}


async def kill_member(fleet: Fleet, name: str) -> None:
    member = fleet.members.pop(name)
    member.kill()
    await member.wait()


async def run_phases(fleet: Fleet) -> list[Phase]:
    sizes = fleet.sizes
    first = [start_member(fleet, f"w-{number}") for number in range(sizes.members)]
    phases = [await run_phase(fleet, f"{sizes.members} members start", asyncio.gather(*first))]
    changes = (
        ("one more joins", lambda: start_member(fleet, "w-3"), ""),
        ("one is killed", lambda: kill_member(fleet, "w-1"), "w-1"),
        ("another joins", lambda: start_member(fleet, "w-4"), ""),
        ("one is stopped", lambda: end_member(fleet, "w-0"), ""),
        ("one is killed", lambda: kill_member(fleet, "w-3"), "w-3"),
    )
    loaded = [
        asyncio.create_task(churn(fleet, sizes.rate, seed=1)),
        asyncio.create_task(watch_watches(fleet)),
    ]
    try:
        await asyncio.sleep(sizes.calm)
        for name, change, killed in changes[: sizes.changes]:
            phases.append(await run_phase(fleet, name, change(), killed=killed))
    finally:
        for task in loaded:
            task.cancel()
        await asyncio.gather(*loaded, return_exceptions=True)
    return phases


# --- the end ----------------------------------------------------------------------------------


async def compare(fleet: Fleet) -> dict[str, int]:
    """Count lost, repeated and surplus messages of the stream, once the clusters are quiet."""
    stored, last = await _reported(fleet)
    for _ in range(5):  # the last changes may be under way
        if last["lost"]:
            await asyncio.sleep(fleet.sizes.calm)
            stored, last = await _reported(fleet)
    ids = Counter(each.headers["Nats-Msg-Id"] for each in stored)
    lists = sum(isinstance(each.message, EpochEnd) for each in stored)
    return last | {
        "events": sum(isinstance(each.message, Event) for each in stored),
        "repeated": sum(count - 1 for count in ids.values()),
        "extra_lists": lists - len(fleet.clusters) * len(RESOURCES),
    }


async def _reported(fleet: Fleet) -> tuple[list[Stored], dict[str, int]]:
    stored = await read_stream(fleet.bus, PATIENCE)
    return stored, _lost(fleet, stored)


def _lost(fleet: Fleet, stored: list[Stored]) -> dict[str, int]:
    by_place: dict[tuple[str, str], list[Any]] = {}
    for each in stored:
        if isinstance(each.message, (Event, EpochEnd)):
            message = each.message
            by_place.setdefault((message.cluster, message.resource), []).append(message)
    lost = objects = 0
    for name, cluster in fleet.clusters.items():
        for plural, gvr in RESOURCES.items():
            truth = {
                obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
                for obj in cluster.list(gvr)
            }
            reported = mirror(by_place.get((name, plural), []))
            objects += len(truth)
            lost += len(set(truth.items()) ^ set(reported.items()))
    return {"objects": objects, "lost": lost}


# --- the bench --------------------------------------------------------------------------------


@asynccontextmanager
async def open_fleet(folder: Path, sizes: Sizes) -> AsyncGenerator[Fleet]:
    hub = Cluster("hub")
    hub.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    clusters = {
        f"cluster-{number:03}": Cluster(f"cluster-{number:03}") for number in range(sizes.clusters)
    }
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        servers = await stack.enter_async_context(serve([hub, *clusters.values()]))
        bus = await stack.enter_async_context(connected(server.url, name="bench"))
        await ensure_stream(bus)
        await ensure_bucket(bus)
        hub_only = {"current-context": "hub"} | servers.kubeconfig()
        (folder / "kubeconfig").write_text(json.dumps(hub_only))
        fleet = Fleet(clusters, servers, bus, folder, server.url, sizes)
        for name in clusters:
            hub.create("v1/secrets", _secret(fleet, name), NAMESPACE)
        await stack.enter_async_context(observed(fleet))
        try:
            yield fleet
        finally:
            await asyncio.gather(*[end_member(fleet, name) for name in list(fleet.members)])


def _secret(fleet: Fleet, name: str) -> dict[str, Any]:
    kubeconfig = fleet.servers.kubeconfig()
    parts = {
        section: [e for e in kubeconfig[section] if e["name"] == name]
        for section in ("clusters", "contexts")
    }
    users = [context["context"]["user"] for context in parts["contexts"]]
    own_users = {"users": [user for user in kubeconfig.get("users", []) if user["name"] in users]}
    document = kubeconfig | parts | own_users | {"current-context": name}
    return {
        "metadata": {"name": name, "labels": {"fleetbus.dev/kubeconfig": "true"}},
        "data": {"kubeconfig": base64.b64encode(json.dumps(document).encode()).decode()},
    }


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench-pool") as folder:
        async with open_fleet(folder, sizes) as fleet:
            phases = await run_phases(fleet)
            compared = await compare(fleet)
    report: dict[str, Any] = {
        "clusters": sizes.clusters,
        "rate": sizes.rate,
        "phases": [vars(phase) for phase in phases],
        "owner_seconds": max(phase.ownerless_seconds for phase in phases),
        "unwatched_seconds": max(phase.unwatched_seconds for phase in phases[1:]),
        "unevenness": max(phase.unevenness for phase in phases),
        **compared,
    }
    report["missed"] = [name for name, limit in TARGETS.items() if report[name] > limit]
    return report


def show(report: dict[str, Any]) -> None:
    columns = ("members", "moved", "unevenness", "settled_seconds", "ownerless_seconds")
    columns += ("unwatched_seconds", "late_seconds", "rss_mb")
    heads = [
        name.removesuffix("_seconds") + (", s" * name.endswith("_seconds")) for name in columns
    ]
    print(
        f"{report['clusters']} clusters, {report['rate']:g}/s".ljust(22),
        *(f"{h:>13}" for h in heads),
    )
    for phase in report["phases"]:
        figures = [phase[name] for name in columns]
        shown = [f"{f:>13.2f}" if isinstance(f, float) else f"{f:>13}" for f in figures]
        print(phase["name"].ljust(22), *shown)
    for name, limit in TARGETS.items():
        result = "MISSED" if name in report["missed"] else "ok"
        print(f"{name:22}{report[name]:>12.2f}   target <= {limit:<6g} {result}")
    for name in ("unwatched_seconds", "objects", "events", "extra_lists"):
        print(f"{name:22}{report[name]:>12.2f}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
