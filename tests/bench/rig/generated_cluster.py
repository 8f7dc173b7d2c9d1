"""One cluster without an API server: made-up objects, published as its watcher would.

Everything that the contract of the bus asks for is done by the watcher's own code: message ids,
incarnation and epoch ids, grants, epochs with their end, heartbeats that verify the one before,
checkpoints. Only what comes from an API server is made up: lists, changes and discovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, NoReturn

import msgspec

from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Window
from fleetbus.errors import BusError
from fleetbus.process.clock import utc_now
from fleetbus.watchers.message_key import message_key
from fleetbus.watchers.resync import ResyncRequest, read_resync
from fleetbus_proto.events import (
    EpochEnd,
    Event,
    Heartbeat,
    Incarnation,
    Rank,
    ResourceStatus,
    WatchSet,
)
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import Verb
from fleetbus_watcher.errors import GrantExceeded
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.grant_client import Grant, GrantClient
from fleetbus_watcher.follow.low_water_mark import Slot
from fleetbus_watcher.incarnation import claim_epoch, claim_incarnation, has_moved
from fleetbus_watcher.publish.checkpoint import Checkpoint, Checkpoints
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName

PODS: Final = Resource("core", "v1", "pods")
SAMPLED: Final = "sampled"
"""The namespace of the objects whose latency is measured."""
OTHERS: Final = "default"
RARE: Final = "bench.fleetbus.dev/rare"
"""The label of the few objects that a controller selects that selects little."""
RARE_EVERY: Final = 1000
_PAGE: Final = 500
_SIBLINGS: Final = 5
"""Objects with one owner."""
_REPLICA: Final = "generator"
_PATIENCE: Final = timedelta(seconds=60)
_BUSY: Final = 5.0
_IDLE: Final = 15.0
"""Pauses between heartbeats, as those of a watcher."""
_SETTLES: Final = 0.2
_RETRY: Final = 1.0
_BODY: Final = (
    '{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"{namespace}",'
    '"uid":"{uid}","resourceVersion":"{version}","labels":{{{labels}}},"annotations":'
    '{{"bench.fleetbus.dev/filler":"{filler}"}},"ownerReferences":[{{"apiVersion":"apps/v1",'
    '"kind":"ReplicaSet","name":"{owner}","uid":"{owner_uid}","controller":true}}]}}}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of the objects of every cluster."""

    objects: int
    bytes: int
    """Size of one body."""
    sampled_every: int
    """One of so many objects is in the namespace whose latency is measured."""


