"""A projector without watchers: tests publish their messages, and read the resync requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg
from redis.asyncio import Redis

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.fleet.fleet import Fleet
from fleetbus.process.clock import now_ms, rfc3339
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import connect
from fleetbus.watchers.resync import ResyncRequest, read_resync
from fleetbus.worker.connections import Connections
from fleetbus_proto import codec, headers
from fleetbus_proto.admission import subject_of
from fleetbus_proto.events import Event, Heartbeat, Incarnation, Message, ResourceStatus
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import ReconcilerTiming
from fleetbus_reconciler.wiring import run_projector
from support.eventually import eventually
from support.stores.snapshot import Snapshot, Source
from support.wire.samples import MESSAGE_KEY

PODS = "core/pods"
LATER = now_ms() + 3_600_000
"""As an epoch id newer than any that a projector asks for, and less than a day ahead (B8)."""
SCALED = {
    "fuse_wait": timedelta(milliseconds=400),
    "incomplete_wait": timedelta(milliseconds=400),
    "audit_wait": timedelta(milliseconds=200),
}


QUICK_TIMING = ReconcilerTiming(
    retry=timedelta(seconds=0.05),
    checks=timedelta(seconds=0.1),
    quiet_durables=timedelta(seconds=0.1),
    epoch_checks=timedelta(seconds=0.1),
    request_checks=timedelta(seconds=0.025),
)


def now(ago: timedelta = timedelta()) -> str:
    return rfc3339(datetime.now(UTC) - ago)


def heartbeat(
    cluster: str = "eu1",
    *,
    state: str = "watching",
    incarnation: int = 1,
    at: str = "",
    **fields: Any,
) -> Heartbeat:
    pods = {"group": "core", "version": "v1", "resource": "pods", "kind": "Pod"}
    status: dict[str, Any] = {**pods, "state": state, "last_received": at or now(), **fields}
    return Heartbeat(
        cluster=cluster,
        replica=f"{cluster}-0",
        boot="b",
        incarnation=Incarnation(incarnation, "uid-of-kube-system"),
        connected=True,
        last_answer=at or now(),
        resources=[ResourceStatus(**status)],
        observed_at=at or now(),
    )


@dataclass
class Clock:
    """A clock that a test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class SetProvider:
    """A provider whose set the test changes; nothing is reported before the first `tell`."""

    name = "test"

    def __init__(self) -> None:
        self._reported: asyncio.Queue[list[ClusterInfo]] = asyncio.Queue()

    def tell(self, *names: str, **labels: str) -> None:
        infos = [
            ClusterInfo(name=name, labels=labels, provider="test", config=None) for name in names
        ]
        self.tell_infos(*infos)

    def tell_infos(self, *infos: ClusterInfo) -> None:
        self._reported.put_nowait(list(infos))

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        while True:
            yield await self._reported.get()


