"""Watches one resource of one cluster for ever: list, end the epoch, watch, list again.

An epoch (rule W7): claim an id; read the list page by page and publish each object as `listed`;
open the watch at the list's version as soon as the first page has returned it, so that its events
interleave with the pages; wait until everything is stored; publish the epoch's end; wait until that
is stored. Only then may a checkpoint be written, from which a restarted watcher resumes without a
list. Before all that a grant is requested from the projector (`follow.grant_client`).
A list that a peer replica has made, or is making, makes ours unnecessary (`follow.resume`).
Any doubt on the way abandons the epoch (rule W8): an end that is published although an object is
missing would become a deletion.
The present watch goes on meanwhile, until the watch of the new list has taken over (rule W24,
`follow.watch_reader`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from fleetbus.errors import BusError, Gone, KubeError
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.list_watch.listing import ListPage, WatchTarget, list_pages
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.watchers.grant_requests import GrantRequest
from fleetbus.watchers.resync import ResyncRequest, read_resync
from fleetbus_proto.events import EpochEnd, Rank
from fleetbus_watcher import metrics
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.errors import (
    ClusterReplaced,
    EpochAbandoned,
    GrantExceeded,
    HistoryBroken,
    PeerReplicaLists,
    PublishGivenUp,
    Unpublishable,
    WatcherError,
    failure_reason,
)
from fleetbus_watcher.etcd_restore import check_list_version
from fleetbus_watcher.follow.context import ClusterContext, ResourceContext
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.grant_client import Grant
from fleetbus_watcher.follow.list_limits import PageSizes
from fleetbus_watcher.follow.overlap import OverlappingWatches
from fleetbus_watcher.follow.progress import Progress
from fleetbus_watcher.follow.resume import Position, Resumption
from fleetbus_watcher.follow.watch_reader import WatchReader
from fleetbus_watcher.incarnation import claim_epoch
from fleetbus_watcher.publish.checkpoint import Checkpoint
from fleetbus_watcher.reachability import ReachabilityBackoff
from fleetbus_watcher.selection import SelectedResource
from fleetbus_watcher.transform.transform import transform_of
from fleetbus_watcher.transform.translate import Origin, from_list


@dataclass(frozen=True, slots=True)
class Restart:
    """The next life begins at once: it lists again, or resumes at a checkpoint."""

    reason: str
    message: str


Failure: TypeAlias = KubeError | WatcherError | BusError


class _Listing:
    """A list that is being made.

    Attributes:
        admitted: set once it has a list slot.
        opened: the watch that continues it, once its first page is there.
    """

    def __init__(self) -> None:
        self.admitted = asyncio.Event()
        self.opened: asyncio.Future[WatchReader] = asyncio.get_running_loop().create_future()

    async def wait_until_opened(self) -> WatchReader:
        """Wait for the watch."""
        return await asyncio.shield(self.opened)

    async def wait_until_begun(self) -> bool:
        """Wait for the watch; returns False, to end a group."""
        await self.wait_until_opened()
        return False


class ResourceWatcher:
    """One resource (of one scope), listed and watched for ever.

    Args:
        selected: the resource.
        progress: its state, for heartbeats.
        context: of the cluster.
    """

    def __init__(
        self, selected: SelectedResource, progress: Progress, context: ClusterContext
    ) -> None:
        self._context = context
        settings, self._target = context.settings, selected.target
        self._kind = selected.api.kind
        scope, resource = selected.scope, selected.target.resource
        self._resource = ResourceContext(
            cluster=context,
            target=selected.target,
            scope=scope,
            origin=Origin.of(
                selected.target,
                scope,
                self._kind,
                cluster=settings.cluster,
                incarnation=context.incarnation,
                transform=transform_of(settings.rules, selected.target.resource.key),
            ),
            progress=progress,
            metrics=metrics.resource_metrics(settings.cluster, resource.key),
            backoff=ReachabilityBackoff(settings.backoff, context.reachability),
        )
        self._log = self._resource.log
        self._metrics = self._resource.metrics
        self._progress = progress
        self._resumption = Resumption(resource, scope, context)
        self._watches = OverlappingWatches(self._resource, self._resumption.mark_stale)
        # The epoch of the newest list or checkpoint.
        self._epoch: EpochState | None = None
        self._request: ResyncRequest | None = None
        self._request_read = asyncio.Event()
        self._page_sizes = PageSizes(settings.page_size)
        # W7: how many bytes the next list will publish; 0 before the first one.
        self._size = 0
        # W16: whether the present epoch was caused by a loss.
        self._is_healing = False
        self._healing_backoff = ApiBackoff(settings.backoff)
        self._gathering = context.publisher.gather()

    # --- queries ------------------------------------------------------------------------------

    async def read_resync(self) -> ResyncRequest | None:
        """Read the resync request of the resource; `run` fulfils it (rule W20).

        Raises:
            BusError: it could not be read.
        """
        context = self._context
        cluster = context.settings.cluster
        self._request = await read_resync(context.kv, cluster, self._target.resource)
        self._request_read.set()
        return self._request

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint; None before the epoch's end is stored (W4), and after a loss.

        The mark has passed what was lost, so a restart must not resume there (W16).
        """
        epoch = self._epoch
        if epoch is None or not epoch.is_complete or self._progress.has_loss:
            return None
        if not self._watches.mark:
            return None
        return Checkpoint(
            incarnation=self._context.incarnation,
            rank=epoch.rank,
            # Older watches may still have to publish events from before that list.
            resource_version=self._watches.mark,
        )

    @property
    def objects(self) -> int:
        """Number of objects of the present list; 0 when it was resumed from a checkpoint."""
        return self._epoch.listed if self._epoch is not None else 0

    @property
    def target(self) -> WatchTarget:
        """The resource, and what narrows it."""
        return self._target

    @property
    def scope(self) -> str:
        """The hash of what narrows it."""
        return self._resource.scope

    # --- for ever -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the resource until cancelled; no failure of the server or the bus ends it.

        Raises:
            ClusterReplaced, HistoryBroken: everything must start over.
        """
        try:
            await self._read_first_request()
            while True:
                outcome = await self._live()
                if outcome is not None:
                    await self._proceed(outcome)
        finally:
            await self._watches.close()

    async def _read_first_request(self) -> None:
        while not self._request_read.is_set():
            try:
                await self.read_resync()
            except BusError as e:
                await self._pause(e)

    async def _live(self) -> Restart | Failure | None:
        """Watch, from a checkpoint or a new list; return what ended that."""
        try:
            await self._watches.keep()
            position = await self._find_position()
            if position is not None and self._suffices(position.rank):
                return await self._resume(position)
            return await self._list_and_watch(position)
        except (KubeError, WatcherError, BusError) as e:
            return e

    async def _proceed(self, outcome: Restart | Failure) -> None:
        match outcome:
            case Restart():
                self._log.info("watch_restarts", reason=outcome.reason, message=outcome.message)
            case PeerReplicaLists():
                await self._wait_for_peer(outcome.request)
            case GrantExceeded():
                self._log.info("grant_exceeded", bytes=outcome.bytes)
                self._size = outcome.bytes
            case ClusterReplaced() | HistoryBroken():
                raise outcome
            case PublishGivenUp():
                # What was sent may not be stored: everything resumes at the checkpoint (B4).
                await self._watches.forget()
                await self._pause(outcome)
            case _:
                await self._pause(outcome)

    async def _find_position(self) -> Position | None:
        # After a loss the mark may be past what was lost; only a list repairs that (W16).
        return None if self._progress.has_loss else await self._resumption.find()

    async def _wait_for_peer(self, request: GrantRequest) -> None:
        try:
            await self._resumption.wait_for(request, self._suffices)
        except BusError as e:
            await self._pause(e)

    def _suffices(self, rank: Rank) -> bool:
        """Whether an epoch satisfies the resync request."""
        request = self._request
        if request is None:
            return True
        return rank.id >= request.min_epoch and not request.refuses(rank.id, now_ms())

    async def _pause(self, error: Failure) -> None:
        delay, reason = self._resource.backoff.delay(error), failure_reason(error)
        self._metrics.failures.inc()
        self._progress.failed(reason, str(error))
        self._log.warning(
            "resource_failed", reason=reason, error=str(error), pause=delay.total_seconds()
        )
        await self._context.reachability.pause(error, delay)

    # --- a watch ------------------------------------------------------------------------------

    async def _resume(self, position: Position) -> Restart | None:
        await self._watches.forget()
        self._epoch = EpochState(position.rank, position.resource_version, is_complete=True)
        self._progress.resumed()
        return await self._follow(self._watches.open(self._epoch))

    async def _follow(self, reader: WatchReader) -> Restart | None:
        """Read a watch until it fails, or the resource must be listed."""
        return await run_group(
            watch=self._watches.wait(reader),
            resync=self._wait_for_request(reader.epoch),
            healing=self._heal(reader.epoch),
        )

    async def _wait_for_request(self, epoch: EpochState) -> Restart:
        while self._request is None or self._suffices(epoch.rank):
            self._request_read.clear()
            await self._request_read.wait()
        return Restart("ResyncRequested", self._request.reason)

    async def _heal(self, epoch: EpochState) -> Restart:
        """List once more after a loss; what that list cannot read either stays degraded (W16).

        Until it is in the watch again: it may have been repaired, or deleted.
        """
        await epoch.lost.wait()
        await epoch.ended.wait()
        if self._is_healing and not epoch.is_complete:
            await epoch.watch_lost.wait()
        await asyncio.sleep(self._healing_backoff.delay().total_seconds())
        self._is_healing = True
        return Restart("ResyncRequested", "an object could not be read")

    # --- an epoch -----------------------------------------------------------------------------

    async def _list_and_watch(self, position: Position | None) -> Restart | None:
        """List, and watch from there; a present watch, or one from a checkpoint, goes on (W24)."""
        if position is not None and not self._watches.mark:
            epoch = EpochState(position.rank, position.resource_version, is_complete=True)
            self._watches.open(epoch).keep()
        self._epoch = None  # no checkpoint before the end of this epoch (W4)
        listing = _Listing()
        return await run_group(
            epoch=self._run_epoch(listing),
            older=self._watches.finish(),
            watch=self._follow_opened(listing),
            peer=self._wait_for_peer_list(listing),
        )

    async def _follow_opened(self, listing: _Listing) -> Restart | None:
        return await self._follow(await listing.wait_until_opened())

    async def _wait_for_peer_list(self, listing: _Listing) -> Restart | None:
        """Use the list of a peer replica as long as ours has not begun (rule W15)."""
        if self._progress.has_loss:
            return None
        await listing.admitted.wait()
        is_listed = await run_group(
            listed=self._resumption.wait_until_listed(self._suffices),
            begun=listing.wait_until_begun(),
        )
        return Restart("PeerReplicaListed", "another replica has listed it") if is_listed else None

    async def _run_epoch(self, listing: _Listing) -> None:
        context = self._context
        async with context.lists:
            listing.admitted.set()
            self._progress.listing()
            try:
                # First of all, so that a cluster that is down requests no grant.
                await context.identity.check()
                async with context.grants.granted(
                    self._target.resource, self._resource.scope, self._size, self._progress.waiting
                ) as grant:
                    await self._run_granted(grant, listing.opened)
            except (KubeError, WatcherError, BusError) as e:
                self._metrics.abandoned.inc()
                if isinstance(e, Gone) and listing.opened.done():
                    self._page_sizes.expired()
                raise

    async def _run_granted(self, grant: Grant, opened: asyncio.Future[WatchReader]) -> None:
        context = self._context
        self._progress.listing()
        cluster, resource = context.settings.cluster, self._target.resource
        epoch_id = await claim_epoch(context.kv, cluster, resource, self._request)
        await grant.begin(epoch_id)
        if grant.peer is not None and self._may_wait_for(grant.peer):
            raise PeerReplicaLists(grant.peer)
        if grant.was_awaited:
            await context.identity.check()
        pages = list_pages(
            context.client,
            self._target,
            limit=self._page_sizes.limit,
            idle_timeout=context.settings.silence,
        )
        async with aclosing(pages):
            await self._publish_pages(pages, epoch_id, grant, opened)
        epoch = opened.result().epoch
        await self._end_epoch(epoch)
        self._size = grant.bytes
        grant.is_complete = epoch.is_complete

    def _may_wait_for(self, peer: GrantRequest) -> bool:
        if self._progress.has_loss:
            return False
        return self._resumption.is_worth_waiting(peer, self._suffices)

    async def _publish_pages(
        self,
        pages: AsyncGenerator[ListPage],
        epoch_id: int,
        grant: Grant,
        opened: asyncio.Future[WatchReader],
    ) -> None:
        self._gathering = self._context.publisher.gather()
        async for page in pages:
            self._progress.receive()
            if not opened.done():
                opened.set_result(self._open(page, epoch_id))
            for item in page.items:
                grant.count(await self._publish_item(item, opened.result().epoch))
            await self._gathering.flush()
            grant.check(page.remaining)

    def _open(self, page: ListPage, epoch_id: int) -> WatchReader:
        version = page.resource_version
        check_list_version(self._watches.highest, version, EpochAbandoned)
        self._epoch = EpochState(Rank(version, epoch_id), version, is_complete=False)
        return self._watches.open(self._epoch, is_fresh=True)

    async def _publish_item(self, item: msgspec.Raw, epoch: EpochState) -> int:
        """Publish one object of the list; returns the size of its body."""
        try:
            event = from_list(item, self._resource.origin, epoch.rank)
            prepared = self._context.publisher.prepare(event)
        except Unpublishable as e:
            epoch.is_spoiled = True
            self._resource.lose(e, epoch)
            return 0
        self._resource.count(prepared)
        epoch.sent_listed()
        publisher = self._context.publisher
        await publisher.publish_listed(prepared, epoch.settle_listed, self._gathering)
        return len(prepared.body)

    async def _end_epoch(self, epoch: EpochState) -> None:
        await epoch.wait_listed()
        self._page_sizes.listed()
        if epoch.is_spoiled:
            # W16: without the end nothing is deleted; the watch goes on.
            self._metrics.abandoned.inc()
            self._log.error("epoch_without_end", epoch=epoch.rank.id, count=epoch.listed)
            epoch.ended.set()
            return
        resource = self._target.resource
        await self._context.publisher.publish_marker(
            EpochEnd(
                cluster=self._resource.origin.cluster,
                incarnation=self._resource.origin.incarnation,
                group=resource.group,
                version=resource.version,
                resource=resource.plural,
                kind=self._kind,
                epoch=epoch.rank,
                scope=self._resource.scope,
                count=epoch.listed,
                observed_at=utc_now(),
            )
        )
        epoch.is_complete = True
        self._metrics.epochs.inc()
        self._is_healing = False
        self._progress.listed(heals=not epoch.watch_lost.is_set())
        epoch.ended.set()
        self._log.info("epoch_complete", epoch=epoch.rank.id, count=epoch.listed)
        # What changed between discovery and this list has no event of its own: CRDs above all.
        self._resource.note_change()
