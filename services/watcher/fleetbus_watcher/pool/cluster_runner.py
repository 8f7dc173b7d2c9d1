"""Runs everything that is done for one cluster of the pool; its failures stay inside (rule W22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn, Self

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.process.cancellation import cancel_and_wait, cancellable
from fleetbus.watchers.spec import SUSPENDED
from fleetbus_watcher import metrics
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.heartbeats import Heartbeats
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import WatcherTiming

log = structlog.get_logger()

_POLL: Final = timedelta(milliseconds=20)
_STARTS_WITHIN: Final = timedelta(seconds=1)
"""A cluster that takes longer releases its start slot: a bad one does not hold up the others."""
_BUFFER: Final = 2**16
"""Unread bytes of each watch: there are as many watches as clusters times resources (W14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """The collaborators and settings that all clusters of one process share."""

    settings: WatcherSettings
    """Settings of every cluster; only its name, and that of the member, differ."""
    timing: WatcherTiming
    bus: Bus
    build: Callable[[WatcherSettings, KubeClient], tuple[ClusterWatcher, Heartbeats]]
    """Builds what watches one cluster."""
    start_slots: asyncio.Semaphore
    """Limit of clusters that are starting: a start takes mostly CPU time of this process, and the
    records of the pool must be renewed beside it."""


class ClusterRunner:
    """The work for one cluster, from `start` to `aclose`.

    Args:
        info: the cluster.
        replica: the name of this member.
        context: what it shares with the others.

    Attributes:
        info: the cluster as it was started.
    """

    def __init__(self, info: ClusterInfo, replica: str, context: ProcessContext) -> None:
        self.info = info
        self._context = context
        changed = {"cluster": info.name, "replica": replica}
        self._settings = context.settings.model_copy(update=changed)
        self._log = log.bind(cluster=info.name)
        self._backoff = ApiBackoff(self._settings.backoff)
        self._watcher: ClusterWatcher | None = None
        self._started_at = asyncio.get_running_loop().time()
        self._sends_final_heartbeat = True
        self._unusable = ""
        self._task: asyncio.Task[NoReturn] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"cluster-{self.info.name}")

    async def aclose(self, *, final_heartbeat: bool = True, unusable: str = "") -> None:
        """Stop, and remove the cluster's metrics.

        Args:
            final_heartbeat: whether to report the progress; of no use for a cluster that left.
            unusable: why no member can watch the cluster; empty if one can.
        """
        self._sends_final_heartbeat = final_heartbeat
        self._unusable = unusable
        if self._task is not None:
            await cancel_and_wait(self._task)
        metrics.forget_cluster(self.info.name)

    @property
    def is_under_way(self) -> bool:
        """Whether the previous holder may stop.

        Everything is watched, or nothing should be; or something cannot be watched, for so long
        that another member could not either.
        """
        if self._idle_reason:
            return True
        if self._watcher is None:
            return False
        if self._watcher.is_watching or self._watcher.trouble[0] == SUSPENDED:
            return True
        age = asyncio.get_running_loop().time() - self._started_at
        return age >= self._context.timing.unwatchable.total_seconds() and not self.unsettled()

    def unsettled(self) -> str:
        """Name what the first sync still waits for; empty for nothing."""
        if self._idle_reason:
            return ""
        watcher = self._watcher
        if watcher is None or not _has_begun(watcher):
            return "starting"
        return watcher.unsettled()

    @property
    def _idle_reason(self) -> str:
        """Why there is nothing to do: there is no access data; else empty."""
        if self.info.problem:
            return self.info.problem
        # None means the pod's own service account: the hub's, never a member's (S7).
        return "" if self.info.config is not None or self.info.hub else "no access data"

    # --- for ever -----------------------------------------------------------------------------

    async def _run(self) -> NoReturn:
        if reason := self._idle_reason:
            self._log.info("cluster_idle", reason=reason)
            await asyncio.Event().wait()
        while True:
            try:
                with cancellable():  # whatever a final heartbeat raises, we were stopped
                    await self._connect()
            except FleetbusError as e:
                self._log.warning("cluster_restarts", error=str(e))
            except Exception:  # noqa: BLE001 -- a bug that one cluster brings to light
                # must not stop the others; they would all start again with the process, for ever.
                metrics.pool_crashes.inc()
                self._log.exception("cluster_crashed")
            self._watcher = None
            await asyncio.sleep(self._backoff.delay().total_seconds())

    async def _connect(self) -> None:
        user_agent = f"fleetbus-watcher/{self._settings.replica}"
        async with (
            _StartSlot(self._context.start_slots) as slot,
            KubeClient(self.info.config, user_agent=user_agent, buffer=_BUFFER) as client,
        ):
            self._watcher, heartbeats = self._context.build(self._settings, client)
            await self._watch(self._watcher, heartbeats, slot)

    async def _watch(
        self, watcher: ClusterWatcher, heartbeats: Heartbeats, slot: _StartSlot
    ) -> None:
        has_begun = asyncio.Event()
        try:
            await run_group(
                cluster=watcher.run(),
                starting=self._finish_start(slot, has_begun),
                heartbeats=self._send_heartbeats(heartbeats, has_begun),
            )
        finally:
            if has_begun.is_set():
                await self._send_final_heartbeat(heartbeats)

    async def _finish_start(self, slot: _StartSlot, has_begun: asyncio.Event) -> None:
        """Release the start slot, and let heartbeats begin, when it is time for each."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        silent_start = self._context.timing.silent_start.total_seconds()
        while self.unsettled() and loop.time() < started_at + silent_start:
            if loop.time() >= started_at + _STARTS_WITHIN.total_seconds():
                slot.release()
            await asyncio.sleep(_POLL.total_seconds())
        slot.release()
        has_begun.set()

    async def _send_heartbeats(self, heartbeats: Heartbeats, has_begun: asyncio.Event) -> None:
        """Send none while we start: a heartbeat that reports no resource yet proves nothing (W10).

        If we died right after it, the next holder could not tell that from a loss of NATS.
        """
        await has_begun.wait()
        await heartbeats.run()

    async def _send_final_heartbeat(self, heartbeats: Heartbeats) -> None:
        """Report our progress, so that the next holder repeats little (W21)."""
        bus = self._context.bus
        if not self._sends_final_heartbeat or not bus.is_connected or bus.has_failed:
            return
        try:
            async with asyncio.timeout(self._settings.stop_patience.total_seconds()):
                await heartbeats.publish(self._unusable)
        except TimeoutError:
            self._log.warning("final_heartbeat_not_sent")


class _StartSlot:
    """A slot of the clusters that are starting, held until `release` or the end of the block."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_held = False

    async def __aenter__(self) -> Self:
        await self._slots.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let another cluster start."""
        if self._is_held:
            self._is_held = False
            self._slots.release()


def _has_begun(watcher: ClusterWatcher) -> bool:
    """Whether it knows what to watch, or why it does not."""
    return bool(watcher.trouble[0] or watcher.resources.statuses())
