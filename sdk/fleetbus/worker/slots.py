"""Shares the slots of a process among clusters, so that none takes all of them (rule Q9)."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus.workqueue.queue import Lease

ALONE: Final = timedelta(seconds=5)
"""A cluster may use every slot once no other has held one for this long."""


class Slots:
    """The slots that each cluster may still take.

    By default a cluster may have half of the slots, at least one: the rest is for the others, whose
    changes must not wait until an unreachable one releases its slots. The only cluster of a fleet
    may have all of them, and so may the only one that has wanted any for a while, as long as its
    runs succeed; once another one has a slot it is half again. Probes do not count as wanting any.

    Args:
        total: all slots.
        most: the limit per cluster; None for the default above.
        clock: monotonic seconds.
    """

    def __init__(
        self, total: int, most: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._is_chosen = most is not None
        self._clock = clock
        # Half until the fleet is known: the very first requests may be those of a dead cluster.
        self.default_capacity = max(1, total // 2) if most is None else min(most, total)
        """The limit of a cluster that `capacity` does not name."""
        self.capacity: dict[str, int] = {}
        """The slots left for each cluster that has some now, and for one that may have all of them;
        the queue reads it while it waits."""
        self._taken: Counter[str] = Counter()
        self._probing: Counter[str] = Counter()
        """Those of `_taken` that are probes."""
        self._sole = ""
        """The last cluster that had a slot for anything but a probe."""
        self._sole_since = self._answered_at = -ALONE.total_seconds()

    @property
    def vacant(self) -> int:
        """Number of free slots."""
        return self._total - self._taken.total()

    @property
    def probes(self) -> int:
        """Number of further slots for requests that only probe whether a cluster answers."""
        return max(1, self._total // 4) - self._probing.total()

    def share(self, clusters: int) -> None:
        """Set how many clusters the fleet has."""
        if not self._is_chosen:
            self.default_capacity = self._total if clusters <= 1 else max(1, self._total // 2)
            for cluster in {self._sole, *self._taken}:
                self._measure(cluster)

    def take(self, lease: Lease) -> None:
        """Take a slot: a run begins."""
        cluster, before = lease.charged_cluster, self._sole
        self._taken[cluster] += 1
        if lease.is_probe:
            self._probing[cluster] += 1
        elif cluster != before:
            self._sole, self._sole_since = cluster, self._clock()
            self._answered_at = self._sole_since - ALONE.total_seconds()
            self._measure(before)
        self._measure(cluster)

    def free(self, lease: Lease, *, is_success: bool) -> None:
        """Free the slot of a run that has ended."""
        cluster = lease.charged_cluster
        self._drop(self._taken, cluster)
        if lease.is_probe:
            self._drop(self._probing, cluster)
        elif cluster != self._sole:
            self._sole_since = self._clock()
        elif is_success:
            self._answered_at = self._clock()
        self._measure(cluster)

    def _drop(self, counts: Counter[str], cluster: str) -> None:
        counts[cluster] -= 1
        if not counts[cluster]:
            del counts[cluster]

    def _measure(self, cluster: str) -> None:
        most = self._total if cluster == self._sole and self._is_alone() else self.default_capacity
        if cluster in self._taken or most > self.default_capacity:
            self.capacity[cluster] = most - self._taken[cluster]
        else:
            self.capacity.pop(cluster, None)

    def _is_alone(self) -> bool:
        if self._is_chosen or self._sole_since + ALONE.total_seconds() > self._clock():
            return False
        if self._answered_at + ALONE.total_seconds() <= self._clock():
            return False
        others = (name for name in self._taken if name != self._sole)
        return all(self._taken[name] == self._probing[name] for name in others)


def is_outage(error: BaseException, cluster: str) -> bool:
    """Whether an error means that this cluster did not answer."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_outage(exception, cluster) for exception in error.exceptions)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType]
    return isinstance(error, Unreachable) and error.cluster == cluster
