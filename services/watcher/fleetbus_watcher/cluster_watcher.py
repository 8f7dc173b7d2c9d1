"""One cluster: who it is, which resources are watched, what is wished.

run            for ever: serve, and when that fails, wait and serve again
_serve         one life: identity, then all resources until something moves
_follow        all resources while the bus stays; after it was away they go on at their checkpoints
_follow_types  what discovery offers, again and again; one task per resource
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import structlog
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, subscribed
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError, ConfigError, FleetbusError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.listing import WatchTarget
from fleetbus.watchers.cluster_consent import clear_refusal
from fleetbus.watchers.message_key import message_key
from fleetbus_proto.events import Incarnation, ResourceStatus, WatchSet
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import CONTROL_GRANTS, control_subject
from fleetbus_watcher import incarnation as identity
from fleetbus_watcher import metrics
from fleetbus_watcher.audit.auditor import Auditor
from fleetbus_watcher.effective_spec import WatchList
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.errors import (
    BusReturned,
    ClusterReplaced,
    HistoryBroken,
    IncarnationMoved,
    Suspended,
    WatcherError,
    access_reason,
)
from fleetbus_watcher.follow.grant_client import Grants
from fleetbus_watcher.follow.list_limits import ClusterLists, ProcessLists
from fleetbus_watcher.follow.progress import Progress, tell_no_access, tell_unsettled
from fleetbus_watcher.follow.resource_watcher import ResourceWatcher, Surroundings
from fleetbus_watcher.publish.bus_ready import missing
from fleetbus_watcher.publish.checkpoint import Checkpoint, Checkpoints
from fleetbus_watcher.publish.loss_detector import Chain
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.reachability import Reach, ReachingBackoff
from fleetbus_watcher.removed_types import CRDS, TypeEnds
from fleetbus_watcher.selection import Choice, Chosen
from fleetbus_watcher.server_checks import Identity
from fleetbus_watcher.settings import WatcherSettings

log = structlog.get_logger()

_CRD_SETTLES: Final = timedelta(seconds=0.5)
"""A new type is served a moment after its CRD was written."""
_WISH_INTERVAL: Final = timedelta(seconds=60)
"""A wake-up may be lost; the wish itself is kept."""
_NOT_READY: Final = ("Starting", "BusDown")
_NOBODY: Final = Incarnation(0, "")
"""In heartbeats before the cluster is known."""


@dataclass(slots=True)
class _Watched:
    choice: Choice
    watcher: ResourceWatcher
    progress: Progress
    task: asyncio.Task[None]


class ClusterWatcher:
    """Everything that is watched of one cluster.

    Attributes:
        chain: the heartbeats of this replica.
        changed: set when a heartbeat should tell of a change.
        incarnation: whom the heartbeats speak for.
        reach: whether the API server answers.
        server_version: of the API server; empty before it answered.
        watch_list: what is to be watched.
        watch_set: what heartbeats say of it, since it is followed.
    """

    def __init__(
        self,
        *,
        settings: WatcherSettings,
        client: KubeClient,
        bus: Bus,
        kv: KeyValue,
        publisher: Publisher,
        lists: ProcessLists,
    ) -> None:
        self._settings = settings
        self._client = client
        self._bus = bus
        self._kv = kv
        self._publisher = publisher
        self.watch_list = WatchList(kv, settings)
        self.watch_set: WatchSet | None = None
        self._lists = ClusterLists(settings.lists_at_once, lists)
        self.chain = Chain(
            bus=bus, publisher=publisher, cluster=settings.cluster, replica=settings.replica
        )
        self._checkpoints = Checkpoints(
            kv, settings.cluster, self.chain.check, settings.transform_version
        )
        self._grants = Grants(
            kv=kv,
            cluster=settings.cluster,
            replica=settings.replica,
            patience=settings.grant_patience,
        )
        self._log = log.bind(cluster=settings.cluster)
        self._connected = metrics.connected(settings.cluster)
        metrics.create_alarms(settings.cluster)
        self.changed = asyncio.Event()
        self.incarnation = _NOBODY
        self.server_version = ""
        self._trouble: tuple[str, str] = ("Starting", "")
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._refused: list[ResourceStatus] = []
        self.reach = Reach(client, settings.cluster, self._show)
        self._identity = Identity(client, self.reach)
        self._is_refused = False
        self._types_changed = asyncio.Event()
        self._wished = asyncio.Event()
        self._audit_wished = asyncio.Event()
        self._moved = asyncio.Event()
        # The lowest incarnation number that will do: ours never falls (W23).
        self._least = 0
        # W10: in which connection to the bus the present watches began.
        self._connection = bus.disconnects
        self._returned = asyncio.Event()
        wakes = (self._returned.set, self._wished.set, self._grants.wake)
        self._undo_wakes = [bus.on_reconnect(wake) for wake in wakes]

    # --- what heartbeats and probes ask -------------------------------------------------------

    @property
    def trouble(self) -> tuple[str, str]:
        """Reason and message while the cluster cannot be watched; empty when it can."""
        if self.reach.problem and self._trouble[0] in {"", "Starting"}:
            return ("Unreachable", self.reach.problem)
        if self._trouble[0]:
            return self._trouble
        return tell_no_access([entry.progress for entry in self._watched.values()])

    def statuses(self) -> list[ResourceStatus]:
        """How each resource is watched."""
        found = [entry.progress.status() for entry in self._watched.values()]
        return sorted([*found, *self._refused], key=lambda s: (s.group, s.resource, s.scope))

    def unsettled(self) -> str:
        """Which first syncs are neither complete nor failing; empty when none is."""
        reason, message = self.trouble
        if reason:
            # A cluster that is down is a state of the cluster, not of this process.
            return f"{reason}: {message}" if reason in _NOT_READY else ""
        return tell_unsettled(entry.progress for entry in self._watched.values())

    @property
    def is_watching(self) -> bool:
        """Whether every resource is followed, so that a twin may go (W22)."""
        found = [entry.progress for entry in self._watched.values()]
        return not self.trouble[0] and bool(found) and all(each.is_followed for each in found)

    def checkpoints(self) -> list[tuple[Resource, str, Checkpoint]]:
        """What may be recorded now, for each resource; nothing while the bus is in doubt (W10)."""
        if self._connection != self.connection:
            return []
        found: list[tuple[Resource, str, Checkpoint]] = []
        for entry in self._watched.values():
            checkpoint = entry.watcher.checkpoint()
            if checkpoint is not None:
                found.append((entry.choice.target.resource, entry.choice.scope, checkpoint))
        return found

    async def record(self, resource: Resource, scope: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint.

        Raises:
            BusError: it may not have been written.
        """
        await self._checkpoints.write(resource, scope, checkpoint)

    async def check_incarnation(self) -> None:
        """Notice that another replica claimed a newer number: then everything starts anew (W23).

        Raises:
            BusError: nothing is known.
        """
        if self.incarnation is _NOBODY:
            return
        # A record that is gone, or fell, has been lost with its store: it is claimed anew.
        if await identity.has_moved(self._kv, self._settings.cluster, self.incarnation):
            self._moved.set()

    @property
    def connection(self) -> int:
        """Which connection to the bus this is; what was stored in an earlier one may be lost."""
        return self._bus.disconnects

    async def start_anew(self, broken: HistoryBroken) -> None:
        """An alarm: a new incarnation number, and so a list of everything (W23).

        Before anything else: who sees a heartbeat after this sees the new number too.

        Raises:
            BusError: nothing was claimed; the alarm comes again.
        """
        metrics.alarms(cluster := self._settings.cluster, broken.alarm).inc()
        self._log.error("history_broken", alarm=broken.alarm, error=str(broken))
        if self.incarnation is not _NOBODY:
            self._least = max(self._least, self.incarnation.number + 1)
            with suppress(ClusterReplaced):  # the next life finds that too
                claim = identity.claim_incarnation
                await claim(self._kv, cluster, self.incarnation.uid, self._least)
        self.chain.restart()
        self._moved.set()

    # --- for ever -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the cluster until cancelled; no failure of it or of the bus ends this."""
        subject = control_subject(self._settings.cluster)
        try:
            async with subscribed(self._bus, subject, self._on_control):
                await race(work=self._run(), probes=self.reach.run())
        finally:
            for undo in self._undo_wakes:
                undo()
            self._forget_metrics()

    def _forget_metrics(self) -> None:
        for entry in self._watched.values():  # the entries stay: a stop records their marks
            metrics.forget(self._settings.cluster, entry.choice.api.resource.key, entry.progress)

    async def _run(self) -> NoReturn:
        backoff = ReachingBackoff(self._settings.backoff, self.reach)
        while True:
            pause = asyncio.sleep
            try:
                await self._serve()
            except IncarnationMoved as e:
                self._fail("Starting", e)
                continue
            except Suspended:
                self._forget_metrics()
                continue
            except HistoryBroken as e:
                if await self._has_started_anew(e):
                    continue
            except ClusterReplaced as e:
                if self._trouble[0] != e.reason:
                    metrics.alarms(self._settings.cluster, e.alarm).inc()
                    self._log.error("cluster_replaced", error=str(e))
                self._is_refused = True
                self._fail(e.reason, e)
                pause = self._wait_for_consent
            except (KubeError, ConfigError) as e:
                self._fail(access_reason(e), e)
                await backoff.pause(e)
                continue
            except (BusError, WatcherError) as e:
                self._fail("BusDown" if isinstance(e, BusError) else e.reason, e)
            await pause(backoff.delay().total_seconds())

    async def _on_control(self, message: Msg) -> None:
        self._grants.wake()
        if message.data == CONTROL_GRANTS:
            return
        self._wished.set()
        self._audit_wished.set()
        # Whoever wakes us may have lost what earlier heartbeats told.
        self.changed.set()

    async def _wait_for_consent(self, seconds: float) -> None:
        """Whoever consents wakes us (W13)."""
        self._wished.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wished.wait()

    async def _has_started_anew(self, broken: HistoryBroken) -> bool:
        try:
            await self.start_anew(broken)
        except BusError as e:
            self._fail("BusDown", e)
            return False
        self._fail("Starting", broken)
        return True

    def _fail(self, reason: str, error: FleetbusError) -> None:
        self._log.warning("cluster_failed", reason=reason, error=str(error))
        self._set_trouble(reason, str(error))

    def _set_trouble(self, reason: str, message: str) -> None:
        if self._trouble != (reason, message):
            self._trouble = (reason, message)
            self._show()

    def _show(self) -> None:
        self._connected.set(0 if self.trouble[0] else 1)
        self.changed.set()

    # --- one life -----------------------------------------------------------------------------

    async def _serve(self) -> None:
        await self._wait_for_bus()
        self._moved.clear()
        self._publisher.key = await message_key(self._kv, self._settings.cluster)
        # Known before the API server answers, so that heartbeats can tell of one that is down.
        known = await identity.read_incarnation(self._kv, self._settings.cluster)
        if known is not None and known.number >= self._least:
            self._hold(known)
        await self.watch_list.wait_until_wanted(self._wished, self._set_trouble)
        with self.reach.guarding():
            await self._work(known)

    async def _work(self, known: Incarnation | None) -> NoReturn:
        await self._identity.learn()
        uid = self._identity.uid
        self.server_version = await self._client.version()
        await self._client.discovery.refresh()
        chosen = await self.watch_list.choose(self._client.discovery)
        resources = [choice.api.resource for choice in chosen.choices.values()]
        seen = await identity.seen_incarnation(self._kv, self._settings.cluster, resources)
        if self._is_refused and known is not None and known.uid == uid:
            await clear_refusal(self._kv, self._settings.cluster)  # the old one is back
        least = max(seen, self._least)
        self._hold(await identity.claim_incarnation(self._kv, self._settings.cluster, uid, least))
        self._is_refused = False
        while True:
            try:
                await self._follow(chosen)
            except BusReturned:
                self._log.info("bus_returned")
                await self._wait_for_bus()

    def _hold(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self._least = incarnation.number

    async def _follow(self, chosen: Chosen) -> None:
        """Watch everything until something moves, or the bus comes back after an absence (W10)."""
        self._returned.clear()
        self._connection = self.connection
        await self.chain.verify()
        await self.check_incarnation()
        self._set_trouble("", "")
        self.changed.set()
        await race(
            types=self._follow_types(chosen),
            wishes=self._follow_wishes(),
            moved=self._raise_if_moved(),
            suspended=self.watch_list.raise_if_suspended(),
            returned=self._raise_if_returned(),
        )

    async def _wait_for_bus(self) -> None:
        settings = self._settings
        async for problem in missing(self._bus, self._kv, settings.cluster, settings.replica):
            self._set_trouble("BusDown", problem)

    async def _raise_if_moved(self) -> NoReturn:
        await self._moved.wait()
        raise IncarnationMoved("the incarnation number is another one now")

    async def _raise_if_returned(self) -> NoReturn:
        await self._returned.wait()
        raise BusReturned("the bus was away")

    # --- what is watched ----------------------------------------------------------------------

    async def _follow_types(self, chosen: Chosen) -> None:
        around = Surroundings(
            client=self._client,
            kv=self._kv,
            publisher=self._publisher,
            checkpoints=self._checkpoints,
            chain=self.chain,
            settings=self._settings,
            incarnation=self.incarnation,
            lists=self._lists,
            grants=self._grants,
            reach=self.reach,
            check_identity=self._identity.check,
            on_event=self._hear_event,
        )
        # What an earlier life watched stays readable until here: a stop records its marks (W21).
        for key in list(self._watched):
            self._leave(key)
        auditor = Auditor(around, self._watched.values, self._audit_wished)
        ends = TypeEnds(around, self._types_changed.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(auditor.run(), name="audits")
            group.create_task(ends.run(), name="type ends")
            while True:
                ends.observe(chosen)
                self._adjust(group, around, chosen, ends)
                await self._wait_for_types()
                chosen = await self._rechoose(chosen)

    async def _wait_for_types(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.discovery_interval.total_seconds()):
                await self._types_changed.wait()
                await asyncio.sleep(_CRD_SETTLES.total_seconds())
        self._types_changed.clear()

    async def _rechoose(self, before: Chosen) -> Chosen:
        """Discovery again; while it fails everything stays as it is."""
        try:
            await self._client.discovery.refresh()
            return await self.watch_list.choose(self._client.discovery)
        except KubeError as e:
            self._log.warning("discovery_failed", error=str(e))
            return before

    def _adjust(
        self, group: asyncio.TaskGroup, around: Surroundings, chosen: Chosen, ends: TypeEnds
    ) -> None:
        """Make the running tasks those that are chosen."""
        left: set[str] = set()
        for key, entry in list(self._watched.items()):
            choice = chosen.choices.get(key)
            if choice is None and ends.holds(entry.choice.api.resource):
                continue
            if choice is None or choice.target != entry.choice.target:
                entry.task.cancel()
                self._leave(key)
                self.changed.set()
                self._log.info("resource_left", resource=str(entry.choice.api.resource))
                left.add(key[0])
        for key, choice in chosen.choices.items():
            if key not in self._watched:
                self._watched[key] = self._start(group, around, choice)
        for resource in left - {key for key, _ in self._watched}:
            metrics.forget_counted(self._settings.cluster, resource)
        if (self._refused, self.watch_set) != (chosen.refused, chosen.watch_set):
            self._refused, self.watch_set = chosen.refused, chosen.watch_set
            self.changed.set()

    def _leave(self, key: tuple[str, str]) -> None:
        entry = self._watched.pop(key)
        metrics.forget(self._settings.cluster, entry.choice.api.resource.key, entry.progress)

    def _start(self, group: asyncio.TaskGroup, around: Surroundings, choice: Choice) -> _Watched:
        namespace = choice.target.namespace
        progress = Progress(choice.api, choice.scope, namespace, self.changed.set)
        metrics.follow(self._settings.cluster, choice.api.resource.key, progress)
        watcher = ResourceWatcher(
            target=choice.target,
            scope=choice.scope,
            kind=choice.api.kind,
            progress=progress,
            around=around,
        )
        task = group.create_task(watcher.run(), name=f"watch-{choice.api.resource}")
        self.changed.set()
        return _Watched(choice, watcher, progress, task)

    def _hear_event(self, target: WatchTarget) -> None:
        if target.resource.key == CRDS.key:
            self._types_changed.set()

    # --- what is wished -----------------------------------------------------------------------

    async def _follow_wishes(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WISH_INTERVAL.total_seconds()):
                    await self._wished.wait()
            self._wished.clear()
            await self._read_watch_list()
            await self._read_wishes()

    async def _read_watch_list(self) -> None:
        with suppress(BusError):  # at the next look
            if await self.watch_list.read():
                self._types_changed.set()

    async def _read_wishes(self) -> None:
        for entry in list(self._watched.values()):
            try:
                wanted = await entry.watcher.read_wish()
                # The number fell with a lost bucket (P2), or a clock was wrong (B8).
                if wanted is not None and identity.is_dropped(self.incarnation.number, wanted):
                    self._least = wanted.incarnation + 1
                    self._moved.set()
            except BusError as e:
                self._log.warning("wish_unreadable", error=str(e))
                return
