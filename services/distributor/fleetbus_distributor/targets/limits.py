"""Limits what one cluster is asked by this process, over all MultiClusterResources (rule D11)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleetbus.kube.connection.request_limiter import RequestLimiter


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of one cluster."""

    requests: RequestLimiter
    in_flight: asyncio.Semaphore
    """Of objects that are worked on, each with one request at a time."""


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
        self._clusters: dict[str, ClusterLimits] = {}

    def of(self, cluster: str) -> ClusterLimits:
        """The limits of one cluster."""
        if cluster not in self._clusters:
            requests = RequestLimiter(qps=self._qps, burst=self._burst)
            in_flight = asyncio.Semaphore(self._in_flight)
            self._clusters[cluster] = ClusterLimits(requests, in_flight)
        return self._clusters[cluster]
