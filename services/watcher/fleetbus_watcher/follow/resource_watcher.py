"""Follow one resource of one cluster for ever: list, end the epoch, watch, list again.

An epoch (rule W7): claim an id; read the list page by page and publish each object as `listed`;
open the watch at the list's version as soon as the first page has told it, so that its events
interleave with the pages; wait until everything is stored; publish the epoch's end; wait for that.
Only then may a checkpoint be written, and a restarted watcher resumes there without a list.
Before all that the projector is asked for a grant (`fleetbus_watcher.follow.grant_client`).
A list that another replica has made, or makes, spares us ours (`fleetbus_watcher.follow.resume`).
Any doubt on the way abandons the epoch (W8): an end that is published although an object is missing
would become a deletion.
A watch that stands goes on beside all that, until the watch of a newer list has taken over (W24,
`fleetbus_watcher.follow.watch_reader`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import structlog

from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError, FleetbusError, Gone, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import RequestBackoff
from fleetbus.kube.listing import ListPage, WatchTarget, list_pages
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.clock import now_ms, utc_now
from fleetbus.watchers.grant_requests import GrantRequest
from fleetbus.watchers.resync import ResyncRequest, read_resync
from fleetbus_proto.events import EpochEnd, Incarnation, Rank
from fleetbus_watcher import metrics
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.errors import (
    ClusterReplaced,
    EpochAbandoned,
    EpochOutgrown,
    EpochWanted,
    HistoryBroken,
    IncarnationMoved,
    PublishGivenUp,
    TwinListed,
    TwinLists,
    Unpublishable,
    WatcherError,
)
from fleetbus_watcher.follow.epoch import Stream
from fleetbus_watcher.follow.grant_client import Grant, Grants
from fleetbus_watcher.follow.list_limits import ClusterLists
from fleetbus_watcher.follow.overlap import Watches
from fleetbus_watcher.follow.page_sizes import PageSizes
from fleetbus_watcher.follow.progress import Progress
from fleetbus_watcher.follow.resume import Position, Resumption
from fleetbus_watcher.follow.watch_reader import WatchedResource, WatchReader
from fleetbus_watcher.incarnation import claim_epoch
from fleetbus_watcher.publish.checkpoint import Checkpoint, Checkpoints
from fleetbus_watcher.publish.loss_detector import Chain
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.reachability import Reach, ReachingBackoff
from fleetbus_watcher.server_checks import CheckIdentity, check_list
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.transform.translate import Origin, from_list

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all resources of a cluster share."""

    client: KubeClient
    kv: KeyValue
    publisher: Publisher
    checkpoints: Checkpoints
    chain: Chain
    settings: WatcherSettings
    incarnation: Incarnation
    lists: ClusterLists
    """How many lists may run at once (W19)."""
    grants: Grants
    """Asks the projector before each list (W7)."""
    reach: Reach
    """Ends pauses when the API server is back (W19)."""
    check_identity: CheckIdentity
    """Raises ClusterReplaced if another cluster answers (W13)."""
    on_event: Callable[[WatchTarget], None]
    """Hears of each change of each resource."""