class Objects:
    """The objects of one cluster: only their versions are kept, the rest follows from the index."""

    def __init__(self, cluster: str, shape: Shape) -> None:
        self._shape = shape
        self._salt = hashlib.blake2b(cluster.encode(), digest_size=4).hexdigest()
        start = int(time.time() * 1e6)
        # Microseconds, so that each change tells for when it was planned.
        self.versions = [start] * shape.objects
        self.version = start
        bare = len(self._body(0, OTHERS, "x" * 32, start, filler=""))
        self._filler = "x" * max(shape.bytes - bare, 0)

    def place(self, index: int) -> tuple[str, str]:
        """Namespace and name."""
        namespace = OTHERS if index % self._shape.sampled_every else SAMPLED
        return namespace, f"app-{index // _SIBLINGS}-7d4b9c6f5-{index:06}"

    def sampled_versions(self) -> list[tuple[str, str, str]]:
        """Namespace, name and version of the objects whose latency is measured."""
        indexes = range(0, self._shape.objects, self._shape.sampled_every)
        return [(*self.place(index), str(self.versions[index])) for index in indexes]

    def uid(self, index: int, kind: int = 0) -> str:
        """A UID as Kubernetes makes them."""
        return f"{self._salt}-0000-4000-8{kind:03}-{index:012x}"

    def body(self, index: int) -> bytes:
        """The object as JSON, at its present version."""
        namespace, name = self.place(index)
        return self._body(index, namespace, name, self.versions[index], self._filler).encode()

    def _body(self, index: int, namespace: str, name: str, version: int, filler: str) -> str:
        rare = "" if index % RARE_EVERY else f',"{RARE}":"yes"'
        return _BODY.format(
            name=name,
            namespace=namespace,
            uid=self.uid(index),
            version=version,
            labels=f'"app":"app-{index // _SIBLINGS}","tier":"{index % 4}"{rare}',
            filler=filler,
            owner=f"app-{index // _SIBLINGS}-7d4b9c6f5",
            owner_uid=self.uid(index // _SIBLINGS, kind=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Connections that the clusters of one process share, as in the pool of watchers."""

    bus: Bus
    kv: KeyValue
    changes: Window
    lists: Window
    """Separate connection, so that a long list of one cluster delays no change of another: in a
    real fleet other processes publish these."""
    slots: asyncio.Semaphore
    """Number of lists that run at once."""


@dataclass(slots=True)
class Sent:
    """Counters of the generator, for its report."""

    changes: int = 0
    listed: int = 0
    lists: int = 0
    failed: int = 0
    retries: int = 0
    """Requests to NATS that were not answered in time."""
    late: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For sampled changes: when they were planned, and how long after that they were stored."""


class GeneratedCluster:
    """One cluster, published by one replica.

    Args:
        name: of the cluster.
        uid: of its kube-system.
        shape: of its objects.
        shared: connections.
        sent: counts what is sent.

    Attributes:
        is_watching: whether its first list is complete, so that changes may come.
    """

    def __init__(self, name: str, uid: str, shape: Shape, shared: Connections, sent: Sent) -> None:
        self.name = name
        self.objects = Objects(name, shape)
        self.is_watching = False
        self._uid = uid
        self._shared = shared
        self._sent = sent
        self._changes = Publisher(bus=shared.bus, window=shared.changes)
        self._lists = Publisher(bus=shared.bus, window=shared.lists)
        self._replica = ReplicaName(_REPLICA, name)
        self._detector = LossDetector(
            bus=shared.bus, publisher=self._changes, cluster=name, replica=self._replica
        )
        self._checkpoints = Checkpoints(shared.kv, name, self._detector.check, lambda _: "")
        self._grants = GrantClient(
            kv=shared.kv, cluster=name, replica=self._replica, patience=_PATIENCE
        )
        self._incarnation = Incarnation(0, uid)
        self._request: ResyncRequest | None = None
        self._requested = asyncio.Event()
        self._epoch: EpochState | None = None
        self._size = 0
        self._changed = asyncio.Event()
        self._published = 0
        self._next = 0

    async def run(self) -> None:
        """Publish heartbeats and lists until cancelled."""
        await self._retry(self._claim)
        async with asyncio.TaskGroup() as group:
            for name, step in (("beat", self._send_heartbeat), ("list", self._list_on_request)):
                group.create_task(self._for_ever(step), name=f"{name} {self.name}")

    async def _for_ever(self, step: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            await self._retry(step)

    async def _retry(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step while NATS does not answer in time, as a watcher does."""
        while True:
            try:
                await step()
            except BusError:
                self._sent.retries += 1
                await asyncio.sleep(_RETRY)
            else:
                return

    async def _claim(self) -> None:
        key = await message_key(self._shared.kv, self.name)
        self._changes.key = self._lists.key = key
        self._incarnation = await claim_incarnation(self._shared.kv, self.name, self._uid, 0)
        await self._detector.verify()

    def wake(self, *, is_about_grants: bool) -> None:
        """Read answers of the projector, and its requests unless it is about grants only."""
        self._grants.wake()
        if not is_about_grants:
            self._requested.set()
            self._changed.set()

    # --- changes ------------------------------------------------------------------------------

    async def change(self, planned: float) -> None:
        """Change the next object; its version is the planned time in microseconds."""
        epoch, objects = self._epoch, self.objects
        assert epoch is not None
        index, self._next = self._next, (self._next + 1) % len(objects.versions)
        objects.versions[index] = objects.version = int(planned * 1e6)
        prepared = self._changes.prepare(self._event(index, Verb.MODIFIED, epoch.rank))
        slot = epoch.mark.sent(str(objects.version))
        is_sampled = objects.place(index)[0] == SAMPLED
        at = planned if is_sampled else None
        self._sent.changes += 1
        self._published += 1
        await self._changes.publish(prepared, partial(self._settle, epoch, slot, at))

    def _settle(self, epoch: EpochState, slot: Slot, planned: float | None, ack: Ack) -> None:
        epoch.settle(slot, ack)
        self._sent.failed += ack.error is not None
        if planned is not None:
            self._sent.late.append((planned, time.time() - planned))

    def _event(self, index: int, verb: Verb, rank: Rank) -> Event:
        objects = self.objects
        namespace, name = objects.place(index)
        return Event(
            cluster=self.name,
            incarnation=self._incarnation,
            group=PODS.group,
            version=PODS.version,
            resource=PODS.plural,
            kind="Pod",
            namespace=namespace,
            name=name,
            uid=objects.uid(index),
            resource_version=str(objects.versions[index]),
            verb=verb,
            epoch=rank,
            observed_at=utc_now(),
            object=objects.body(index),
        )

    # --- lists --------------------------------------------------------------------------------

    async def _list_on_request(self) -> None:
        self._requested.clear()
        self._request = await read_resync(self._shared.kv, self.name, PODS)
        while not self._suffices():
            await self._list()
        await self._requested.wait()

    def _suffices(self) -> bool:
        if self._epoch is None or not self._epoch.is_complete:
            return False
        return self._request is None or self._epoch.rank.id >= self._request.min_epoch

    async def _list(self) -> None:
        shared = self._shared
        async with shared.slots, self._grants.granted(PODS, "", self._size, lambda: None) as grant:
            epoch_id = await claim_epoch(shared.kv, self.name, PODS, self._request)
            await grant.begin(epoch_id)
            version = str(self.objects.version)
            epoch = EpochState(Rank(version, epoch_id), version, is_complete=False)
            try:
                await self._publish_pages(epoch, grant)
            except GrantExceeded as e:  # as of the first list, whose size nobody knew
                self._size = e.bytes
                return
            await epoch.wait_listed()
            await self._publish_end(epoch)
            self._size = grant.bytes
            grant.is_complete = epoch.is_complete = self.is_watching = True
            self._sent.lists += 1
        self._changed.set()

    async def _publish_pages(self, epoch: EpochState, grant: Grant) -> None:
        count = len(self.objects.versions)
        for start in range(0, count, _PAGE):
            end = min(start + _PAGE, count)
            gathering = self._lists.gather()
            for index in range(start, end):
                prepared = self._lists.prepare(self._event(index, Verb.LISTED, epoch.rank))
                epoch.sent_listed()
                await self._lists.publish_listed(prepared, epoch.settle_listed, gathering)
                grant.count(len(prepared.body))
                if not index % 20:
                    await asyncio.sleep(0)  # changes of other clusters are due
            await gathering.flush()
            self._sent.listed += end - start
            if not start:
                self._epoch = epoch  # the watch of this list takes over
            grant.check(count - end)

    async def _publish_end(self, epoch: EpochState) -> None:
        await self._lists.publish_marker(
            EpochEnd(
                cluster=self.name,
                incarnation=self._incarnation,
                group=PODS.group,
                version=PODS.version,
                resource=PODS.plural,
                kind="Pod",
                epoch=epoch.rank,
                count=epoch.listed,
                observed_at=utc_now(),
            )
        )

    # --- heartbeats ---------------------------------------------------------------------------

    async def _send_heartbeat(self) -> None:
        """Send one, and wait until the next is due."""
        self._changed.clear()
        before = self._published
        await self._report()
        begun = time.monotonic()
        while time.monotonic() - begun < _IDLE and self._published == before:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BUSY):
                    await self._changed.wait()
                    await asyncio.sleep(_SETTLES)
                    break

    async def _report(self) -> None:
        epoch = self._epoch
        mark = self._checkpoint(epoch) if epoch is not None and epoch.is_complete else None
        covered_by = await self._detector.publish(self._heartbeat())
        if covered_by is not None and mark is not None:
            mark = msgspec.structs.replace(mark, heartbeat=covered_by)
            await self._checkpoints.write(PODS, "", mark)
        if await has_moved(self._shared.kv, self.name, self._incarnation):
            raise RuntimeError(f"somebody claimed a new number for {self.name}")

    def _checkpoint(self, epoch: EpochState) -> Checkpoint:
        return Checkpoint(
            incarnation=self._incarnation,
            rank=epoch.rank,
            resource_version=epoch.mark.resource_version,
        )

    def _heartbeat(self) -> Heartbeat:
        now = utc_now()
        epoch = self._epoch
        status = ResourceStatus(
            group=PODS.group,
            version=PODS.version,
            resource=PODS.plural,
            kind="Pod",
            state="watching" if self.is_watching else "listing",
            watch_open=self.is_watching,
            last_received=now,
            resource_version=epoch.mark.resource_version if epoch is not None else "",
        )
        return Heartbeat(
            cluster=self.name,
            replica=_REPLICA,
            boot=self._replica.boot,
            incarnation=self._incarnation,
            server_version="v1.33.0",
            connected=True,
            last_answer=now,
            resources=[status],
            watch_set=WatchSet(),
            observed_at=now,
        )
