"""One watch, read and published by a task of its own (rules W1, W4, W24).

A list that is asked for does not end the watch that stands: what happens before the version of
that list would be on no watch at all, and a deletion among it would never be published. So the
watch is read on until it has passed that version, and the watch that the list opened takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import structlog

from fleetbus.errors import KubeError
from fleetbus.kube import reflect
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import RequestBackoff
from fleetbus.kube.listing import WatchTarget
from fleetbus.kube.reflect import Observer, WatchEvent, WatchType
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.errors import Unpublishable
from fleetbus_watcher.follow.epoch import Stream
from fleetbus_watcher.follow.progress import Progress
from fleetbus_watcher.metrics import ResourceMetrics
from fleetbus_watcher.publish.publisher import Prepared, Publisher
from fleetbus_watcher.server_checks import CheckIdentity, Probe
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.transform.translate import Origin, from_watch

log = structlog.get_logger()

_REOPENED_IN_VAIN: Final = 1
"""A watch that the server opened after it had answered the list, and ended in good order, without
an event or a bookmark of that version: nothing has happened, and no bookmark says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedResource:
    """What all watches and lists of one resource share."""

    target: WatchTarget
    origin: Origin
    client: KubeClient
    publisher: Publisher
    settings: WatcherSettings
    check_identity: CheckIdentity
    progress: Progress
    metrics: ResourceMetrics
    backoff: RequestBackoff
    """The pauses after failures."""
    on_event: Callable[[WatchTarget], None]
    """Hears of each change."""

    def count(self, prepared: Prepared) -> None:
        """An event is about to be published."""
        self.metrics.events.inc()
        if prepared.is_degraded:
            self.metrics.degraded.inc()

    def lose(self, error: Unpublishable, stream: Stream) -> None:
        """An object cannot be published at all: the resource is degraded until a new epoch."""
        self.note_unreadable(error)
        stream.lost.set()
        self.progress.lost(error.reason, str(error))

    def note_unreadable(self, error: Unpublishable) -> None:
        """Count and log an object that cannot be published."""
        self.metrics.unreadable.inc()
        self.log.error("object_unreadable", error=str(error))

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """Names cluster and resource."""
        return log.bind(cluster=self.settings.cluster, resource=str(self.target.resource))


class _Passed(Exception):
    """The watch has told everything that it was kept for."""


class WatchReader:
    """Reads a watch from the mark of its stream on, over reconnects, until it is closed.

    Args:
        stream: what its events descend from.
        resource: of which.
        is_fresh: whether a list has just told the version, so that no probe is needed first.
    """

    def __init__(self, stream: Stream, resource: WatchedResource, *, is_fresh: bool) -> None:
        self.stream = stream
        self._resource = resource
        self._read = stream.mark.resource_version
        # The version at which a newer watch takes over; empty while there is none.
        self._goal = ""
        self._passed = asyncio.Event()
        # How often it was opened since the goal is known and no attempt failed.
        self._reopened = 0
        # Whether a list is made, or was, since it was opened: then that tells how the resource is.
        self._is_older = False
        self._probe = Probe(
            resource.client,
            resource.target,
            resource.settings.silence,
            resource.check_identity,
            is_fresh=is_fresh,
        )
        name = f"read-{resource.target.resource}"
        self._task = asyncio.create_task(self._run(), name=name)

    @property
    def has_passed(self) -> bool:
        """Whether it has read everything up to its goal; some of it may not be stored yet."""
        return self._passed.is_set()

    @property
    def is_running(self) -> bool:
        """Whether it still reads, or waits until what it read is stored."""
        return not self._task.done()

    def keep(self) -> None:
        """A list is asked for: read on until a newer watch takes over.

        If a newer one was there and is gone, this one reads on as well, unless it has passed.
        """
        self._is_older = True
        if not self.has_passed:
            self._goal = ""

    def end_at(self, resource_version: str) -> None:
        """A newer watch begins at this version: read on until it is passed."""
        self._goal, self._reopened = resource_version, 0
        self._check_passed()

    async def wait(self) -> None:
        """Wait until it has passed its goal and everything before it is stored.

        Raises:
            Gone, NotFound: it is lost; only a list helps.
            PublishGivenUp: some of it may not be stored.
            ClusterReplaced, HistoryBroken: everything must start anew.
        """
        await asyncio.shield(self._task)

    def cancel(self) -> asyncio.Task[None]:
        """Begin to end it; answers what is to be waited for."""
        self._task.cancel()
        return self._task

    # --- one watch ----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            with suppress(_Passed):
                await race(
                    read=self._read_changes(),
                    passed=self._raise_when_passed(),
                    failure=self.stream.failure(),
                )
        finally:
            self._resource.progress.closed(self)

    async def _raise_when_passed(self) -> NoReturn:
        await self._passed.wait()
        await self.stream.mark.wait_stored()  # W4: a checkpoint goes no further before that
        raise _Passed

    async def _read_changes(self) -> None:
        resource = self._resource
        events = reflect.follow(
            resource.client,
            resource.target,
            self._read,
            backoff=resource.backoff,
            timeouts=resource.settings.watch_times,
            observer=Observer(self._heard, self._failed, self._opened),
            before_open=self._before_open,
        )
        async with aclosing(events):
            async for change in events:
                if self._is_beyond(change):
                    self._passed.set()
                if self.has_passed:
                    return  # the newer watch tells the rest
                await self._publish(change)
                self._read = change.resource_version or self._read
                self._check_passed()

    async def _before_open(self, version: str) -> None:
        if self._goal:
            self._reopened += 1
            if self._reopened > _REOPENED_IN_VAIN:
                self._passed.set()
        await self._probe(version)

    def _heard(self) -> None:
        self._resource.progress.heard(heals=not self._is_older)

    def _opened(self) -> None:
        self._resource.progress.opened(self, heals=not self._is_older)

    def _failed(self, error: KubeError) -> None:
        self._reopened = 0
        resource = self._resource
        resource.progress.closed(self)
        resource.metrics.failures.inc()
        if not self._is_older:
            resource.progress.failed(error.reason or f"Status{error.status}", str(error))
        resource.log.warning("watch_failed", error=str(error))

    def _is_beyond(self, change: WatchEvent) -> bool:
        return bool(self._goal) and is_newer(change.resource_version, self._goal)

    def _check_passed(self) -> None:
        if self._goal and not is_newer(self._goal, self._read):
            self._passed.set()

    async def _publish(self, change: WatchEvent) -> None:
        resource, stream = self._resource, self.stream
        if change.type is WatchType.BOOKMARK:
            stream.mark.passed(change.resource_version)
            return
        resource.progress.told_change()
        if change.type is WatchType.UNREADABLE:
            self._lose(Unpublishable("a line of the watch cannot be read"))
            return
        try:
            prepared = resource.publisher.prepare(from_watch(change, resource.origin, stream.rank))
        except Unpublishable as e:
            # W16: no crash loop, the watch goes on; the resource is degraded until a new epoch.
            self._lose(e)
            stream.mark.passed(change.resource_version)
            return
        resource.count(prepared)
        slot = stream.mark.sent(change.resource_version)
        await resource.publisher.publish(prepared, partial(stream.settle, slot))
        resource.on_event(resource.target)

    def _lose(self, error: Unpublishable) -> None:
        if self._is_older:
            self._resource.note_unreadable(error)  # the list that follows makes it good
            return
        self.stream.torn.set()
        self._resource.lose(error, self.stream)


async def close(readers: Iterable[WatchReader]) -> None:
    """End watches, whatever they do."""
    for task in [reader.cancel() for reader in readers]:
        await cancel_and_wait(task)
