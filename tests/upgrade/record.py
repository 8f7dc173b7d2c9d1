"""Record the stored state of this release: `python tests/run.py upgrade.record`, once per release.

It starts a fleet of three clusters, one of them behind an agent, gives every store something to
hold, stops every process where it is, and writes all of it into `tests/upgrade/recorded/<version>`:

    state.jsonl.gz      the store, the streams and the bucket, objects, frames of agents' calls
    fleet.capture.gz    a capture of the fleet
    archive/            the archive of its events

From then on every release must read it: `tests/upgrade/test_recorded.py`. Names and counts are the
same in each recording; times, UIDs, ports and nkeys are not. The fleet lives for a minute, so its
nkeys and tokens open nothing. A recording of a released version is never made anew.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, record_secret
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_agent.enrolment.seeds import SeedSecret
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.keys import KV_BUCKET, SnapshotKeys
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM
from release.versions import version
from support.eventually import eventually
from support.processes.programs import installed
from upgrade import recorded_controllers
from upgrade.recorded_controllers import FAILS, HANGS, LATER, MAPS, WELL
from upgrade.recording import (
    ARCHIVE,
    CAPTURE,
    RECORDED,
    STATE,
    Frame,
    Header,
    Line,
    Message,
    Stored,
    Stream,
    read_headers,
    read_keys,
    write_state,
)

CLUSTERS: Final = ("hub", "eu1", "us1")
BEHIND_AGENT: Final = "us1"
SEEDS: Final = "default/fleetbus-agent-nkey"
DEPLOYMENTS: Final = "apps/v1/deployments"
MCRS: Final = "fleetbus.dev/v1alpha1/multiclusterresources"
WHOLE: Final = {
    "core/configmaps": MAPS,
    "core/secrets": "v1/secrets",
    "apps/deployments": DEPLOYMENTS,
    "fleetbus.dev/clusters": "fleetbus.dev/v1alpha1/clusters",
    "fleetbus.dev/multiclusterresources": MCRS,
    "fleetbus.dev/inventorychunks": "fleetbus.dev/v1alpha1/inventorychunks",
}
"""The resources whose objects are recorded, by key."""
_STREAMS: Final = (STREAM, PRIOR_STREAM, DISTRIBUTION_STREAM, f"KV_{KV_BUCKET}")
_WITHIN: Final = timedelta(minutes=10)
_MOST_FRAMES: Final = 60


class Fleet:
    """The fleet that is recorded."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.clients: dict[str, KubeClient] = {}
        self.children: list[Child] = []
        self.frames: list[Frame] = []

    async def command(self, *words: str) -> str:
        """Run `fleetbus` in the folder of the fleet."""
        return await run_fleetbus(self.folder, *words)

    def child(self, name: str, *words: str, **settings: str) -> Child:
        """Start another service of the fleet."""
        more = {"FLEETBUS_HEALTH_PORT": "0", "FLEETBUS_ALLOW_LOOPBACK": "1"}
        return Child(
            name,
            installed(*words),
            log=self.folder / f"{name}.log",
            env=os.environ | self.environment | more | settings,
        )


async def run_fleetbus(folder: Path, *words: str) -> str:
    """Run `fleetbus` in a folder; returns its output.

    Raises:
        RuntimeError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *installed("fleetbus", *words),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"fleetbus {' '.join(words)}: {out.decode()}{err.decode()}")
    return out.decode()


# --- what the fleet has ---------------------------------------------------------------------------


def config_map(name: str, **labels: str) -> dict[str, Any]:
    """A config map."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"metadata": metadata, "data": {"greeting": "hello"}}


def multi_cluster_resource(name: str, **spec: Any) -> dict[str, Any]:
    """A MultiClusterResource that places a config map on all members."""
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"greeting": "hello from ${cluster.name}"},
    }
    placement = {"clusterSelector": {"matchLabels": {"role": "member"}}}
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, "placement": placement, **spec},
    }


WAVES: Final = [
    {"name": "canary", "clusters": [{"name": "eu1"}]},
    {"name": "rest", "percent": 100, "gates": [{"name": "approval"}]},
]
PATCH: Final = {"path": "/data/currency", "op": "add", "value": "USD"}


