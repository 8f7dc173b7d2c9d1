"""Watches one cluster: its identity, its incarnation, and everything that makes it start over.

run            for ever: live, and act on what ended that
_live          one life: identity and incarnation, then all resources until one of these changes
_follow        all resources while the bus stays; after an absence they resume at their checkpoints
_follow_types  what discovery offers, again and again; one task per resource
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto
from typing import Final, Literal, NoReturn, TypeAlias

import structlog
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, NoAnswer, NoStream, subscribed
from fleetbus.errors import BusError, ConfigError, KubeError
from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import Pauses
from fleetbus.watchers.cluster_consent import clear_refusal
from fleetbus.watchers.message_key import message_key
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import KV_BUCKET, kv_incarnation
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import CONTROL_GRANTS, STREAM, control_subject, status_subject
from fleetbus_watcher import metrics
from fleetbus_watcher.audit.auditor import Auditor
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.errors import (
    ClusterReplaced,
    HistoryBroken,
    WatcherError,
    access_reason,
    failure_reason,
)
from fleetbus_watcher.follow.context import UNKNOWN, ClusterContext
from fleetbus_watcher.incarnation import (
    claim_incarnation,
    has_moved,
    highest_number,
    is_dropped,
    read_incarnation,
)
from fleetbus_watcher.publish.checkpoint import Checkpoint
from fleetbus_watcher.reachability import ReachabilityBackoff
from fleetbus_watcher.resources.effective_spec import EffectiveSpec
from fleetbus_watcher.resources.removed_types import RemovedTypes
from fleetbus_watcher.resources.served_types import ServedTypes
from fleetbus_watcher.resources.watched_resources import WatchedResources
from fleetbus_watcher.selection import SelectionResult

log = structlog.get_logger()

_FIRST_BUS_PAUSE: Final = timedelta(seconds=0.05)
_LONGEST_BUS_PAUSE: Final = timedelta(seconds=5)
_NAMED: Final = 5
"""Group versions that a line of the log names."""
_NOT_READY: Final = ("Starting", "BusDown")


class _End(Enum):
    """The reasons to end all watches although nothing failed."""

    MOVED = auto()
    """Another replica claimed a newer incarnation number: this one starts over (W23)."""
    SUSPENDED = auto()
    """Nothing is watched until the cluster is resumed."""
    BUS_RETURNED = auto()
    """The bus was away, and may have lost what it acknowledged last (W10)."""


_Outcome: TypeAlias = (
    Literal[_End.MOVED, _End.SUSPENDED] | KubeError | ConfigError | BusError | WatcherError
)
"""The end of a life."""


class ClusterWatcher:
    """Everything that is watched of one cluster.

    Args:
        context: what everything that is done for the cluster shares.
        spec: what to watch.
        bus: a connection.

    Attributes:
        incarnation: the one of heartbeats.
        resources: what is watched now.
        types: the names and columns of what is watched.
        server_version: of the API server; empty before it answered.
        platform: of the API server, like `linux/amd64`; empty before it answered.
        spec: what to watch.
    """

    def __init__(self, context: ClusterContext, spec: EffectiveSpec, bus: Bus) -> None:
        cluster = context.settings.cluster
        self._context = context
        self._settings = context.settings
        self._kv = context.kv
        self._bus = bus
        self.spec = spec
        self._changed = context.changed
        self._reachability = context.reachability
        self.incarnation: Incarnation = UNKNOWN
        self.server_version = ""
        self.platform = ""
        self.resources = WatchedResources(cluster, context.changed)
        self.types = ServedTypes(context)
        self._log = log.bind(cluster=cluster)
        self._unread = LogOnce()
        self._trouble: tuple[str, str] = ("Starting", "")
        self._is_refused = False
        self._resync_requested = asyncio.Event()
        self._audit_requested = asyncio.Event()
        self._moved = asyncio.Event()
        # The lowest incarnation number that may be used: ours never decreases (W23).
        self._least = 0
        # W10: in which connection to the bus the present watches began.
        self._connection = bus.disconnects
        self._returned = asyncio.Event()
        metrics.show_connected(cluster, lambda: not self.trouble[0])
        metrics.create_alarms(cluster)

    # --- queries of heartbeats and probes -----------------------------------------------------

    @property
    def trouble(self) -> tuple[str, str]:
        """Reason and message while the cluster cannot be watched; empty when it can."""
        if self._reachability.problem and self._trouble[0] in {"", "Starting"}:
            return ("Unreachable", self._reachability.problem)
        if self._trouble[0]:
            return self._trouble
        return self.resources.no_access()

    def unsettled(self) -> str:
        """Name the first syncs that are neither complete nor failing; empty for none."""
        reason, message = self.trouble
        if reason:
            # A cluster that is down is a state of the cluster, not of this process.
            return f"{reason}: {message}" if reason in _NOT_READY else ""
        return self.resources.unsettled()

    @property
    def is_watching(self) -> bool:
        """Whether every resource is followed, so that a peer may stop (W22)."""
        return not self.trouble[0] and self.resources.are_followed

    def checkpoints(self) -> list[tuple[Resource, str, Checkpoint]]:
        """Return the checkpoints that may be written now; none while the bus is in doubt (W10)."""
        return self.resources.checkpoints() if self._connection == self.connection else []

    async def check_incarnation(self) -> None:
        """Start over if another replica has claimed a newer number (W23).

        Raises:
            BusError: the record could not be read.
        """
        incarnation = self.incarnation
        if incarnation is UNKNOWN:
            return
        # A record that is gone, or went back, was lost with its store: a new one is claimed.
        # Unless the next life has claimed one meanwhile: then the record is that.
        if (
            await has_moved(self._kv, self._settings.cluster, incarnation)
            and self.incarnation == incarnation
        ):
            self._moved.set()

    @property
    def connection(self) -> int:
        """The present connection to the bus; what was stored in an earlier one may be lost."""
        return self._bus.disconnects

    async def start_over(self, broken: HistoryBroken) -> None:
        """Raise an alarm, claim a new incarnation number, and list everything again (W23).

        The number is claimed first: whoever reads a heartbeat after this reads the new number too.

        Raises:
            BusError: nothing was claimed; the alarm comes again.
        """
        cluster = self._settings.cluster
        metrics.alarms(cluster, broken.alarm).inc()
        self._log.error("history_broken", alarm=broken.alarm, error=str(broken))
        if self.incarnation is not UNKNOWN:
            self._least = max(self._least, self.incarnation.number + 1)
            with suppress(ClusterReplaced):  # the next life finds that too
                uid = self.incarnation.uid
                await claim_incarnation(self._kv, cluster, uid, self._least)
        self._context.loss_detector.restart()
        self._moved.set()

    # --- for ever -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the cluster until cancelled; no failure of it or of the bus ends this."""
        subject = control_subject(self._settings.cluster)
        unsubscribe = self._bus.on_reconnect(self._on_reconnect)
        try:
            async with subscribed(self._bus, subject, self._on_control):
                await run_group(work=self._run(), probes=self._reachability.run())
        finally:
            unsubscribe()
            self.resources.forget_ages()

    async def _run(self) -> NoReturn:
        backoff = ReachabilityBackoff(self._settings.backoff, self._reachability)
        while True:
            await self._proceed(await self._live(), backoff)

    async def _live(self) -> _Outcome:
        try:
            return await self._serve()
        except (KubeError, ConfigError, BusError, WatcherError) as e:
            return e

    async def _proceed(self, outcome: _Outcome, backoff: ReachabilityBackoff) -> None:
        match outcome:
            case _End.MOVED:
                self._fail("Starting", "the incarnation number has changed")
            case _End.SUSPENDED:
                self.resources.forget_ages()
            case HistoryBroken():
                if not await self._has_started_over(outcome):
                    await asyncio.sleep(backoff.delay().total_seconds())
            case ClusterReplaced():
                self._refuse(outcome)
                await self._wait_for_consent(backoff.delay().total_seconds())
            case KubeError() | ConfigError():
                self._fail(access_reason(outcome), str(outcome))
                await backoff.pause(outcome)
            case _:
                self._fail(failure_reason(outcome), str(outcome))
                await asyncio.sleep(backoff.delay().total_seconds())

    async def _on_control(self, message: Msg) -> None:
        self._context.grants.wake()
        if message.data == CONTROL_GRANTS:
            return
        self._resync_requested.set()
        self._audit_requested.set()
        # The sender may have lost what earlier heartbeats reported.
        self._changed.set()

    def _on_reconnect(self) -> None:
        self._returned.set()
        self._resync_requested.set()
        self._context.grants.wake()

    async def _wait_for_consent(self, seconds: float) -> None:
        """Wait until a control message arrives, as after an operator's consent (W13)."""
        self._resync_requested.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._resync_requested.wait()

    async def _has_started_over(self, broken: HistoryBroken) -> bool:
        try:
            await self.start_over(broken)
        except BusError as e:
            self._fail("BusDown", str(e))
            return False
        self._fail("Starting", str(broken))
        return True

    def _refuse(self, error: ClusterReplaced) -> None:
        if self._trouble[0] != error.reason:
            metrics.alarms(self._settings.cluster, error.alarm).inc()
            self._log.error("cluster_replaced", error=str(error))
        self._is_refused = True
        self._fail(error.reason, str(error))

    def _fail(self, reason: str, message: str) -> None:
        self._log.warning("cluster_failed", reason=reason, error=message)
        self._set_trouble(reason, message)

    def _set_trouble(self, reason: str, message: str) -> None:
        if self._trouble != (reason, message):
            self._trouble = (reason, message)
            self._changed.set()

    # --- one life -----------------------------------------------------------------------------

    async def _serve(self) -> _Outcome:
        await self._wait_for_bus()
        self._context.publisher.key = await message_key(self._kv, self._settings.cluster)
        # Read before the API server answers, so that heartbeats can report one that is down.
        record = await read_incarnation(self._kv, self._settings.cluster)
        if record is not None and record.number >= self._least:
            self._hold(record)
        await self.spec.wait_until_resumed(self._resync_requested, self._set_trouble)
        with self._reachability.guarding():
            selected = await self._claim(record)
            while (end := await self._follow(selected)) is _End.BUS_RETURNED:
                self._log.info("bus_returned")
                await self._wait_for_bus()
            return end

    async def _claim(self, record: Incarnation | None) -> SelectionResult:
        """Claim an incarnation number for the cluster that answers; return what to watch of it."""
        context, cluster = self._context, self._settings.cluster
        await context.identity.learn()
        uid = context.identity.uid
        version = await context.client.get_json("/version")
        self.server_version = str(version.get("gitVersion", ""))
        self.platform = str(version.get("platform", ""))
        await context.client.discovery.refresh()
        selected = await self.spec.select(context.client.discovery)
        resources = [each.api.resource for each in selected.resources.values()]
        highest = await highest_number(self._kv, cluster, resources)
        if self._is_refused and record is not None and record.uid == uid:
            await clear_refusal(self._kv, cluster)  # the old cluster is back
        least = max(highest, self._least)
        self._hold(await claim_incarnation(self._kv, cluster, uid, least))
        self._moved.clear()  # what comes after this is about the number that is ours now
        self._is_refused = False
        return selected

    def _hold(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self._least = incarnation.number

    async def _follow(self, selected: SelectionResult) -> _End:
        """Watch everything until the cluster must start over, or the bus returned (W10)."""
        self._returned.clear()
        self._connection = self.connection
        await self._context.loss_detector.verify()
        await self.check_incarnation()
        self._set_trouble("", "")
        self._changed.set()
        return await run_group(
            types=self._follow_types(selected),
            resyncs=self._follow_resync_requests(),
            moved=_wait(self._moved, _End.MOVED),
            suspended=_wait(self.spec.suspended, _End.SUSPENDED),
            returned=_wait(self._returned, _End.BUS_RETURNED),
        )

    async def _wait_for_bus(self) -> None:
        """Wait for the stream and the bucket, which their owner creates (rules B12, B15).

        Only what a watcher has the rights to read is requested (S3).
        """
        cluster, replica = self._settings.cluster, self._settings.replica
        record = f"$JS.API.DIRECT.GET.{STREAM}.{status_subject(cluster, replica)}"
        pauses = Pauses(_FIRST_BUS_PAUSE, _LONGEST_BUS_PAUSE)
        while True:
            try:
                await self._bus.request(record)
                await self._kv.get(kv_incarnation(cluster))
            except (NoStream, NoAnswer) as e:
                self._set_trouble("BusDown", f"waiting for {STREAM} and {KV_BUCKET}: {e}")
                await pauses.sleep()
            else:
                return

    # --- what is watched ----------------------------------------------------------------------

    async def _follow_types(self, selected: SelectionResult) -> NoReturn:
        # What an earlier life watched stays readable until here: a stop records its marks (W21).
        self.resources.clear()
        context = replace(self._context, incarnation=self.incarnation)
        auditor = Auditor(context, self.resources.watchers, self._audit_requested)
        removed = RemovedTypes(context, self.resources.stop)
        async with asyncio.TaskGroup() as group:
            group.create_task(auditor.run(), name="audits")
            group.create_task(removed.run(), name="removed types")
            group.create_task(self.types.run(), name="served types")
            while True:
                removed.observe(selected)
                self.types.observe(selected)
                self.resources.adjust(group, context, selected, removed)
                await self._wait_for_types()
                selected = await self._select_again(selected)

    async def _wait_for_types(self) -> None:
        changed = self._context.types_changed
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.discovery_interval.total_seconds()):
                await changed.wait()
                await asyncio.sleep(self._context.timing.crd_settles.total_seconds())
        changed.clear()

    async def _select_again(self, before: SelectionResult) -> SelectionResult:
        """Refresh discovery and select; while that fails everything stays as it is."""
        discovery = self._context.client.discovery
        try:
            await discovery.refresh()
            self._note_unread(discovery.failed)
            return await self.spec.select(discovery)
        except KubeError as e:
            self._log.warning("discovery_failed", error=str(e))
            return before

    def _note_unread(self, failed: Mapping[str, KubeError]) -> None:
        """Log which group versions cannot be read: their types are watched as before."""
        names = ", ".join(sorted(failed)[:_NAMED]) + (", …" if len(failed) > _NAMED else "")
        if failed and self._unread.should_log(names):
            reason = str(failed[min(failed)])
            self._log.warning("types_unread", group_versions=names, count=len(failed), error=reason)

    # --- what is requested --------------------------------------------------------------------

    async def _follow_resync_requests(self) -> NoReturn:
        timing = self._context.timing
        interval = timing.resync_requests.total_seconds()
        pause = min(timing.specs, timing.resync_requests).total_seconds()
        due = time.monotonic() + interval
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._resync_requested.wait()
            is_woken = self._resync_requested.is_set()
            self._resync_requested.clear()
            await self._read_spec()
            if is_woken or time.monotonic() >= due:
                await self._read_resync_requests()
                due = time.monotonic() + interval

    async def _read_spec(self) -> None:
        with suppress(BusError):  # it is read again with the next requests
            if await self.spec.read():
                self._context.types_changed.set()

    async def _read_resync_requests(self) -> None:
        for watcher in self.resources.watchers():
            try:
                request = await watcher.read_resync()
                # Our number went back with a lost bucket (P2), or a clock was wrong (B8).
                if request is not None and is_dropped(self.incarnation.number, request):
                    self._least = request.incarnation + 1
                    self._moved.set()
            except BusError as e:
                self._log.warning("resync_requests_unreadable", error=str(e))
                return


async def _wait(event: asyncio.Event, end: _End) -> _End:
    await event.wait()
    return end
