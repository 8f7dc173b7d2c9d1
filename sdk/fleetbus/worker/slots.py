"""Who has the slots of a process: one cluster may have so many, and probes fewer (rule Q9)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fleetbus.errors import Unreachable

if TYPE_CHECKING:
    from fleetbus.workqueue.queue import Lease


class Slots:
    """How many more requests of a cluster this process may work on.

    Args:
        total: all slots.
        most: of one cluster; None lets one cluster have half of them, at least one, unless it is
            the only one.
    """

    def __init__(self, total: int, most: int | None) -> None:
        self._total = total
        self._is_chosen = most is not None
        # Half until the fleet is known: the first requests of all may be those of a dead cluster.
        self.cap = max(1, total // 2) if most is None else min(most, total)
        self.room: dict[str, int] = {}
        """Of each cluster that has slots now; the queue reads it while it waits."""
        self._taken: Counter[str] = Counter()
        self._probes = 0

    @property
    def probes(self) -> int:
        """How many more requests may be those that only try whether a cluster answers."""
        return max(1, self._total // 4) - self._probes

    def share(self, clusters: int) -> None:
        """The fleet has so many clusters."""
        if self._is_chosen:
            return
        cap = self._total if clusters <= 1 else max(1, self._total // 2)
        if cap != self.cap:
            self.cap = cap
            self.room.update({name: cap - taken for name, taken in self._taken.items()})

    def take(self, lease: Lease) -> None:
        """Its run begins."""
        self._probes += lease.is_probe
        self._add(lease.request.cluster, 1)

    def free(self, lease: Lease) -> None:
        """Its run has ended."""
        self._probes -= lease.is_probe
        self._add(lease.request.cluster, -1)

    def _add(self, cluster: str, count: int) -> None:
        self._taken[cluster] += count
        self.room[cluster] = self.cap - self._taken[cluster]
        if not self._taken[cluster]:
            del self._taken[cluster], self.room[cluster]


def is_outage(error: BaseException, cluster: str) -> bool:
    """Whether an error says that this cluster did not answer."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_outage(one, cluster) for one in error.exceptions)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType]
    return isinstance(error, Unreachable) and error.cluster == cluster
