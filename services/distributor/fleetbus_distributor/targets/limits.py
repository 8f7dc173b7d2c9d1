"""Limits what one cluster is asked by this process, over all MultiClusterResources (rule D11)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.kube.connection.liveness import Liveness
from fleetbus.kube.connection.request_limiter import RequestLimiter

_SILENT: Final = timedelta(milliseconds=500)
_SILENT_AT_MOST: Final = timedelta(seconds=5)
_LONGER: Final = 1.1
_SHORTER: Final = 0.98
"""Factors of the patience with each cluster that keeps silent, and with each that does not: it
grows if more than every sixth does."""


class Turn:
    """The turn of one piece of work, which ends once: with the work, or when its server is silent.

    Args:
        turns: whose turn it is.
        liveness: of the API server that is asked.
    """

    def __init__(self, turns: Turns, liveness: Liveness) -> None:
        self._turns = turns
        self._liveness = liveness
        self._is_over = False
        self._wait()

    def end(self, *, is_silent: bool = False) -> None:
        """Let the next one begin."""
        self._timer.cancel()
        if not self._is_over:
            self._is_over = True
            self._turns.release(is_silent=is_silent)

    def _wait(self) -> None:
        patience = self._turns.patience
        loop, began = asyncio.get_running_loop(), time.monotonic()
        self._timer = loop.call_later(patience, self._expire, began)

    def _expire(self, began: float) -> None:
        if self._liveness.answered_at < began:
            self.end(is_silent=True)
        else:
            self._wait()


class Turns:
    """Bounds how much work is under way in this process, over all clusters.

    A hundred clusters with ten objects each would else send, and later receive, a thousand times in
    one turn of the event loop: nothing else runs for as long, not even the renewal of a lease; and
    on a slow machine all of them would time out together. So a few begin in each turn of the loop,
    and only so many are under way.

    A server that sends nothing for a moment takes no turn from others: it most likely hangs. If
    many are silent, it is more likely that this machine or its network is slow, and more work would
    make it slower: the moment becomes longer.

    Args:
        per_turn: how many begin in one turn of the event loop.
        at_once: how many are under way.
        silent: how long a server may be silent.
    """

    def __init__(
        self, *, per_turn: int = 8, at_once: int = 100, silent: timedelta = _SILENT
    ) -> None:
        self._per_turn = per_turn
        self._free = at_once
        self._least = self.patience = silent.total_seconds()
        """Silence that a server is currently allowed."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def take(self, liveness: Liveness) -> Turn:
        """Wait for a turn, in the order of the calls; whoever gets it ends it with the work.

        Args:
            liveness: of the API server that is asked then.
        """
        begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(begins)
        self._schedule()
        try:
            await begins
        except asyncio.CancelledError:
            if not begins.cancelled():  # it has got its turn
                self.release()
            raise
        return Turn(self, liveness)

    @property
    def are_scarce(self) -> bool:
        """Whether work waits for its turn: whoever has sent nothing may not have been asked."""
        return bool(self._waiting)

    def release(self, *, is_silent: bool = False) -> None:
        """End a turn; called once for each."""
        changed = self.patience * (_LONGER if is_silent else _SHORTER)
        self.patience = min(max(changed, self._least), _SILENT_AT_MOST.total_seconds())
        self._free += 1
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and self._free and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        self._is_scheduled = False
        room = min(self._per_turn, self._free)
        while self._waiting and room:
            turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled
                turn.set_result(None)
                self._free -= 1
                room -= 1
        self._schedule()


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of one cluster."""

    requests: RequestLimiter
    in_flight: asyncio.Semaphore
    """Number of objects that are worked on, each with one request at a time."""
    turns: Turns
    """The same for all clusters."""


class Limits:
    """The limits of every cluster.

    Args:
        qps: requests per second.
        burst: requests at once after a pause.
        in_flight: objects that are worked on at the same time.
    """

    def __init__(self, *, qps: float, burst: int, in_flight: int) -> None:
        self._qps = qps
        self._burst = burst
        self._in_flight = in_flight
        self.turns = Turns()
        """The same for all clusters."""
        self._clusters: dict[str, ClusterLimits] = {}

    def of(self, cluster: str) -> ClusterLimits:
        """The limits of one cluster."""
        if cluster not in self._clusters:
            requests = RequestLimiter(qps=self._qps, burst=self._burst)
            in_flight = asyncio.Semaphore(self._in_flight)
            self._clusters[cluster] = ClusterLimits(requests, in_flight, self.turns)
        return self._clusters[cluster]
