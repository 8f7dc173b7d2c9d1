"""Reads one watch and publishes its events (rules W1, W4, W24).

A new list does not end the present watch: events before the version of that list would be in no
watch at all, and a deletion among them would never be published. So the watch is read on until it
has passed that version, and the watch that the list opened takes over.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Final

from fleetbus.errors import KubeError
from fleetbus.kube.list_watch import reflect
from fleetbus.kube.list_watch.reflect import Observer, WatchEvent, WatchType
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.errors import Unpublishable, failure_reason
from fleetbus_watcher.etcd_restore import HistoryCheck
from fleetbus_watcher.follow.context import ResourceContext
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.transform.translate import from_watch

_REOPENED_IN_VAIN: Final = 1
"""A watch that the server opened after it had answered the list, and ended in good order, without
an event or a bookmark of that version: nothing has happened, and no bookmark says so."""


class WatchReader:
    """Reads a watch from the mark of its epoch, over reconnects, until it has passed its goal.

    Args:
        epoch: whose rank the events carry.
        resource: what is watched.
        is_fresh: whether a list has just returned the version, so that no check is needed first.
    """

    def __init__(self, epoch: EpochState, resource: ResourceContext, *, is_fresh: bool) -> None:
        self.epoch = epoch
        self._resource = resource
        self._read = epoch.mark.resource_version
        # The version at which a newer watch takes over; empty while there is none.
        self._goal = ""
        self._passed = asyncio.Event()
        # How often it was opened since the goal is known and no attempt failed.
        self._reopened = 0
        # Whether a list began since it was opened: then the list reports the resource's state.
        self._is_older = False
        cluster = resource.cluster
        self._check_history = HistoryCheck(
            cluster.client,
            resource.target,
            cluster.settings.silence,
            cluster.identity,
            cluster.timing.identity_age,
            is_fresh=is_fresh,
        )

    @property
    def has_passed(self) -> bool:
        """Whether it has read everything up to its goal; some may not be stored yet."""
        return self._passed.is_set()

    def keep(self) -> None:
        """Read on during a list, until a newer watch takes over.

        Also if there was a newer one that has ended, unless this one has passed its goal.
        """
        self._is_older = True
        if not self.has_passed:
            self._goal = ""

    def end_at(self, resource_version: str) -> None:
        """End once this version is passed, at which a newer watch begins."""
        self._goal, self._reopened = resource_version, 0
        self._check_passed()

    async def run(self) -> None:
        """Read until it has passed its goal and everything up to there is stored.

        Raises:
            Gone, NotFound: the watch cannot go on; only a list helps.
            PublishGivenUp: some of it may not be stored.
            ClusterReplaced, HistoryBroken: everything must start over.
        """
        try:
            await run_group(
                read=self._read_changes(),
                passed=self._wait_until_passed(),
                failure=self.epoch.failure(),
            )
        finally:
            self._resource.progress.closed(self)

    async def _wait_until_passed(self) -> bool:
        await self._passed.wait()
        await self.epoch.mark.wait_stored()  # W4: a checkpoint goes no further before that
        return True

    # --- one watch ----------------------------------------------------------------------------

    async def _read_changes(self) -> None:
        resource = self._resource
        events = reflect.follow(
            resource.cluster.client,
            resource.target,
            self._read,
            backoff=resource.backoff,
            timeouts=resource.cluster.settings.watch_times,
            observer=Observer(self._receive, self._fail, self._open),
            before_open=self._before_open,
        )
        async with aclosing(events):
            async for event in events:
                if self._is_beyond(event):
                    self._passed.set()
                if self.has_passed:
                    return  # what follows is in the newer watch
                await self._publish(event)
                self._read = event.resource_version or self._read
                self._check_passed()

    async def _before_open(self, version: str) -> None:
        if self._goal:
            self._reopened += 1
            if self._reopened > _REOPENED_IN_VAIN:
                self._passed.set()
        await self._check_history(version)

    def _receive(self) -> None:
        self._resource.progress.receive(heals=not self._is_older)

    def _open(self) -> None:
        self._resource.progress.opened(self, heals=not self._is_older)

    def _fail(self, error: KubeError) -> None:
        self._reopened = 0
        resource = self._resource
        resource.progress.closed(self)
        resource.metrics.failures.inc()
        if not self._is_older:
            resource.progress.failed(failure_reason(error), str(error))
        resource.log.warning("watch_failed", error=str(error))

    def _is_beyond(self, event: WatchEvent) -> bool:
        return bool(self._goal) and is_newer(event.resource_version, self._goal)

    def _check_passed(self) -> None:
        if self._goal and not is_newer(self._goal, self._read):
            self._passed.set()

    async def _publish(self, event: WatchEvent) -> None:
        resource, epoch, publisher = self._resource, self.epoch, self._resource.cluster.publisher
        if event.type is WatchType.BOOKMARK:
            epoch.mark.passed(event.resource_version)
            return
        resource.progress.note_change()
        if event.type is WatchType.UNREADABLE:
            self._lose(Unpublishable("a line of the watch cannot be read"))
            return
        try:
            prepared = publisher.prepare(from_watch(event, resource.origin, epoch.rank))
        except Unpublishable as e:
            # W16: the watch goes on, or it would crash again and again; the resource is degraded.
            self._lose(e)
            epoch.mark.passed(event.resource_version)
            return
        resource.count(prepared)
        slot = epoch.mark.sent(event.resource_version)
        await publisher.publish(prepared, partial(epoch.settle, slot))
        resource.note_change()

    def _lose(self, error: Unpublishable) -> None:
        if self._is_older:
            self._resource.note_unreadable(error)  # repaired by the list that follows
            return
        self.epoch.watch_lost.set()
        self._resource.lose(error, self.epoch)
