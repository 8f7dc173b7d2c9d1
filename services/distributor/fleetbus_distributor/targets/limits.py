"""Limits what one cluster is asked by this process, over all MultiClusterResources (rule D11)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from fleetbus.kube.connection.request_limiter import RequestLimiter


class Turns:
    """Lets only a few objects begin in one turn of the event loop, over all clusters.

    A hundred clusters with ten objects each would else send, and later receive, a thousand times in
    one turn: nothing else runs for as long, not even the renewal of a lease. Whoever has begun
    holds nothing, so a cluster that hangs takes no turn from others.

    Args:
        per_turn: how many begin.
    """

    def __init__(self, per_turn: int = 8) -> None:
        self._per_turn = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a turn, in the order of the calls."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin_some, loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_some(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = 0
        while self._waiting and begun < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled
                turn.set_result(None)
                begun += 1
        if self._waiting:
            loop.call_soon(self._begin_some, loop)


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of one cluster."""

    requests: RequestLimiter
    in_flight: asyncio.Semaphore
    """Of objects that are worked on, each with one request at a time."""
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
        self._turns = Turns()
        self._clusters: dict[str, ClusterLimits] = {}

    def of(self, cluster: str) -> ClusterLimits:
        """The limits of one cluster."""
        if cluster not in self._clusters:
            requests = RequestLimiter(qps=self._qps, burst=self._burst)
            in_flight = asyncio.Semaphore(self._in_flight)
            self._clusters[cluster] = ClusterLimits(requests, in_flight, self._turns)
        return self._clusters[cluster]
