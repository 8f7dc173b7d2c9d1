"""A watcher between an emulated API server and a real NATS, and what it put on the stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from fleetbus_proto import codec
from fleetbus_proto.events import EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.subjects import STREAM, Verb
from fleetbus_proto.versions import version_key
from fleetbus_watcher.main import run
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import WatcherTiming
from support.eventually import eventually

CONFIG_MAPS = "v1/configmaps"
QUICK: dict[str, Any] = {
    "resources": ("configmaps",),
    "heartbeat_busy": timedelta(milliseconds=100),
    "backoff_first": timedelta(milliseconds=20),
    "backoff_cap": timedelta(milliseconds=200),
    "grant_patience": timedelta(),  # there is no projector to ask
    "audit_shortest": timedelta(),  # tests count lists, and audits come by chance
}
QUICK_TIMING = WatcherTiming(heartbeat_settles=timedelta(milliseconds=40))


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the stream."""

    seq: int
    headers: dict[str, str]
    message: Message


@dataclass
class Rig:
    """One cluster, one bus, any number of watchers."""

    cluster: Cluster
    servers: ApiServers
    bus: Bus
    nats_url: str
    timing: WatcherTiming = QUICK_TIMING
    _running: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    @property
    def kv(self) -> KeyValue:
        return KeyValue(self.bus)

    @property
    def config(self) -> KubeConfig:
        return KubeConfig(json.dumps(self.servers.kubeconfig()))

    # --- watchers -----------------------------------------------------------------------------

    def start(
        self,
        nats_url: str = "",
        *,
        config: KubeConfig | None = None,
        port_file: Path | None = None,
        **settings: Any,
    ) -> asyncio.Task[None]:
        """A watcher; of another server if `config` names one; `port_file` is for its probes."""
        chosen: dict[str, Any] = {"cluster": self.cluster.name, "replica": "r1"}
        chosen_settings = load_settings(WatcherSettings, **(QUICK | chosen | settings))
        shared = SharedSettings(nats_url=nats_url or self.nats_url, health_port_file=port_file)
        own_config = None if chosen_settings.kubeconfig else self.config
        task = asyncio.create_task(
            run(chosen_settings, shared, config=config or own_config, timing=self.timing)
        )
        self._running.append(task)
        return task

    async def stop(self, task: asyncio.Task[None] | None = None) -> None:
        """Stop in good order, like SIGTERM; without an argument all."""
        stopping = [task] if task is not None else list(self._running)
        for each in stopping:
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
            self._running.remove(each)

    def forget(self, task: asyncio.Task[None]) -> None:
        """One that failed by itself, as it should."""
        self._running.remove(task)

    @contextlib.asynccontextmanager
    async def watching(self, **settings: Any) -> AsyncGenerator[asyncio.Task[None]]:
        """A watcher whose first sync is over."""
        before = len(await self.ends())
        task = self.start(**settings)
        await eventually(lambda: self._has_ended(before), timedelta(seconds=15))
        yield task
        await self.stop(task)

    @contextlib.asynccontextmanager
    async def watching_on(self, **settings: Any) -> AsyncGenerator[asyncio.Task[None]]:
        """A watcher that goes on at a checkpoint, its watch open."""
        before = self._watches_asked()
        task = self.start(**settings)
        # Open watches alone do not prove it: one of a watcher that has stopped may still be.
        await eventually(lambda: self._watches_asked() > before and self.cluster.open_watches)
        yield task
        await self.stop(task)

    def _watches_asked(self) -> int:
        return sum(request.verb == "watch" for request in self.cluster.requests)

    async def _has_ended(self, before: int) -> bool:
        return len(await self.ends()) > before

    # --- the stream ---------------------------------------------------------------------------

    async def stored(self) -> list[Stored]:
        """Everything on the stream, in order."""
        return await read_stream(self.bus)

    async def events(self, plural: str = "configmaps") -> list[Event]:
        messages = [stored.message for stored in await self.stored()]
        return [m for m in messages if isinstance(m, Event) and m.resource == plural]

    async def ends(self, plural: str = "") -> list[EpochEnd]:
        messages = [stored.message for stored in await self.stored()]
        ends = [m for m in messages if isinstance(m, EpochEnd)]
        return [end for end in ends if not plural or end.resource == plural]

    async def heartbeats(self) -> list[Heartbeat]:
        messages = [stored.message for stored in await self.stored()]
        return [m for m in messages if isinstance(m, Heartbeat)]

    async def status(self, plural: str = "configmaps") -> Any:
        """The status of a resource in the latest heartbeat, or None."""
        beats = await self.heartbeats()
        statuses = [s for s in (beats[-1].resources if beats else []) if s.resource == plural]
        return statuses[0] if statuses else None

    async def checkpoint(self, plural: str = "configmaps") -> Any:
        """The record, or None."""
        entry = await self.kv.get(f"{self.cluster.name}.checkpoint.core.{plural}.all")
        try:
            return json.loads(entry.value) if entry else None
        except json.JSONDecodeError:
            return None

    # --- the truth ----------------------------------------------------------------------------

    def truth(self, gvr: str = CONFIG_MAPS) -> dict[str, str]:
        """name → resourceVersion as the API server has it."""
        return truth(self.cluster, gvr)

    async def mirror(self, plural: str = "configmaps") -> dict[str, str]:
        """name → resourceVersion as a consumer of the stream has it."""
        messages = [stored.message for stored in await self.stored()]
        return mirror([m for m in messages if getattr(m, "resource", "") == plural])

    async def is_mirrored(self, gvr: str = CONFIG_MAPS) -> bool:
        return await self.mirror(gvr.rpartition("/")[2]) == self.truth(gvr)

    def write(self, name: str, value: str = "v") -> None:
        """Create or change a config map."""
        write(self.cluster, name, value)

    def remove(self, name: str) -> None:
        self.cluster.delete(CONFIG_MAPS, "default", name)

    def requests(self, verb: str, plural: str = "configmaps") -> list[Any]:
        """The requests for a resource; lists without the probes before watches (rule W12)."""
        return requests(self.cluster, verb, plural)

    def probes(self, plural: str = "configmaps") -> list[Any]:
        """The lists of one object before a watch is opened (W12)."""
        found = [r for r in self.cluster.requests if r.path.endswith(f"/{plural}")]
        return [r for r in found if _is_probe(r)]


