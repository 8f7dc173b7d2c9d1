"""Items and their order in the queue in memory: the bands and turns of take.lua (rules Q9, Q10)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetbus.workqueue.queue import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus.reconcile import Request
    from fleetbus.workqueue.queue import Lease
    from fleetbus.workqueue.scripts import Limits

_SHARE: Final = {Priority.RETRY: 0.25, Priority.INITIAL: 0.125}
"""Runs a lower band is owed for each run above it."""


@dataclass(slots=True)
class LeaseState:
    """A lease as the queue knows it."""

    lease: Lease
    token: str
    since: float
    ends: float
    suspected: float | None = None


@dataclass(slots=True)
class ItemState:
    """All that is known of one key; an item that knows nothing is dropped."""

    dirty: tuple[Priority, float] | None = None
    due: float | None = None
    trigger: bytes = b""
    trace: str = ""
    cause: str = ""
    note: bytes = b""
    noted: float = 0.0
    failures: int = 0
    reclaims: list[float] = field(default_factory=list[float])
    quarantines: int = 0
    kept_until: float | None = None


def flow_of(request: Request, cause: str) -> str:
    """What takes turns for this request, see `state.lua`."""
    return f"{cause}>" if cause else request.cluster


def cluster_of(lane: str) -> str:
    """The cluster whose turns and slots a lane uses."""
    return lane.removesuffix(">")


class Capacity:
    """What one take may still get of each cluster."""

    def __init__(self, limits: Limits) -> None:
        self._left = dict(limits.capacity)
        self._cap = limits.default_capacity
        self.probes = limits.probes

    def has(self, lane: str) -> bool:
        """Whether there is room for one more."""
        return self._left.get(cluster_of(lane), self._cap) > 0

    def use(self, lane: str) -> None:
        """One more was taken."""
        cluster = cluster_of(lane)
        self._left[cluster] = self._left.get(cluster, self._cap) - 1


class Ready:
    """Requests that may be taken: bands, in each a round over its clusters, in each by age."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Priority, str], list[tuple[float, Request]]] = defaultdict(list)
        self._turns: dict[Priority, dict[str, float]] = {band: {} for band in Priority}
        self._credits: dict[Priority, float] = defaultdict(float)
        self._weights: Mapping[str, float] = {}
        self._barred: set[str] = set()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """See `Queue.weigh`."""
        self._weights = weights

    def put(self, request: Request, band: Priority, since: float, lane: str) -> None:
        """Line up by age; a lane enters the round behind whoever is next."""
        insort(self._lines[band, lane], (since, request))
        self._join(band, lane)

    def withdraw(self, request: Request, band: Priority, since: float, lane: str) -> bool:
        """Take a request out of its line, if it is there."""
        line = self._lines.get((band, lane), [])
        index = bisect_left(line, (since, request))
        if line[index : index + 1] != [(since, request)]:
            return False
        del line[index]
        self._leave_if_empty(band, lane)
        return True

    def pop(self, room: Capacity) -> tuple[Request, Priority, str] | None:
        """The next request for which there is room, its band and its lane."""
        nexts = {band: name for band in Priority if (name := self._next_up(band, room))}
        band = self._choose_band(list(nexts))
        if band is None:
            return None
        lane = nexts[band]
        _, request = self._lines[band, lane].pop(0)
        self._turns[band][lane] += self._step(lane)
        self._leave_if_empty(band, lane)
        return request, band, lane

    def pop_of(self, cluster: str) -> tuple[Request, Priority] | None:
        """The first request of a cluster that is in no round, and its band."""
        for band in Priority:
            if line := self._lines.get((band, cluster)):
                _, request = line.pop(0)
                self._leave_if_empty(band, cluster)
                return request, band
        return None

    def forfeit_turns(self, room: Capacity) -> bool:
        """Let clusters without room lose the turns they were passed over in.

        Answers whether a band has something, and all of it had no room.
        """
        is_held_back = False
        for band, turns in self._turns.items():
            cluster = self._next_up(band, room)
            if cluster is None:
                is_held_back = is_held_back or bool(turns)
                continue
            for name, score in turns.items():
                turns[name] = max(score, turns[cluster])
        return is_held_back

    def bar(self, cluster: str) -> None:
        """Take a cluster out of every round; its lines stay."""
        self._barred.add(cluster)
        for band in Priority:
            self._leave(band, cluster)

    def admit(self, cluster: str) -> None:
        """Let it take turns again."""
        self._barred.discard(cluster)
        for band in Priority:
            if self._lines.get((band, cluster)):
                self._join(band, cluster)

    def depth(self) -> dict[tuple[str, Priority], int]:
        """Requests by the cluster that pays for them, and band."""
        found: Counter[tuple[str, Priority]] = Counter()
        for (band, lane), line in self._lines.items():
            found[cluster_of(lane), band] += len(line)
        return found

    def oldest(self) -> dict[str, float]:
        """Since when the oldest one of each cluster waits."""
        found: dict[str, float] = {}
        for (_, lane), line in self._lines.items():
            cluster = cluster_of(lane)
            found[cluster] = min(line[0][0], found.get(cluster, line[0][0]))
        return found

    def _step(self, lane: str) -> float:
        return 1 / self._weights.get(cluster_of(lane), 1)

    def _next_up(self, band: Priority, room: Capacity) -> str | None:
        turns = self._turns[band]
        fitting = (name for name in turns if room.has(name))
        return min(fitting, key=lambda name: (turns[name], name), default=None)

    def _choose_band(self, filled: list[Priority]) -> Priority | None:
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

    def _join(self, band: Priority, cluster: str) -> None:
        turns = self._turns[band]
        if cluster not in turns and cluster not in self._barred:
            turns[cluster] = min(turns.values()) + self._step(cluster) if turns else 0

    def _leave_if_empty(self, band: Priority, cluster: str) -> None:
        if not self._lines[band, cluster]:
            del self._lines[band, cluster]
            self._leave(band, cluster)

    def _leave(self, band: Priority, cluster: str) -> None:
        self._turns[band].pop(cluster, None)
        if not self._turns[band]:
            self._credits.pop(band, None)
