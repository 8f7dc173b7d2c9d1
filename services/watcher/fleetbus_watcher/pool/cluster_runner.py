"""Everything that is done for one cluster of the pool; nothing that fails in it leaves it (W22)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn, Self

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Window
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import RequestBackoff
from fleetbus.process.cancellation import cancel_and_wait, cancellable
from fleetbus.watchers.spec import SUSPENDED
from fleetbus_watcher import metrics, pool_metrics
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.follow.list_limits import ProcessLists
from fleetbus_watcher.publish.heartbeats import Heartbeats
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.settings import WatcherSettings

log = structlog.get_logger()

_LOOK: Final = timedelta(milliseconds=20)
_STARTS_WITHIN: Final = timedelta(seconds=1)
"""A cluster that takes longer gives its turn away: a bad one does not hold the others up."""
_SILENT_AT_MOST: Final = timedelta(seconds=10)
"""Without a heartbeat, while a first list takes its time."""
_BUFFER: Final = 2**16
"""What each watch may hold unread: there are as many as clusters times resources (W14)."""
_PATIENCE: Final = timedelta(seconds=10)
"""A cluster that cannot be watched for so long is taken over all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all clusters of one process share."""

    settings: WatcherSettings
    """Of every cluster; only the name differs."""
    bus: Bus
    window: Window
    """One, so that what is in flight is bounded for the process (W14)."""
    lists: ProcessLists
    starts: asyncio.Semaphore
    """How many clusters may be starting: a start is mostly our own CPU time, and the signs of life
    must go out beside it."""


class Scope:
    """The work for one cluster, from `start` to `aclose`.

    Args:
        info: the cluster.
        shared: what it shares with the others.

    Attributes:
        info: what it was started for.
    """

    def __init__(self, info: ClusterInfo, shared: Shared) -> None:
        self.info = info
        self._shared = shared
        self._settings = shared.settings.model_copy(update={"cluster": info.name})
        self._log = log.bind(cluster=info.name)
        self._backoff = RequestBackoff(self._settings.backoff)
        self._watcher: ClusterWatcher | None = None
        self._started_at = asyncio.get_running_loop().time()
        self._says_goodbye = True
        self._unusable = ""
        self._task: asyncio.Task[NoReturn] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"cluster-{self.info.name}")

    async def aclose(self, *, says_goodbye: bool = True, unusable: str = "") -> None:
        """Stop, and take the cluster's metrics away.

        Args:
            says_goodbye: whether to tell how far it came; of no use for a cluster that left.
            unusable: why nobody can go on with the cluster; empty if somebody can.
        """
        self._says_goodbye = says_goodbye
        self._unusable = unusable
        if self._task is not None:
            await cancel_and_wait(self._task)
        metrics.forget_cluster(self.info.name)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do: there is no access data."""
        return bool(self._idle_reason)

    @property
    def is_under_way(self) -> bool:
        """Whether whoever worked on it before us may stop.

        Everything is watched, or nothing is wanted; or something cannot be watched, for so long
        that another could not either.
        """
        if self.is_idle:
            return True
        if self._watcher is None:
            return False
        if self._watcher.is_watching or self._watcher.trouble[0] == SUSPENDED:
            return True
        age = asyncio.get_running_loop().time() - self._started_at
        return age >= _PATIENCE.total_seconds() and not self.unsettled()

    def unsettled(self) -> str:
        """What the first sync still waits for; empty if for nothing."""
        if self.is_idle:
            return ""
        watcher = self._watcher
        if watcher is None or not _has_begun(watcher):
            return "starting"
        return watcher.unsettled()

    @property
    def _idle_reason(self) -> str:
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
                with cancellable():  # whatever a goodbye raises, we were stopped
                    await self._live()
            except FleetbusError as e:
                self._log.warning("cluster_restarts", error=str(e))
            except Exception:  # noqa: BLE001 -- a bug that one cluster brings to light
                # must not stop the others; they would all start again with the process, for ever.
                pool_metrics.crashes.inc()
                self._log.exception("cluster_crashed")
            self._watcher = None
            await asyncio.sleep(self._backoff.delay().total_seconds())

    async def _live(self) -> None:
        user_agent = f"fleetbus-watcher/{self._settings.replica}"
        async with (
            _Turn(self._shared.starts) as turn,
            KubeClient(self.info.config, user_agent=user_agent, buffer=_BUFFER) as client,
        ):
            await self._watch(client, turn)

    async def _watch(self, client: KubeClient, turn: _Turn) -> None:
        shared, settings = self._shared, self._settings
        publisher = Publisher(bus=shared.bus, window=shared.window)
        watcher = ClusterWatcher(
            settings=settings,
            client=client,
            bus=shared.bus,
            kv=KeyValue(shared.bus),
            publisher=publisher,
            lists=shared.lists,
        )
        self._watcher = watcher
        heartbeats = Heartbeats(settings=settings, cluster=watcher, publisher=publisher)
        has_news = asyncio.Event()
        try:
            await race(
                cluster=watcher.run(),
                starting=self._start(turn, has_news),
                heartbeats=self._beat(heartbeats, has_news),
            )
        finally:
            if has_news.is_set():
                await self._say_goodbye(heartbeats)

    async def _start(self, turn: _Turn, has_news: asyncio.Event) -> None:
        """Give the turn to the next, and let heartbeats begin, when it is time for each."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self.unsettled() and loop.time() < begun + _SILENT_AT_MOST.total_seconds():
            if loop.time() >= begun + _STARTS_WITHIN.total_seconds():
                turn.give_back()
            await asyncio.sleep(_LOOK.total_seconds())
        turn.give_back()
        has_news.set()

    async def _beat(self, heartbeats: Heartbeats, has_news: asyncio.Event) -> None:
        """Not while we start: a heartbeat that tells of no resource yet proves nothing (W10).

        If we died right after it, whoever is next could not tell that from a loss of NATS.
        """
        await has_news.wait()
        await heartbeats.run()

    async def _say_goodbye(self, heartbeats: Heartbeats) -> None:
        """W21: tell how far we are, so that whoever is next repeats little."""
        bus = self._shared.bus
        if not self._says_goodbye or not bus.is_connected or bus.has_failed:
            return
        try:
            async with asyncio.timeout(self._settings.stop_patience.total_seconds()):
                await heartbeats.beat(self._unusable)
        except TimeoutError:
            self._log.warning("goodbye_unsaid")


class _Turn:
    """A turn to start, held until it is given back or the block ends."""

    def __init__(self, starts: asyncio.Semaphore) -> None:
        self._starts = starts
        self._is_held = False

    async def __aenter__(self) -> Self:
        await self._starts.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Let another cluster start."""
        if self._is_held:
            self._is_held = False
            self._starts.release()


def _has_begun(watcher: ClusterWatcher) -> bool:
    """Whether it knows what there is to watch, or why it does not."""
    return bool(watcher.trouble[0] or watcher.statuses())
