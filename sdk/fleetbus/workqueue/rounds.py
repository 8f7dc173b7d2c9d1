"""Who is next, in memory: the bands and rounds of `state.lua` and `take.lua` (rules Q9, Q10)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from fleetbus.workqueue.queue import Priority

if TYPE_CHECKING:
    from fleetbus.reconcile import Request

_SHARE: Final = {Priority.RETRY: 0.25, Priority.INITIAL: 0.125}
"""Runs a lower band is owed for each run above it."""


class Ready:
    """Requests that may be taken: bands, in each a round over its clusters, in each by age."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Priority, str], list[tuple[float, Request]]] = defaultdict(list)
        self._turns: dict[Priority, dict[str, float]] = {band: {} for band in Priority}
        self._credits: dict[Priority, float] = defaultdict(float)

    def put(self, request: Request, band: Priority, since: float) -> None:
        """Line up by age; a cluster enters the round behind whoever is next."""
        insort(self._lines[band, request.cluster], (since, request))
        turns = self._turns[band]
        if request.cluster not in turns:
            turns[request.cluster] = min(turns.values()) + 1 if turns else 0

    def withdraw(self, request: Request, band: Priority, since: float) -> bool:
        """Take a request out of its line, if it is there."""
        line = self._lines.get((band, request.cluster), [])
        index = bisect_left(line, (since, request))
        if line[index : index + 1] != [(since, request)]:
            return False
        del line[index]
        self._leave_if_empty(band, request.cluster)
        return True

    def pop(self) -> tuple[Request, Priority] | None:
        """The next request and its band."""
        band = self._choose_band()
        if band is None:
            return None
        turns = self._turns[band]
        cluster = min(turns, key=lambda name: (turns[name], name))
        _, request = self._lines[band, cluster].pop(0)
        turns[cluster] += 1
        self._leave_if_empty(band, cluster)
        return request, band

    def depth(self) -> dict[tuple[str, Priority], int]:
        """Requests by cluster and band."""
        return {(cluster, band): len(line) for (band, cluster), line in self._lines.items()}

    def oldest(self) -> float | None:
        """Since when the oldest one waits."""
        return min((line[0][0] for line in self._lines.values()), default=None)

    def _choose_band(self) -> Priority | None:
        filled = [band for band in Priority if self._turns[band]]
        if not filled:
            return None
        first, *lower = filled
        for band in lower:
            self._credits[band] += _SHARE[band]
        for band in reversed(lower):
            if self._credits[band] >= 1:
                self._credits[band] -= 1
                return band
        return first

    def _leave_if_empty(self, band: Priority, cluster: str) -> None:
        if self._lines[band, cluster]:
            return
        del self._lines[band, cluster]
        del self._turns[band][cluster]
        if not self._turns[band]:
            self._credits.pop(band, None)
