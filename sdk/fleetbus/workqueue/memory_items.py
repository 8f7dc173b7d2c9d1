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
"""The credit of a lower band for each run of a higher one, in runs."""


@dataclass(slots=True)
class LeaseState:
    """A lease that is held, and when it ends."""

    lease: Lease
    token: str
    since: float
    ends: float
    suspected: float | None = None


@dataclass(slots=True)
class ItemState:
    """All state of one request; dropped once it equals a new one."""

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
    """The flow in which this request takes its turn, see `state.lua`."""
    return f"{cause}>" if cause else request.cluster


def cluster_of(flow: str) -> str:
    """The cluster that is charged for the turns of a flow."""
    return flow.removesuffix(">")


class Capacity:
    """Number of further items of each cluster that one take may get."""

    def __init__(self, limits: Limits) -> None:
        self._left = dict(limits.capacity)
        self._cap = limits.default_capacity
        self.probes = limits.probes

    def has(self, flow: str) -> bool:
        """Whether one more fits."""
        return self._left.get(cluster_of(flow), self._cap) > 0

    def use(self, flow: str) -> None:
        """Count one that was taken."""
        cluster = cluster_of(flow)
        self._left[cluster] = self._left.get(cluster, self._cap) - 1


class Ready:
    """Requests that may be taken: by band, in it by turn of the flows, in a flow by age."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Priority, str], list[tuple[float, Request]]] = defaultdict(list)
        self._turns: dict[Priority, dict[str, float]] = {band: {} for band in Priority}
        self._credits: dict[Priority, float] = defaultdict(float)
        self._weights: Mapping[str, float] = {}
        self._barred: set[str] = set()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """See `Queue.weigh`."""
        self._weights = weights

    def put(self, request: Request, band: Priority, since: float, flow: str) -> None:
        """Add a request; its flow joins the turns behind whoever is next."""
        insort(self._queues[band, flow], (since, request))
        self._join(band, flow)

    def withdraw(self, request: Request, band: Priority, since: float, flow: str) -> bool:
        """Remove a request; False if it was not ready."""
        queue = self._queues.get((band, flow), [])
        index = bisect_left(queue, (since, request))
        if queue[index : index + 1] != [(since, request)]:
            return False
        del queue[index]
        self._leave_if_empty(band, flow)
        return True

    def pop(self, capacity: Capacity) -> tuple[Request, Priority, str] | None:
        """Take the next request that fits, with its band and flow."""
        nexts = {band: name for band in Priority if (name := self._next_up(band, capacity))}
        band = self._choose_band(list(nexts))
        if band is None:
            return None
        flow = nexts[band]
        _, request = self._queues[band, flow].pop(0)
        self._turns[band][flow] += self._step(flow)
        self._leave_if_empty(band, flow)
        return request, band, flow

    def pop_of(self, cluster: str) -> tuple[Request, Priority] | None:
        """Take the first request of a cluster that takes no turns, with its band."""
        for band in Priority:
            if queue := self._queues.get((band, cluster)):
                _, request = queue.pop(0)
                self._leave_if_empty(band, cluster)
                return request, band
        return None

    def forfeit_turns(self, capacity: Capacity) -> bool:
        """Let clusters without capacity lose the turns in which they were passed over.

        Returns:
            Whether some band has items, and none of them fitted.
        """
        is_held_back = False
        for band, turns in self._turns.items():
            cluster = self._next_up(band, capacity)
            if cluster is None:
                is_held_back = is_held_back or bool(turns)
                continue
            for name, score in turns.items():
                turns[name] = max(score, turns[cluster])
        return is_held_back

    def bar(self, cluster: str) -> None:
        """Let a cluster take no turns; its requests stay ready."""
        self._barred.add(cluster)
        for band in Priority:
            self._leave(band, cluster)

    def admit(self, cluster: str) -> None:
        """Let it take turns again."""
        self._barred.discard(cluster)
        for band in Priority:
            if self._queues.get((band, cluster)):
                self._join(band, cluster)

    def depth(self) -> dict[tuple[str, Priority], int]:
        """The number of requests by charged cluster and band."""
        depths: Counter[tuple[str, Priority]] = Counter()
        for (band, flow), queue in self._queues.items():
            depths[cluster_of(flow), band] += len(queue)
        return depths

    def oldest(self) -> dict[str, float]:
        """The time since which the oldest request of each cluster waits."""
        since: dict[str, float] = {}
        for (_, flow), queue in self._queues.items():
            cluster = cluster_of(flow)
            since[cluster] = min(queue[0][0], since.get(cluster, queue[0][0]))
        return since

    def _step(self, flow: str) -> float:
        return 1 / self._weights.get(cluster_of(flow), 1)

    def _next_up(self, band: Priority, capacity: Capacity) -> str | None:
        turns = self._turns[band]
        fitting = (name for name in turns if capacity.has(name))
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
        if not self._queues[band, cluster]:
            del self._queues[band, cluster]
            self._leave(band, cluster)

    def _leave(self, band: Priority, cluster: str) -> None:
        self._turns[band].pop(cluster, None)
        if not self._turns[band]:
            self._credits.pop(band, None)
