"""Publishes heartbeats of one replica, and then writes checkpoints (rules W9 to W11)."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from fleetbus.errors import BusError
from fleetbus.process.clock import utc_now
from fleetbus.watchers.spec import SUSPENDED, UNUSABLE
from fleetbus_proto.events import Heartbeat, ServedType
from fleetbus_proto.resources import Resource
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errors import HistoryBroken
from fleetbus_watcher.follow.context import ClusterContext
from fleetbus_watcher.publish.checkpoint import Checkpoint, HeartbeatAt

log = structlog.get_logger()

_TYPES_AGAIN: Final = timedelta(minutes=1)
"""Unchanged types are sent so often, for a projector whose store has lost them."""


class Heartbeats:
    """The heartbeats of one replica, each followed by the checkpoints that it covers.

    Args:
        watcher: the cluster to report.
        context: of the cluster.
    """

    def __init__(self, *, watcher: ClusterWatcher, context: ClusterContext) -> None:
        self._watcher = watcher
        self._context = context
        self._settings = context.settings
        self._publisher = publisher = context.publisher
        # At the last heartbeat: how many events were published, and whether some were not stored.
        self._published = publisher.published
        self._were_storing = False
        self._recorded: dict[tuple[str, str], Checkpoint] = {}
        # The types of the last heartbeat that had them, and when it was sent.
        self._types: list[ServedType] | None = None
        self._types_at = float("-inf")

    async def run(self) -> None:
        """Publish for ever: often while events flow, at once when a state changes, else seldom."""
        while True:
            await self.publish()
            await self._wait()

    async def publish(self, unusable: str = "") -> None:
        """Publish one heartbeat; then write checkpoints, with the marks from before it (W10).

        Args:
            unusable: why no watcher can watch the cluster from now on; empty while one can.
        """
        watcher = self._watcher
        self._context.changed.clear()
        self._published = self._publisher.published
        self._were_storing = watcher.resources.are_storing
        # Taken before the heartbeat is sent: it covers what was stored by then.
        marks = watcher.checkpoints()
        connection = watcher.connection
        try:
            heartbeat = self._heartbeat(unusable)
            covered_by = await self._context.loss_detector.publish(heartbeat)
            if covered_by is None:
                return
            if heartbeat.types is not None:
                self._types, self._types_at = heartbeat.types, time.monotonic()
            for resource, scope, mark in marks:
                if watcher.connection == connection:  # else they may be ahead of the stream
                    await self._record(resource, scope, mark, covered_by)
            await watcher.check_incarnation()
        except HistoryBroken as e:
            with suppress(
                BusError
            ):  # the loss is still there, and the next heartbeat detects it again
                await watcher.start_over(e)
        except BusError as e:
            log.warning("checkpoint_failed", error=str(e))

    async def _record(
        self, resource: Resource, scope: str, mark: Checkpoint, covered_by: HeartbeatAt
    ) -> None:
        key = (resource.key, scope)
        if self._recorded.get(key) == mark:
            return
        recorded = msgspec.structs.replace(mark, heartbeat=covered_by)
        await self._context.checkpoints.write(resource, scope, recorded)
        self._recorded[key] = mark

    def _heartbeat(self, unusable: str) -> Heartbeat:
        watcher = self._watcher
        reason, message = (UNUSABLE, unusable) if unusable else watcher.trouble
        connected = not reason
        if connected:
            reason, message = self._context.reachability.remark
        resources = watcher.resources.statuses()
        if unusable:  # no watcher will report them any more
            failing = {"state": "failing", "reason": reason, "message": message}
            resources = [msgspec.structs.replace(each, **failing) for each in resources]
        return Heartbeat(
            cluster=self._settings.cluster,
            replica=self._context.replica.current,
            boot=self._context.replica.boot,
            incarnation=watcher.incarnation,
            server_version=watcher.server_version,
            platform=watcher.platform,
            connected=connected,
            reason=reason,
            message=message,
            last_answer=self._context.reachability.last_answer,
            resources=resources,
            watch_set=None if reason == SUSPENDED else watcher.resources.watch_set,
            types=self._due_types(),
            invalid=watcher.spec.invalid,
            overridden=watcher.spec.overridden,
            observed_at=utc_now(),
        )

    def _due_types(self) -> list[ServedType] | None:
        """The types if they have changed, or were not sent for long; they are large."""
        types = self._watcher.types.known
        is_due = time.monotonic() - self._types_at > _TYPES_AGAIN.total_seconds()
        return types if types != self._types or is_due else None

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        idle_ends = loop.time() + self._settings.heartbeat_idle.total_seconds()
        busy = self._settings.heartbeat_busy.total_seconds()
        while True:
            # Wait first: what was published during the last heartbeat is no reason to hurry.
            if await self._is_changed(min(busy, idle_ends - loop.time())):
                await asyncio.sleep(self._context.timing.heartbeat_settles.total_seconds())
                return
            # Acknowledgements count too: one that came after the marks were taken has moved them.
            # Only our own: the clusters of a pool share a window, in which there is always some.
            is_flowing = self._were_storing or self._published != self._publisher.published
            if is_flowing or loop.time() >= idle_ends:
                return

    async def _is_changed(self, within_seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._context.changed.wait()
        return self._context.changed.is_set()