def truth(cluster: Cluster, gvr: str = CONFIG_MAPS) -> dict[str, str]:
    """name → resourceVersion as the API server has it."""
    objects = cluster.list(gvr)
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in objects}


def write(cluster: Cluster, name: str, value: str = "v") -> None:
    """Create or change a config map."""
    obj = {"metadata": {"name": name}, "data": {"k": value}}
    if cluster.get(CONFIG_MAPS, "default", name) is None:
        cluster.create(CONFIG_MAPS, obj, "default")
    else:
        cluster.patch(CONFIG_MAPS, "default", name, {"data": {"k": value}})


def requests(cluster: Cluster, verb: str, plural: str = "configmaps") -> list[Any]:
    """The requests for a resource; lists without the probes before watches (rule W12)."""
    found = [r for r in cluster.requests if r.path.endswith(f"/{plural}")]
    return [r for r in found if r.verb == verb and not _is_probe(r)]


def _is_probe(request: Any) -> bool:
    return request.verb == "list" and request.query.get("limit") == "1"


@contextlib.asynccontextmanager
async def rig_for(
    nats_url: str, name: str = "alpha", timing: WatcherTiming = QUICK_TIMING, **options: Any
) -> AsyncGenerator[Rig]:
    """A rig whose stream and bucket exist."""
    bookmarks = options.pop("bookmark_interval", timedelta(milliseconds=200))
    cluster = Cluster(name, bookmark_interval=bookmarks, **options)
    async with serve([cluster]) as servers, connected(nats_url, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)
        rig = Rig(cluster, servers, bus, nats_url, timing)
        try:
            yield rig
        finally:
            await rig.stop()


async def read_stream(bus: Bus, within: timedelta = timedelta(seconds=10)) -> list[Stored]:
    """All messages of the stream, by batched direct gets."""
    messages: list[Stored] = []
    while page := await _read_page(bus, messages[-1].seq + 1 if messages else 1, within):
        messages += page
    return messages


async def _read_page(bus: Bus, start: int, within: timedelta) -> list[Stored]:
    page: list[Stored] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_message(message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Sequence" in headers:
            seq = int(headers["Nats-Sequence"])
            page.append(Stored(seq, headers, codec.decode(message.data)))
        if headers.get("Status") and not done.done():  # 204: the end; 404: nothing at all
            done.set_result(None)

    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox, cb=on_message)
    request = {"seq": start, "batch": 5_000, "next_by_subj": "fleetbus.>"}
    subject = f"$JS.API.DIRECT.GET.{STREAM}"
    await bus.nc.publish(subject, json.dumps(request).encode(), reply=inbox)
    async with asyncio.timeout(within.total_seconds()):
        await done
    await subscription.unsubscribe()
    return page


def mirror(messages: list[Message]) -> dict[str, str]:
    """Apply the messages of one resource by the order guard and complete epochs (P2 to P6)."""
    rows: dict[str, tuple[tuple[int, tuple[int, str]], bool]] = {}
    marks: dict[str, Any] = {}
    for message in messages:
        if isinstance(message, Event):
            number = message.incarnation.number
            version = (number, version_key(message.resource_version))
            if message.verb is Verb.LISTED:
                mark = (number, message.epoch.key)
                marks[message.name] = max(marks.get(message.name, mark), mark)
            if message.name not in rows or version > rows[message.name][0]:
                rows[message.name] = (version, message.verb is not Verb.DELETED)
        elif isinstance(message, EpochEnd):
            number = message.incarnation.number
            rank = (number, message.epoch.key)
            listed_at = (number, version_key(message.epoch.resource_version))
            assert sum(mark == rank for mark in marks.values()) <= message.count
            for name, (version, _) in list(rows.items()):
                if version < listed_at and (name not in marks or marks[name] < rank):
                    rows[name] = (listed_at, False)
    return {name: version[1][1] for name, (version, is_alive) in rows.items() if is_alive}
