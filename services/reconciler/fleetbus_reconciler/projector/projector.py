"""Handles the messages of the event stream: applies events, finishes epochs, notes heartbeats.

Beside it run the loops that request again what did not arrive, and that keep fleet and store in
line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.rejected import RejectedMessages
from fleetbus.clusters.registry import Clusters
from fleetbus.process import metrics
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.snapshot.outcomes import ApplyOutcome, ApplyResult
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.sweep import OpenEpoch
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto.admission import cluster_of
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import (
    Verb,
    check_cluster,
    decode_token,
    parse_event_subject,
)
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.fleet_status.fleet_state import FleetState, resource_of
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.for_each import for_each
from fleetbus_reconciler.list_grants.granter import Granter
from fleetbus_reconciler.projector.audit_evaluator import AuditEvaluator
from fleetbus_reconciler.projector.clock_skew import ClockSkew
from fleetbus_reconciler.projector.loss_recovery import LossRecovery
from fleetbus_reconciler.projector.rounds import rounds
from fleetbus_reconciler.projector.sweeper import Sweeper
from fleetbus_reconciler.projector.unwatched_scopes import UnwatchedScopes
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import ReconcilerTiming

log = structlog.get_logger()

Apply: TypeAlias = Callable[[Sequence[Event]], Awaitable[ApplyResult]]


class Projector:
    """The handler of the projector's consumer, and the loops beside it.

    Args:
        reader: the snapshot.
        writer: the snapshot.
        applied: writes events to it, if there are controllers in this process.
        clusters: the registry.
        state: the records of clusters and resources.
        resyncs: requests lists.
        accepted: the accepted UIDs, by which messages are admitted.
        sweeper: takes completed epochs.
        granter: notified of what arrives of running epochs.
        audits: takes the pages of audits.
        clocks: takes messages that were refused for their number.
        unwatched: notified of what watchers report that they watch.
        recovery: rebuilds an emptied store.
        settings: intervals and limits.
        timing: further intervals.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        applied: AppliedHere | None,
        clusters: Clusters,
        state: FleetState,
        resyncs: ResyncRequests,
        accepted: AcceptedUids,
        sweeper: Sweeper,
        granter: Granter,
        audits: AuditEvaluator,
        clocks: ClockSkew,
        unwatched: UnwatchedScopes,
        recovery: LossRecovery,
        settings: ReconcilerSettings,
        timing: ReconcilerTiming,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._apply_once: Apply = writer.apply if applied is None else applied.apply
        self._clusters = clusters
        self._state = state
        self._resyncs = resyncs
        self._accepted = accepted
        self._sweeper = sweeper
        self._granter = granter
        self._audits = audits
        self._clocks = clocks
        self._unwatched = unwatched
        self._recovery = recovery
        self._settings = settings
        self._timing = timing
        # Epochs that wait for objects, and since when; their content is in the store.
        self._open: dict[OpenEpoch, float] = {}
        self._refused = RejectedMessages(PROJECTOR, lambda name: clusters.get(name) is not None)
        self._changed = asyncio.Event()
        clusters.on_change(self._changed.set)

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Apply a batch, of each cluster in its order; then it is acknowledged (rule P9)."""
        await self._handle(deliveries, self._apply_once)

    async def handle_again(self, deliveries: Sequence[Delivery]) -> None:
        """The same for what the store has lost, however short ago it was written (rule P11)."""
        await self._handle(deliveries, self._writer.apply)

    async def _handle(self, deliveries: Sequence[Delivery], apply: Apply) -> None:
        try:
            await self._apply(deliveries, apply)
        except StoreEmpty:
            await self._recovery.rebuild(self._shards_of(deliveries))
            raise  # the batch comes again
        metrics.EVENTS_CONSUMED.labels(PROJECTOR).inc(len(deliveries))

    def _shards_of(self, deliveries: Sequence[Delivery]) -> set[int]:
        clusters = {cluster_of(delivery.subject) for delivery in deliveries}
        return {self._writer.keys.shard_of(cluster) for cluster in clusters if cluster}

    async def _apply(self, deliveries: Sequence[Delivery], apply: Apply) -> None:
        for batch in rounds(deliveries):
            if batch.events:
                await self._apply_events(batch.events, apply)
            await for_each(batch.others.values(), self._take_all)

    async def _apply_events(self, events: Sequence[Event], apply: Apply) -> None:
        result = await apply(events)
        for completed in result.completed:
            self._sweeper.add(completed)
        self._granter.note_events(events)

    async def _take_all(self, deliveries: Sequence[Delivery]) -> None:
        """Handle what is no event, of one cluster, in the order of the stream."""
        for delivery in deliveries:
            await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, Heartbeat | EpochEnd | AuditPage) and (
            problem := await self._accepted.admit(message)
        ):
            self._refused.record(replace(delivery, problem=problem))
            if isinstance(message, EpochEnd):
                self._granter.note_end(message)
        elif isinstance(message, EpochEnd):
            await self._end_epoch(message)
        elif isinstance(message, Heartbeat):
            self._unwatched.receive(message)
            await self._state.apply_heartbeat(message)
            await self._audits.receive(message)
        elif isinstance(message, AuditPage):
            if not await self._audits.take(message):
                await self._check_history(message)
        elif message is None:
            await self._reject(delivery)

    async def _end_epoch(self, marker: EpochEnd) -> None:
        await self._clocks.clear(marker.cluster)
        state = await self._writer.end_epoch(marker)
        self._granter.note_end(marker)
        if state.outcome is ApplyOutcome.STALE:
            await self._check_history(marker)
        # An incomplete one is found in the store by `follow_epochs`, also after a restart.
        if state.complete:
            self._sweeper.add(state.epoch)

    async def _check_history(self, message: EpochEnd | AuditPage) -> None:
        """Request a new number if all that a live watcher sends of a resource is dropped (P2).

        Somebody once published under a higher number, which no heartbeat has ever reported.
        """
        cluster, number = message.cluster, message.incarnation.number
        record = await self._reader.cluster(cluster)
        if record is None or number < record.incarnation:
            return
        if number < await self._reader.highest_incarnation(cluster, message.resource_key):
            reason = "its incarnation number is lower than one that was seen"
            await self._resyncs.request_or_defer(cluster, resource_of(message), reason)

    async def _reject(self, delivery: Delivery) -> None:
        """Count and log a refused message; the stream goes on (rule B18)."""
        self._refused.record(delivery)
        place = _place_of(delivery.subject)
        if delivery.ahead:
            await self._clocks.report(delivery)
        if place and delivery.ahead:
            await self._clocks.request_list(*place, delivery.ahead)
        elif place:
            await self._resyncs.request_or_defer(*place, "a message could not be read")

    async def converge(self) -> None:
        """Bring the fleet in the store in line with the registry."""
        for name in await self._state.converge():
            self._sweeper.forget_cluster(name)
            self._audits.forget_cluster(name)
            self._refused.forget_cluster(name)
            with contextlib.suppress(KeyError):
                metrics.REJECTED_MESSAGES.remove(PROJECTOR, name)
        for info in self._clusters.all():
            metrics.REJECTED_MESSAGES.labels(PROJECTOR, info.name)

    async def follow_fleet(self) -> None:
        """Write joins, changes and leaves as they happen, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.converge()
            except Exception as e:  # noqa: BLE001 -- Redis is away: try again
                log.warning("fleet_not_written", error=str(e))
                await asyncio.sleep(self._timing.retry.total_seconds())
                self._changed.set()

    async def follow_epochs(self) -> None:
        """Request again what did not arrive, until cancelled.

        That is incomplete epochs, second lists, unfinished sweeps and deferred requests.
        """
        interval = min(
            self._timing.epoch_checks, self._settings.incomplete_wait / 4
        ).total_seconds()
        checked_at = float("-inf")
        while True:
            try:
                await self._sweeper.request_second_lists()
                if time.monotonic() - checked_at >= interval:
                    checked_at = time.monotonic()
                    await self._follow_unfinished()
                await self._resyncs.write_pending()
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: try again
                log.warning("epochs_not_followed", error=str(e))
                await asyncio.sleep(self._timing.retry.total_seconds())
            await asyncio.sleep(self._timing.request_checks.total_seconds())

    async def watch_store(self) -> None:
        """Notice an emptied store while no message comes, and mark as stale what is silent."""
        interval = min(self._timing.checks, self._settings.silence_check_interval).total_seconds()
        while True:
            await asyncio.sleep(interval)
            try:
                if empty := await self._reader.empty_shards():
                    await self._recovery.rebuild(empty)
                # Also without a change: another projector may have written an older fleet.
                await self.converge()
                await self._state.mark_stale(self._settings.silent_after)
            except Exception as e:  # noqa: BLE001 -- Redis is away: try again
                log.warning("store_unreachable", error=str(e))

    async def _follow_unfinished(self) -> None:
        clusters = [record.name for record in (await self._reader.available_clusters()).records]
        unfinished = await for_each(clusters, self._writer.sweeps.find_unfinished)
        self._sweeper.take_over({epoch for each in unfinished for epoch in each.pending})
        await self._request_incomplete([epoch for each in unfinished for epoch in each.waiting])

    async def _request_incomplete(self, waiting: Iterable[OpenEpoch]) -> None:
        now = time.monotonic()
        # While objects still arrive its value changes, and its time starts again.
        open_epochs = {epoch: self._open.get(epoch, now) for epoch in waiting}
        self._open = open_epochs
        limit = now - self._settings.incomplete_wait.total_seconds()
        for epoch, since in open_epochs.items():
            if since <= limit:
                group, _, plural = epoch.resource_key.partition("/")
                await self._resyncs.request(
                    epoch.cluster,
                    Resource(group, "", plural),
                    "objects of an epoch did not arrive",
                    newer_than=epoch.rank.id,
                )


def _place_of(subject: str) -> tuple[str, Resource] | None:
    """Cluster and resource whose list replaces an unreadable message; none for a heartbeat.

    Nor for a listed object: it is missing in its epoch's count, for which another list is requested
    in time. Requested at once, a lasting cause would lead to lists without end.
    """
    tokens = subject.split(".")
    try:
        if tokens[1:2] == ["epochs"]:
            cluster, group, plural = tokens[2:5]
            return check_cluster(cluster), Resource(decode_token(group), "", decode_token(plural))
        place = parse_event_subject(subject)
    except (InvalidName, ValueError):
        return None
    if place.verb is Verb.LISTED:
        return None
    return place.cluster, Resource(place.group, "", place.resource)
