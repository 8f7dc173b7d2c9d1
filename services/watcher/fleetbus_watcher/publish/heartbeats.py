"""Say that this watcher lives and how far it is; then write checkpoints (rules W9 to W11)."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from fleetbus.errors import BusError
from fleetbus.process.clock import utc_now
from fleetbus.watchers.spec import SUSPENDED, UNUSABLE
from fleetbus_proto.events import Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errors import HistoryBroken
from fleetbus_watcher.publish.checkpoint import Checkpoint, HeartbeatAt
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.settings import WatcherSettings

log = structlog.get_logger()

_SETTLES: Final = timedelta(milliseconds=200)
"""Changes of state come in swarms, at start above all; so they cannot make a hot loop either."""


class Heartbeats:
    """The heartbeats of one replica, each followed by the checkpoints that it covers."""

    def __init__(
        self, *, settings: WatcherSettings, cluster: ClusterWatcher, publisher: Publisher
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._publisher = publisher
        self._boot = secrets.token_hex(8)
        self._flow = publisher.flow
        self._recorded: dict[tuple[str, str], Checkpoint] = {}

    async def run(self) -> None:
        """Beat for ever: often while events flow, at once when a state changes, else seldom."""
        while True:
            await self.beat()
            await self._wait()

    async def beat(self, unusable: str = "") -> None:
        """One heartbeat; checkpoints only after it is stored, with the marks of before (W10).

        Args:
            unusable: why nobody can watch the cluster from now on; empty while somebody can.
        """
        cluster = self._cluster
        cluster.changed.clear()
        self._flow = self._publisher.flow
        # Taken before the heartbeat is sent: it covers what was stored by then.
        marks = cluster.checkpoints()
        connection = cluster.connection
        try:
            covered_by = await cluster.chain.beat(self._heartbeat(unusable))
            if covered_by is None:
                return
            for resource, scope, mark in marks:
                if cluster.connection == connection:  # else they may be ahead of the stream
                    await self._record(resource, scope, mark, covered_by)
            await cluster.check_incarnation()
        except HistoryBroken as e:
            with suppress(BusError):  # the chain is still broken: the next beat says so again
                await cluster.start_anew(e)
        except BusError as e:
            log.warning("checkpoint_failed", error=str(e))

    async def _record(
        self, resource: Resource, scope: str, mark: Checkpoint, covered_by: HeartbeatAt
    ) -> None:
        key = (resource.key, scope)
        if self._recorded.get(key) == mark:
            return
        recorded = msgspec.structs.replace(mark, heartbeat=covered_by)
        await self._cluster.record(resource, scope, recorded)
        self._recorded[key] = mark

    def _heartbeat(self, unusable: str) -> Heartbeat:
        cluster = self._cluster
        reason, message = (UNUSABLE, unusable) if unusable else cluster.trouble
        connected = not reason
        if connected:
            reason, message = cluster.reach.remark
        resources = cluster.statuses()
        if unusable:  # nobody will notice what happens to them
            failing = {"state": "failing", "reason": reason, "message": message}
            resources = [msgspec.structs.replace(each, **failing) for each in resources]
        return Heartbeat(
            cluster=self._settings.cluster,
            replica=self._settings.replica,
            boot=self._boot,
            incarnation=cluster.incarnation,
            server_version=cluster.server_version,
            connected=connected,
            reason=reason,
            message=message,
            last_answer=cluster.reach.last_answer,
            resources=resources,
            watch_set=None if reason == SUSPENDED else cluster.watch_set,
            invalid=cluster.watch_list.invalid,
            observed_at=utc_now(),
        )

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        idle_ends = loop.time() + self._settings.heartbeat_idle.total_seconds()
        busy = self._settings.heartbeat_busy.total_seconds()
        while True:
            # Waited for first: what was published during the last beat is no reason to hurry.
            if await self._is_changed(min(busy, idle_ends - loop.time())):
                await asyncio.sleep(_SETTLES.total_seconds())
                return
            # Answers count too: one that came after the marks were taken has moved them.
            if self._flow != self._publisher.flow or loop.time() >= idle_ends:
                return

    async def _is_changed(self, within_seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._cluster.changed.wait()
        return self._cluster.changed.is_set()