async def fill(fleet: Fleet) -> None:
    """Create, change and delete objects, and let clusters join and leave."""
    hub, eu1 = fleet.clients["hub"], fleet.clients["eu1"]
    for name in (WELL, LATER, FAILS, HANGS):
        await eu1.create(MAPS, config_map(name, recorded="yes"))
    await eu1.create(MAPS, config_map("short-lived"))
    await eu1.delete(MAPS, "default", "short-lived")
    changed = [{"op": "replace", "path": "/data/greeting", "value": "hello again"}]
    await eu1.patch(MAPS, "default", WELL, changed)
    labels = {"app": "web"}
    containers = [{"name": "web", "image": "nginx:1.27"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    web = {"metadata": {"name": "web", "namespace": "default", "labels": labels}, "spec": spec}
    await eu1.create(DEPLOYMENTS, web)
    customize = {"clusters": [{"name": "us1", "action": [PATCH]}]}
    await hub.create(MCRS, multi_cluster_resource("plain", customize=customize))
    await hub.create(MCRS, multi_cluster_resource("waves", rollout={"waves": WAVES}))
    await hub.create("v1/secrets", record_secret(agent_record(), NAMESPACE))
    await keep_seeds(fleet.clients[BEHIND_AGENT])
    names = ("eu8", "eu9")
    async with serve([Cluster(name) for name in names]) as others:
        kubeconfig = fleet.folder / "others.kubeconfig"
        others.write_kubeconfig(kubeconfig)
        for name in names:
            access = ("--file", str(kubeconfig), "--context", name, "--http")
            await fleet.command("join", name, *access, "--label", "a=b")
    await fleet.command("unjoin", "eu8")


async def keep_seeds(member: KubeClient) -> None:
    """Store the seeds of an agent that rotates its nkey; they log in nowhere."""
    namespace, _, name = SEEDS.partition("/")
    await member.create("v1/secrets", {"metadata": {"name": name, "namespace": namespace}})
    secret, seed = SeedSecret(member, SEEDS), make_seed()
    key = public_key(seed)
    used = {"seed": seed, "registered": key, "confirmed": key}
    times = {"next_seed": make_seed(), "since": "2026-01-31T11:00:00Z"}
    await secret.write(replace(await secret.read(), **used, **times))


def agent_record() -> AgentRecord:
    """The record of an agent that has registered and rotates its nkey; of seeds nobody has."""
    keys = [public_key(make_seed()) for _ in range(3)]
    return AgentRecord(
        cluster="ap1",
        one_time=keys[0],
        expires="2026-01-31T12:00:00Z",
        key=keys[1],
        next_key=keys[2],
        uid="0d8f1c3e-52b5-4c1e-9c1f-6c6b1de0a001",
        instance="fleetbus-agent-0",
        changed="2026-01-31T11:00:00Z",
    )


async def is_settled(fleet: Fleet, redis: Redis) -> bool:
    """Whether the queue, the distributor and the snapshot have all that they shall have."""
    stats = await RedisQueue(redis, "recorded").stats()
    if not stats.failing or not stats.delayed or not stats.processing:
        return False
    for name, reason in (("plain", "Ready"), ("waves", "RolloutInProgress")):
        resource = await fleet.clients["hub"].get(MCRS, "default", name)
        summary = (resource or {}).get("status", {}).get("summary", {})
        if (summary.get("applied"), summary.get("reason")) != (2, reason):
            return False
    return await is_mirrored(fleet, redis)


async def is_mirrored(fleet: Fleet, redis: Redis) -> bool:
    """Whether the snapshot has exactly the versions of the recorded resources."""
    reader = SnapshotReader(redis, SnapshotKeys())
    for name, client in fleet.clients.items():
        for key, resource in WHOLE.items():
            if key == "core/secrets" or (key.startswith("fleetbus.dev") and name != "hub"):
                continue
            page = await reader.list(ListQuery(clusters=[name], resource=key))
            objects = await client.list(resource)
            versions = {entry.resource_version for entry in page.entries}
            if versions != {obj["metadata"]["resourceVersion"] for obj in objects}:
                return False
    return True


# --- what is recorded -----------------------------------------------------------------------------


async def read_objects(fleet: Fleet) -> list[Stored]:
    """The objects of the recorded resources."""
    stored: list[Stored] = []
    for name, client in fleet.clients.items():
        for key, resource in WHOLE.items():
            if key.startswith("fleetbus.dev") and name != "hub":
                continue
            for obj in await client.list(resource):
                obj["metadata"].pop("managedFields", None)
                stored.append(Stored(cluster=name, resource=key, object=obj))
    return stored


async def read_stream(bus: Bus, name: str) -> list[Stream | Message]:
    """A stream with all of its messages."""
    info = await call_jetstream(bus, f"STREAM.INFO.{name}")
    lines: list[Stream | Message] = [Stream(config=info["config"])]
    query: dict[str, Any] = {"seq": int(info["state"]["first_seq"]), "next_by_subj": ">"}
    for _ in range(int(info["state"]["messages"])):
        answer = await call_jetstream(bus, f"STREAM.MSG.GET.{name}", query)
        message = answer["message"]
        lines.append(
            Message(
                stream=name,
                sequence=int(message["seq"]),
                subject=str(message["subject"]),
                headers=read_headers(base64.b64decode(message.get("hdrs", ""))),
                data=base64.b64decode(message.get("data", "")),
            )
        )
        query["seq"] = int(message["seq"]) + 1
    return lines


async def record(folder: Path) -> None:
    """Record into a folder, which is made anew.

    Raises:
        AssertionError: the fleet did not get to what is to be recorded.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="fleetbus-record-") as place:
        async with running(Path(place)) as (fleet, bus, redis):
            await fill(fleet)
            await eventually(lambda: is_settled(fleet, redis), _WITHIN)
            await fleet.command("capture", "--since", "10m", "-o", str(folder / CAPTURE))
            archive = Path(place) / ARCHIVE
            await eventually(lambda: any(archive.rglob("*.jsonl.gz")), _WITHIN)
            shutil.copytree(archive, folder / ARCHIVE)
            objects = await read_objects(fleet)
            stopped = stop_where_they_are(fleet)
            try:
                lines: list[Line] = [*await read_keys(redis)]
                for name in _STREAMS:
                    lines += await read_stream(bus, name)
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
            info = await redis.info("server")
            store = info.get("valkey_version") or info["redis_version"]
            servers = f"store {store}, nats-server {bus.nc.connected_server_version}"
    header = Header(release=version(), servers=servers)
    write_state(folder / STATE, header, [*lines, *objects, *fleet.frames[:_MOST_FRAMES]])
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    counts = f"{len(lines)} keys, streams and messages, {len(objects)} objects"
    print(f"{counts}, {len(fleet.frames)} frames: {size / 1000:.0f} kB in {folder}")


def stop_where_they_are(fleet: Fleet) -> list[int]:
    """Stop the services, and neither servers nor clusters; returns their PIDs."""
    state = json.loads((fleet.folder / ".fleetbus" / "dev" / "stack.json").read_text())
    servers = {"nats", "valkey", "apiserver"}
    pids = [int(part["pid"]) for part in state["parts"] if part["name"] not in servers]
    pids += [child.pid for child in fleet.children]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[tuple[Fleet, Bus, Redis]]:
    """A fleet with a worker of our controllers and an archiver; it is stopped at the end."""
    await run_fleetbus(folder, "dev", "up", "--clusters", str(len(CLUSTERS)), "--agents", "1")
    try:
        environment = json.loads(await run_fleetbus(folder, "dev", "env", "-o", "json"))
        fleet = Fleet(folder, environment)
        async with AsyncExitStack() as exits:
            for name in CLUSTERS:
                config = read_kube_config(environment["KUBECONFIG"], name)
                fleet.clients[name] = await exits.enter_async_context(KubeClient(config))
            worker = fleet.child(
                "worker",
                *("fleetbus-reconciler", str(Path(recorded_controllers.__file__))),
                FLEETBUS_RECONCILER_ARCHIVER="true",
            )
            archiver = fleet.child(
                "archiver",
                "fleetbus-archiver",
                FLEETBUS_ARCHIVER_URL=f"file://{folder / ARCHIVE}",
                FLEETBUS_ARCHIVER_CHUNK_AGE="5s",
            )
            fleet.children = [worker, archiver]
            for child in fleet.children:
                exits.push_async_callback(child.stop)
            bus = await exits.enter_async_context(
                connected(environment["FLEETBUS_NATS_URL"], name="recorder")
            )
            await exits.enter_async_context(frames_of(bus, fleet))
            redis = await exits.enter_async_context(
                Redis.from_url(environment["FLEETBUS_REDIS_URL"])
            )
            yield fleet, bus, redis
    finally:
        await run_fleetbus(folder, "dev", "down")


@asynccontextmanager
async def frames_of(bus: Bus, fleet: Fleet) -> AsyncGenerator[None]:
    """Keep the frames of agents' calls, and the commands to watchers."""

    async def note(message: Any) -> None:
        fleet.frames.append(Frame(subject=message.subject, data=message.data))

    names = ("fleetbus.api.>", "fleetbus.answers.>", "fleetbus.control.>")
    subscriptions = [await bus.nc.subscribe(name, cb=note) for name in names]
    try:
        yield
    finally:
        for subscription in subscriptions:
            await subscription.unsubscribe()


def main() -> None:
    """Record into the folder of this version, or into another one."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else RECORDED / version()
    asyncio.run(record(folder))


if __name__ == "__main__":
    main()