class ResourceWatcher:
    """One resource (of one scope), listed and watched for ever."""

    def __init__(
        self,
        *,
        target: WatchTarget,
        scope: str,
        kind: str,
        progress: Progress,
        around: Surroundings,
    ) -> None:
        self._target = target
        self._scope = scope
        self._kind = kind
        self._progress = progress
        self._around = around
        self._backoff = ReachingBackoff(around.settings.backoff, around.reach)
        self._origin = Origin.of(target, scope, kind, around.settings, around.incarnation)
        self._metrics = metrics.resource_metrics(around.settings.cluster, target.resource.key)
        self._log = log.bind(cluster=around.settings.cluster, resource=str(target.resource))
        self._watched = WatchedResource(
            target=target,
            origin=self._origin,
            client=around.client,
            publisher=around.publisher,
            settings=around.settings,
            check_identity=around.check_identity,
            progress=progress,
            metrics=self._metrics,
            backoff=self._backoff,
            on_event=around.on_event,
        )
        self._resumption = Resumption(
            target=target,
            scope=scope,
            incarnation=around.incarnation,
            kv=around.kv,
            checkpoints=around.checkpoints,
            chain=around.chain,
            settings=around.settings,
        )
        self._watches = Watches(self._watched, self._resumption.mark_stale)
        # Of the newest list or checkpoint.
        self._stream: Stream | None = None
        self._wanted: ResyncRequest | None = None
        self._wish_read = asyncio.Event()
        self._page_sizes = PageSizes(around.settings.page_size)
        # W7: what the next list will put on the stream, in bytes; 0 before the first one.
        self._size = 0
        # W16: whether the present epoch is the one that a loss has caused.
        self._is_healing = False
        self._healing_backoff = RequestBackoff(around.settings.backoff)
        self._gathering = around.publisher.gather()

    # --- what others ask ----------------------------------------------------------------------

    async def read_wish(self) -> ResyncRequest | None:
        """Look whether somebody wants a relist; `run` follows the wish (W20).

        Raises:
            BusError: nothing is known.
        """
        around = self._around
        self._wanted = await read_resync(around.kv, around.settings.cluster, self._target.resource)
        self._wish_read.set()
        return self._wanted

    def checkpoint(self) -> Checkpoint | None:
        """What may be recorded now; None before the epoch's end is stored (W4), and after a loss.

        The mark has passed what was lost, so a restart must not resume there (W16).
        """
        stream = self._stream
        if stream is None or not stream.is_complete or self._progress.has_loss:
            return None
        if not self._watches.mark:
            return None
        return Checkpoint(
            incarnation=self._around.incarnation,
            rank=stream.rank,
            # Older watches may have to tell something of before that list, yet.
            resource_version=self._watches.mark,
        )

    @property
    def objects(self) -> int:
        """How many the present list has told; 0 when it goes on at a checkpoint."""
        return self._stream.listed if self._stream is not None else 0

    @property
    def target(self) -> WatchTarget:
        """What is watched."""
        return self._target

    @property
    def scope(self) -> str:
        """The hash of what narrows it."""
        return self._scope

    # --- for ever -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the resource until cancelled; no failure of the server or the bus ends it."""
        try:
            while not await self._has_read_wish():
                pass
            while True:
                await self._turn()
        finally:
            await self._watches.close()

    async def _has_read_wish(self) -> bool:
        try:
            await self.read_wish()
        except BusError as e:
            await self._pause(e, "BusDown")
            return False
        return True

    async def _turn(self) -> None:
        try:
            await self._watches.keep()
            position = await self._find_position()
            if position is not None and self._suffices(position.rank):
                await self._resume(position)
            else:
                await self._list_and_watch(position)
        except (EpochWanted, TwinListed) as e:
            self._log.info("epoch_wanted" if isinstance(e, EpochWanted) else "twin_listed")
        except TwinLists as e:
            await self._wait_for_twin(e)
        except EpochOutgrown as e:
            self._log.info("epoch_outgrown", bytes=e.bytes)
            self._size = e.bytes
        except KubeError as e:
            await self._pause(e, e.reason or f"Status{e.status}")
        except PublishGivenUp as e:
            # What was sent may not be stored: everything goes on at the checkpoint (B4).
            await self._watches.forget()
            await self._pause(e, e.reason)
        except (ClusterReplaced, IncarnationMoved, HistoryBroken):
            raise
        except WatcherError as e:
            await self._pause(e, e.reason)
        except BusError as e:
            await self._pause(e, "BusDown")

    async def _find_position(self) -> Position | None:
        # After a loss the mark may be past what was lost; only a list makes that good (W16).
        return None if self._progress.has_loss else await self._resumption.find()

    async def _wait_for_twin(self, lists: TwinLists) -> None:
        try:
            await self._resumption.wait_for(lists.twin, self._suffices)
        except BusError as e:
            await self._pause(e, "BusDown")

    def _suffices(self, rank: Rank) -> bool:
        return not self._is_unsatisfied(rank)

    async def _pause(self, error: FleetbusError, reason: str) -> None:
        delay = self._backoff.delay(error)
        self._metrics.failures.inc()
        self._progress.failed(reason, str(error))
        self._log.warning(
            "resource_failed", reason=reason, error=str(error), pause=delay.total_seconds()
        )
        await self._around.reach.pause(error, delay)

    def _is_unsatisfied(self, rank: Rank) -> bool:
        wanted = self._wanted
        if wanted is None:
            return False
        return rank.id < wanted.min_epoch or wanted.refuses(rank.id, now_ms())

    # --- resume -------------------------------------------------------------------------------

    async def _resume(self, position: Position) -> None:
        await self._watches.forget()
        stream = Stream(position.rank, position.resource_version, is_complete=True)
        self._stream = stream
        self._progress.resumed()
        reader = self._watches.open(stream)
        await race(
            watch=reader.wait(), wish=self._raise_if_wanted(stream), healing=self._heal(stream)
        )

    async def _raise_if_wanted(self, stream: Stream) -> NoReturn:
        while self._wanted is None or not self._is_unsatisfied(stream.rank):
            self._wish_read.clear()
            await self._wish_read.wait()
        raise EpochWanted(self._wanted.reason)

    # --- an epoch -----------------------------------------------------------------------------

    async def _list_and_watch(self, position: Position | None) -> None:
        """List, and watch from there; what stands, or can go on at a checkpoint, goes on (W24)."""
        if position is not None and not self._watches.mark:
            stream = Stream(position.rank, position.resource_version, is_complete=True)
            self._watches.open(stream).keep()
        self._stream = None  # no checkpoint before the end of this epoch (W4)
        opened: asyncio.Future[WatchReader] = asyncio.get_running_loop().create_future()
        admitted = asyncio.Event()
        await race(
            epoch=self._run_epoch(opened, admitted),
            older=self._watches.see_off(),
            watch=self._watch_opened(opened),
            wish=self._heed_wish(opened),
            healing=self._heal_opened(opened),
            twin=self._heed_twin(opened, admitted),
        )

    async def _watch_opened(self, opened: asyncio.Future[WatchReader]) -> None:
        await (await asyncio.shield(opened)).wait()

    async def _heed_wish(self, opened: asyncio.Future[WatchReader]) -> None:
        await self._raise_if_wanted((await asyncio.shield(opened)).stream)

    async def _heal_opened(self, opened: asyncio.Future[WatchReader]) -> None:
        await self._heal((await asyncio.shield(opened)).stream)

    async def _heed_twin(
        self, opened: asyncio.Future[WatchReader], admitted: asyncio.Event
    ) -> None:
        """W15: as long as our list has not begun, that of another replica spares it."""
        if self._progress.has_loss:
            return
        await admitted.wait()
        found = asyncio.ensure_future(self._resumption.raise_if_found(self._suffices))
        begun = asyncio.shield(opened)
        try:
            await asyncio.wait([found, begun], return_when=asyncio.FIRST_COMPLETED)
            if found.done():
                await found
        finally:
            await cancel_and_wait(found)

    async def _heal(self, stream: Stream) -> NoReturn:
        """W16: after a loss list once more; what that list cannot read either stays degraded.

        Until the watch tells of it again: it may have been mended, or be gone.
        """
        await stream.lost.wait()
        await stream.ended.wait()
        if self._is_healing and not stream.is_complete:
            await stream.torn.wait()
        await asyncio.sleep(self._healing_backoff.delay().total_seconds())
        self._is_healing = True
        raise EpochWanted("an object could not be read")

    async def _run_epoch(
        self, opened: asyncio.Future[WatchReader], admitted: asyncio.Event
    ) -> None:
        around = self._around
        async with around.lists:
            admitted.set()
            self._progress.listing()
            try:
                # First of all, so that a cluster that is down asks for no grant.
                await around.check_identity()
                async with around.grants.granted(
                    self._target.resource, self._scope, self._size, self._progress.waiting
                ) as grant:
                    await self._run_granted(grant, opened)
            except (KubeError, WatcherError, BusError) as e:
                self._abandon(e, opened)
                raise

    async def _run_granted(self, grant: Grant, opened: asyncio.Future[WatchReader]) -> None:
        around = self._around
        self._progress.listing()
        epoch = await claim_epoch(
            around.kv, around.settings.cluster, self._target.resource, self._wanted
        )
        await grant.begin(epoch)
        if grant.twin is not None and self._may_wait_for(grant.twin):
            raise TwinLists(grant.twin)
        if grant.was_awaited:
            await around.check_identity()
        pages = list_pages(
            around.client,
            self._target,
            limit=self._page_sizes.limit,
            idle_timeout=around.settings.silence,
        )
        async with aclosing(pages):
            await self._publish_pages(pages, epoch, grant, opened)
        stream = opened.result().stream
        await self._end_epoch(stream)
        self._size = grant.bytes
        grant.is_complete = stream.is_complete

    def _may_wait_for(self, twin: GrantRequest) -> bool:
        if self._progress.has_loss:
            return False
        return self._resumption.is_worth_waiting(twin, self._suffices)

    def _abandon(self, error: FleetbusError, opened: asyncio.Future[WatchReader]) -> None:
        self._metrics.abandoned.inc()
        if isinstance(error, Gone) and opened.done():
            self._page_sizes.gone()

    async def _publish_pages(
        self,
        pages: AsyncGenerator[ListPage],
        epoch: int,
        grant: Grant,
        opened: asyncio.Future[WatchReader],
    ) -> None:
        self._gathering = self._around.publisher.gather()
        async for page in pages:
            self._progress.heard()
            if not opened.done():
                opened.set_result(self._open(page, epoch))
            for item in page.items:
                grant.count(await self._publish_item(item, page, opened.result().stream))
            await self._gathering.flush()
            grant.check(page.remaining)

    def _open(self, page: ListPage, epoch: int) -> WatchReader:
        version = page.resource_version
        check_list(self._watches.known, version, EpochAbandoned)
        self._stream = Stream(Rank(version, epoch), version, is_complete=False)
        return self._watches.open(self._stream, is_fresh=True)

    async def _publish_item(self, item: msgspec.Raw, page: ListPage, stream: Stream) -> int:
        """Publish one object of the list; answers the bytes of its body."""
        try:
            event = from_list(item, page, self._origin, stream.rank)
            prepared = self._around.publisher.prepare(event)
        except Unpublishable as e:
            stream.is_spoiled = True
            self._watched.lose(e, stream)
            return 0
        self._watched.count(prepared)
        stream.sent_listed()
        publisher = self._around.publisher
        await publisher.publish_listed(prepared, stream.settle_listed, self._gathering)
        return len(prepared.body)

    async def _end_epoch(self, stream: Stream) -> None:
        await stream.wait_listed()
        self._page_sizes.listed()
        if stream.is_spoiled:
            # W16: without its end nothing is swept; the watch goes on.
            self._metrics.abandoned.inc()
            self._log.error("epoch_without_end", epoch=stream.rank.id, count=stream.listed)
            stream.ended.set()
            return
        resource = self._target.resource
        await self._around.publisher.publish_marker(
            EpochEnd(
                cluster=self._origin.cluster,
                incarnation=self._origin.incarnation,
                group=resource.group,
                version=resource.version,
                resource=resource.plural,
                kind=self._kind,
                epoch=stream.rank,
                scope=self._scope,
                count=stream.listed,
                observed_at=utc_now(),
            )
        )
        stream.is_complete = True
        self._metrics.epochs.inc()
        self._is_healing = False
        self._progress.listed(heals=not stream.torn.is_set())
        stream.ended.set()
        self._log.info("epoch_complete", epoch=stream.rank.id, count=stream.listed)
        # What came between discovery and this list has no event of its own: a CRD above all.
        self._around.on_event(self._target)