@dataclass
class ProjectorRig:
    """The parts; see `projector_rig`."""

    connections: Connections
    provider: SetProvider
    snapshot: Snapshot
    deleted: list[Event] = field(default_factory=list[Event])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    resource: str = PODS
    """Whose record and resync request the methods answer."""
    timing: ReconcilerTiming = QUICK_TIMING
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    @property
    def bus(self) -> Bus:
        return self.connections.bus

    @property
    def redis(self) -> Redis:
        """The test's own client."""
        return self.snapshot.redis

    def start(self, name: str = "projector") -> None:
        settings = load_settings(ReconcilerSettings, **{**SCALED, **self.settings})
        body = run_projector(self.connections, settings, Health(), self.timing)
        self._tasks[name] = asyncio.create_task(body, name=name)

    async def stop(self, name: str = "projector") -> None:
        task = self._tasks.pop(name)
        assert not task.done(), task.exception()
        task.cancel()
        async with asyncio.timeout(15):
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def aclose(self) -> None:
        for name in list(self._tasks):
            await self.stop(name)

    async def started(self, *clusters: str) -> None:
        """Start a projector and wait until it has written these members."""
        self.provider.tell(*clusters)
        self.start()
        await eventually(lambda: self.has_members(*clusters))

    async def has_members(self, *clusters: str) -> bool:
        return {record.name for record in await self.snapshot.reader.clusters()} == set(clusters)

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            await self.publish_raw(
                subject_of(message), codec.encode(message), headers.build(message, MESSAGE_KEY)
            )

    async def publish_raw(self, subject: str, body: bytes, sent_headers: dict[str, str]) -> None:
        answer = await self.bus.request(subject, body, headers=sent_headers)
        assert b'"error"' not in answer.data, answer.data

    async def publish_epoch(self, source: Source, **objects: int) -> None:
        await self.publish(*(source.listed(name, version) for name, version in objects.items()))
        await self.publish(source.end(len(objects)))

    async def is_through(self) -> bool:
        """Whether everything that the stream holds was handled and acknowledged.

        That nothing is pending does not say so: the server counts a message as pending for a
        consumer a moment after it has acknowledged it to the publisher.
        """
        stream, info = await stream_info(self.bus), await consumer_info(self.bus, PROJECTOR)
        if stream is None or info is None:
            return False
        is_idle = (info["num_pending"], info["num_ack_pending"]) == (0, 0)
        return is_idle and info["ack_floor"]["stream_seq"] >= stream["state"]["last_seq"]

    async def record(self, cluster: str = "eu1") -> ResourceRecord | None:
        records = {record.key: record for record in await self.snapshot.reader.resources(cluster)}
        return records.get(self.resource)

    async def state(self, cluster: str = "eu1") -> ResourceState:
        record = await self.record(cluster)
        return record.state if record else ResourceState.UNKNOWN

    async def synced(self, cluster: str = "eu1", epoch: str = "") -> None:
        async def is_synced() -> bool:
            record = await self.record(cluster)
            return (
                record is not None
                and record.state is ResourceState.SYNCED
                and (not epoch or record.epoch == epoch)
            )

        await eventually(is_synced)

    async def resync_request(self, cluster: str = "eu1") -> ResyncRequest | None:
        group, _, plural = self.resource.partition("/")
        return await read_resync(self.connections.kv, cluster, Resource(group, "v1", plural))

    async def resync_requested(
        self, reason: str, cluster: str = "eu1", *, after: int = 0
    ) -> ResyncRequest:
        async def is_requested() -> ResyncRequest | None:
            resync = await self.resync_request(cluster)
            is_it = resync is not None and reason in resync.reason and resync.min_epoch > after
            return resync if is_it else None

        requested = await eventually(is_requested)
        assert requested is not None
        return requested


def resync_requests(
    rig: ProjectorRig, clock: Callable[[], float] = time.monotonic
) -> ResyncRequests:
    connections = rig.connections
    return ResyncRequests(
        clusters=connections.clusters,
        reader=connections.reader,
        bus=connections.bus,
        kv=connections.kv,
        repeat_after=rig.timing.resync_repeated,
        clock=clock,
    )


def fleet_state(rig: ProjectorRig, resyncs: ResyncRequests | None = None) -> FleetState:
    """A state beside the projector's; the test calls it."""
    connections = rig.connections
    return FleetState(
        clusters=connections.clusters,
        reader=connections.reader,
        writer=connections.writer,
        resyncs=resyncs or resync_requests(rig),
    )


async def completed(rig: ProjectorRig, state: FleetState, rank: tuple[int, int] = (5, 1)) -> None:
    """Let a list of pods of eu1 be complete."""
    epoch = await rig.snapshot.run_epoch(Source(rank=rank), a=4)
    await state.mark_synced(epoch.epoch)


@asynccontextmanager
async def projector_rig(
    nats_url: str, valkey_url: str, *, shards: int = 1, **settings: Any
) -> AsyncGenerator[ProjectorRig]:
    """Connections of one process; `started` runs the projector in it."""
    redis, asking = await connect(valkey_url), await connect(valkey_url)
    keys = SnapshotKeys(shards)
    provider = SetProvider()
    clusters = Clusters([provider])
    following = asyncio.create_task(clusters.run(), name="clusters")
    try:
        async with connected(nats_url, name="reconciler") as bus:
            connections = Connections(
                settings=load_settings(SharedSettings, nats_url=nats_url, redis_url=valkey_url),
                bus=bus,
                kv=KeyValue(bus),
                redis=redis,
                keys=keys,
                writer=SnapshotWriter(redis, keys),
                reader=SnapshotReader(redis, keys),
                clusters=clusters,
                fleet=Fleet(clusters, SnapshotReader(redis, keys)),
            )
            snapshot = Snapshot(asking, shards=shards)
            rig = ProjectorRig(connections, provider, snapshot, settings=settings)

            async def note(message: Msg) -> None:
                event = codec.decode(message.data)
                assert isinstance(event, Event)
                rig.deleted.append(event)

            await bus.nc.subscribe("fleetbus.events.*.*.*.*.*.deleted", cb=note)
            try:
                yield rig
            finally:
                await rig.aclose()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await redis.aclose()
        await asking.aclose()
