"""The shared parts of the acceptance scenarios: times, a pool of watchers, the closing checks.

`FLEETBUS_TEST_FULL=1` (`make scenarios`) runs them with the services' own timers, real limits
and the whole quiet time; else timers are scaled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import structlog
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from fleetbus.bus.connection import Bus, connected
from fleetbus.process.settings import ProviderSettings, SharedSettings, load_settings
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_emulator.apiserver import LoggedRequest
from fleetbus_proto import codec
from fleetbus_proto.events import Event
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_watcher.main import ANY_CLUSTER, run_pool
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from support.eventually import eventually, never
from support.full import FULL
from support.rigs.fleet import Recorder, Rig
from support.rigs.mixed_access import mixed
from support.rigs.watcher import QUICK, read_stream
from support.servers.real_cluster import REAL

Object = dict[str, Any]

QUIET = timedelta(seconds=10 if FULL else 1)
"""Time for which nothing may happen after convergence, and what "never" means."""
WITHIN = timedelta(seconds=10 if FULL else 30)
"""The deadline of every "→"; longer where other tests may run beside on a small machine."""
MAPS, MAP_KEY = "v1/configmaps", "core/configmaps"
SECRETS = "v1/secrets"
NAMESPACE = "fleet"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_RECONCILE_FIELDS = {"controller", "cluster", "namespace", "name", "reconcile_id"}
_SCALED_WATCHER = QUICK | {
    # More would keep the projector busy with them where a dozen clusters are in one process.
    "heartbeat_busy": timedelta(seconds=0.5),
    "heartbeat_idle": timedelta(seconds=0.5),
    "backoff_cap": timedelta(seconds=1),
    "silence": timedelta(seconds=2),
    "discovery_interval": timedelta(seconds=0.5),
    "grant_patience": WatcherSettings.model_fields["grant_patience"].default,
}
_SCALED_PROJECTOR = {
    "fuse_wait": timedelta(milliseconds=400),
    "incomplete_wait": timedelta(milliseconds=800),
    "stale_after": timedelta(seconds=2),
}


@dataclass
class Scenario:
    """One fleet, everything that is published in it, and everything that it logs.

    Attributes:
        rig: the servers and the services.
        events: what a plain subscriber to `fleetbus.events.>` got.
        published: every message of ours, and every key of the bucket, as bytes.
        logs: every line, as its fields.
        recorders: whose queues have to be empty, and who has to have seen the last of everything.
    """

    rig: Rig
    events: list[Event] = field(default_factory=list[Event])
    published: list[bytes] = field(default_factory=list[bytes])
    logs: Sequence[Mapping[str, Any]] = ()
    recorders: list[Recorder] = field(default_factory=list[Recorder])
    _bus: Bus | None = None
    _is_listening: bool = False

    # --- services -----------------------------------------------------------------------------

    def use(self, *providers: Mapping[str, Any], hub: str = "") -> None:
        """Let the services take their clusters from these; `hub` is where its objects are.

        Cluster objects say themselves which clusters are behind agents.
        """
        rig = self.rig
        used = [
            p if p["type"] == "cluster" else mixed(p, rig.behind_agents, rig.closed)
            for p in providers
        ]
        changed: Object = {
            "providers": [ProviderSettings.model_validate(provider) for provider in used],
            "hub_kubeconfig": self.rig.kubeconfig if hub else None,
            "hub_context": hub,
        }
        self.rig.shared = load_settings(SharedSettings, **self.rig.shared.model_dump() | changed)

    async def start_pool(self, member: str = "pool-0", **settings: Any) -> None:
        """A member of the pool, once the projector has made stream and bucket."""
        await eventually(self.rig.reader.generation, WITHIN)
        await self._listen()
        watched: Object = {"resources": ("configmaps",)}
        chosen: Object = {"cluster": ANY_CLUSTER, "replica": member} | watched
        scaled = {} if FULL else _SCALED_WATCHER
        if REAL:  # a real API server gives a sign of life each minute
            scaled = {key: value for key, value in scaled.items() if key != "silence"}
        watcher = load_settings(WatcherSettings, **(scaled | chosen | settings))
        pool = PoolSettings() if FULL else PoolSettings(lease=timedelta(seconds=0.5))
        timing = self.rig.watcher_timing
        self.rig.start(member, run_pool(watcher, pool, self.rig.shared, timing=timing))
        if self.rig.is_wide:
            other = watcher.model_copy(update={"replica": f"{member}-peer"})
            self.rig.start(f"{member}-peer", run_pool(other, pool, self.rig.shared, timing=timing))
        self.rig.start_watchers_behind_agents(**(scaled | watched | settings))

    def start_reconciler(self, *recorders: Recorder, **settings: Any) -> None:
        """The projector, and controllers that take notes."""
        self.recorders += recorders
        scaled = {} if FULL else _SCALED_PROJECTOR
        chosen = load_settings(ReconcilerSettings, **(scaled | settings)).model_dump()
        self.rig.start_reconciler(*(recorder.controller for recorder in recorders), **chosen)

    async def _listen(self) -> None:
        """Not before the stream is there: else we would be taken for who answers in its place."""
        if self._bus is None or self._is_listening:
            return
        self._is_listening = True
        for subject in ("fleetbus.>", "$KV.>"):
            await self._bus.nc.subscribe(subject, cb=self._note)
        await self._bus.nc.flush()

    async def _note(self, message: Msg) -> None:
        self.published.append(message.data)
        if message.subject.startswith("fleetbus.events."):
            event = codec.decode(message.data)
            assert isinstance(event, Event)
            self.events.append(event)

    # --- what is known ------------------------------------------------------------------------

    async def members(self) -> set[str]:
        """The clusters of the fleet."""
        return {record.name for record in await self.rig.reader.clusters()}

    async def are_members(self, *names: str) -> bool:
        return await self.members() == set(names)

    async def record(self, name: str) -> ClusterRecord:
        found = await self.rig.reader.cluster(name)
        return found or ClusterRecord(name=name)

    async def reported(self, name: str) -> None:
        """Wait for another heartbeat of a cluster."""
        before = (await self.record(name)).reported_at

        async def is_received() -> bool:
            return (await self.record(name)).reported_at > before

        await eventually(is_received, within=timedelta(seconds=60))

    async def rows(self, name: str) -> set[str]:
        """The config maps that the snapshot holds of a cluster, but for those of its own."""
        places = self.rig.reader.keys(name, MAP_KEY)
        return {place async for where, place in places if where != "kube-system"}

    async def is_synced(self, *names: str, key: str = MAP_KEY) -> bool:
        by_cluster = await self.rig.reader.freshness(names, key)
        return all(freshness.is_complete for freshness in by_cluster.values())

    async def synced(self, *names: str, key: str = MAP_KEY) -> None:
        """Wait until these are in the fleet, and the snapshot is complete for them."""
        await eventually(lambda: self.is_synced(*names, key=key), WITHIN)

    def watches_opened(self, server: str) -> int:
        """Return how often a watch of config maps was opened at an API server, ever."""
        return len(self._asked(server, "watch"))

    def lists_made(self, server: str) -> int:
        """The lists of config maps, without the probes before watches."""
        return len([r for r in self._asked(server, "list") if r.query.get("limit") != "1"])

    def lives(self, server: str) -> int:
        """Return how often the work for an API server has begun: each asks for the version once."""
        return sum(request.path == "/version" for request in self.rig.clusters[server].requests)

    def _asked(self, server: str, verb: str) -> list[LoggedRequest]:
        requests = self.rig.clusters[server].requests
        return [r for r in requests if r.verb == verb and r.path.endswith("/configmaps")]

    async def stored(self, cluster: str) -> list[Event]:
        """The events of a cluster on the stream, in order."""
        async with connected(self.rig.shared.nats_url, name="reader") as bus:
            messages = [stored.message for stored in await read_stream(bus)]
        return [m for m in messages if isinstance(m, Event) and m.cluster == cluster]

    def deletions(self, *clusters: str) -> list[Event]:
        """The deletions that were published; without arguments those of every cluster."""
        deleted = [event for event in self.events if event.verb is Verb.DELETED]
        return [event for event in deleted if not clusters or event.cluster in clusters]

    def lines(self, event: str) -> list[Mapping[str, Any]]:
        return [line for line in self.logs if line["event"] == event]

    # --- what is done -------------------------------------------------------------------------

    def write(self, server: str, name: str, value: str = "v", **labels: str) -> None:
        """Create or change a config map."""
        cluster = self.rig.clusters[server]
        data = {"k": value}
        if cluster.get(MAPS, "default", name) is None:
            cluster.create(
                MAPS, {"metadata": {"name": name, "labels": labels}, "data": data}, "default"
            )
        else:
            cluster.patch(MAPS, "default", name, {"data": data})

    # --- the checks that close a scenario -----------------------------------------------------

    async def quiet(self) -> None:
        """Nobody writes to any API server, and no queue holds anything that is to be done."""
        for recorder in self.recorders:
            await self.rig.quiet(recorder.controller.name, WITHIN)
        before = len(self.writes())
        await never(lambda: self.writes()[before:], QUIET)
        for recorder in self.recorders:
            queue = RedisQueue(self.rig.redis, recorder.controller.name)
            stats = await queue.stats()
            await queue.aclose()
            assert not stats.processing, "something runs"
            assert not stats.depth, "something waits"

    def writes(self) -> list[str]:
        """The write requests of our services, all API servers together; no dry runs."""
        return [
            f"{name}: {request.verb} {request.path}"
            for name, cluster in self.rig.clusters.items()
            for request in cluster.requests
            if request.verb in _WRITES
            and request.user_agent.startswith("fleetbus")
            and "dryRun" not in request.query
        ]

    async def close(
        self,
        *,
        seen_of: Sequence[str] = (),
        errors: Iterable[str] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        """Check what holds at the end of every scenario; recorders watch for keys that run twice.

        Args:
            seen_of: the clusters that are reconciled; empty means all.
            errors: the error lines that a step names.
            secrets: values that were in Secrets.
        """
        await self.quiet()
        deletes = [write for write in self.writes() if ": delete" in write]
        assert not deletes, f"nobody asked for {deletes}"
        for recorder in self.recorders:
            await self._check_last_seen(recorder, seen_of or sorted(await self.members()))
        await self._check_secrets(secrets)
        self.check_logs(errors)

    async def _check_last_seen(self, recorder: Recorder, clusters: Sequence[str]) -> None:
        """The last reconcile of each object saw its last state."""
        key = parse_resource(recorder.resource).key
        page = await self.rig.reader.list(ListQuery(clusters=clusters, resource=key))
        assert page.entries
        # In full there are thousands: looking through all runs for each would block the services.
        last = {(r.request.cluster, r.request.namespace, r.request.name): r for r in recorder.runs}
        for entry in page.entries:
            place = (entry.cluster, entry.namespace, entry.name)
            run = last.get(place)
            assert run is not None, f"{'/'.join(place)} was never reconciled"
            version = (run.object or {}).get("metadata", {}).get("resourceVersion")
            assert version == entry.resource_version, f"last change of {'/'.join(place)}"

    async def _check_secrets(self, secrets: Sequence[str]) -> None:
        places = {"bus": b"\n".join(self.published), "redis": await _content(self.rig)}
        places["logs"] = json.dumps(self.logs, default=str).encode()
        for secret in secrets:
            needles = (secret.encode(), base64.b64encode(secret.encode()))
            leaks = [place for place, text in places.items() for n in needles if n in text]
            assert not leaks, f"a secret is shown by {leaks}"

    def check_logs(self, errors: Iterable[str] = ()) -> None:
        """No error but the expected ones, and no line of a reconcile that does not say which."""
        failed = [line for line in self.logs if line["log_level"] in ("error", "critical")]
        unexpected = [line for line in failed if line["event"] not in set(errors)]
        assert not unexpected, f"errors: {unexpected[:3]}"
        reconciles = [line for line in self.logs if "reconcile_id" in line]
        bare = [line for line in reconciles if not line.keys() >= _RECONCILE_FIELDS]
        assert not bare, f"lines that name no request: {bare[:3]}"


async def _content(rig: Rig) -> bytes:
    """Everything that the store holds."""
    parts: list[bytes] = []
    redis = cast("Any", rig.redis)
    commands: Mapping[bytes, Sequence[Any]] = {
        b"string": ["GET"],
        b"hash": ["HGETALL"],
        b"set": ["SMEMBERS"],
        b"zset": ["ZRANGE", 0, -1],
        b"list": ["LRANGE", 0, -1],
        b"stream": ["XRANGE", "-", "+"],
    }
    async for key in redis.scan_iter(count=1000):
        kind = await redis.type(key)
        command, *arguments = commands[kind if isinstance(kind, bytes) else kind.encode()]
        parts.append(repr((key, await redis.execute_command(command, key, *arguments))).encode())
    return b"\n".join(parts)


@asynccontextmanager
async def scenario(rig: Rig) -> AsyncGenerator[Scenario]:
    """Listen to a fleet whose services are started inside."""
    with capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        async with connected(rig.shared.nats_url, name="plain-subscriber") as bus:
            yield Scenario(rig, logs=logs, _bus=bus)


# --- access data ----------------------------------------------------------------------------------


def access(rig: Rig, *contexts: str, token: str = "", **servers: str) -> Object:
    """A kubeconfig with these contexts; each leads to the server of its name, or to the one named.

    Args:
        rig: whose servers.
        contexts: names of contexts that are names of servers.
        token: shown everywhere.
        servers: name of a context → name of a server.
    """
    leads = {c: c for c in contexts} | servers
    kubeconfig = rig.servers.kubeconfig(token or None)
    clusters = {entry["name"]: entry["cluster"] for entry in kubeconfig["clusters"]}
    users = {entry["name"]: entry["user"] for entry in kubeconfig["users"]}
    user_of = {entry["name"]: users[entry["context"]["user"]] for entry in kubeconfig["contexts"]}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(leads), ""),
        "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in leads],
        "clusters": [{"name": n, "cluster": clusters[server]} for n, server in leads.items()],
        "users": [{"name": n, "user": user_of[server]} for n, server in leads.items()],
    }


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
