"""The breakers of the queue in memory, as in `state.lua` (rule Q9)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from fleetbus.workqueue.queue import Breaker, QueuePolicy
from fleetbus.workqueue.scripts import jitter

if TYPE_CHECKING:
    from fleetbus.workqueue.memory_items import Ready

_PROBE_LATER: Final = 1.0
_PARKED: Final = -1.0
"""A probe is due and no item was ready."""


@dataclass(slots=True)
class _Outage:
    failures: int = 0
    opened: int = 0
    probe: str = ""
    """The fence of the probe that is under way."""
    until: float | None = None
    """When the next probe may go; infinite while one is under way; None: the breaker is closed."""


class Outages:
    """The clusters that did not answer lately, and their breakers.

    Args:
        policy: how many failures open a breaker, and for how long.
        ready: where a cluster with an open breaker takes no turns.
    """

    def __init__(self, policy: QueuePolicy, ready: Ready) -> None:
        self._policy = policy
        self._ready = ready
        self._outages: dict[str, _Outage] = {}

    def count_unreachable(self, cluster: str, fence: str, now: float) -> None:
        """Count a run without an answer; `retry.lua` says when that opens the breaker."""
        outage = self._outages.setdefault(cluster, _Outage())
        outage.failures += 1
        if outage.until is None:
            is_opened = outage.failures >= self._policy.breaker
        else:
            is_opened = outage.probe == fence
        if is_opened:
            outage.opened += 1
            outage.probe = ""
            pause = self._policy.breaker_pause.delay(outage.opened).total_seconds()
            outage.until = now + pause * jitter()
            self._ready.bar(cluster)

    def count_answered(self, cluster: str, fence: str) -> None:
        """Close the breaker, half-open, if this run was the probe: it failed for another reason."""
        outage = self._probed_by(cluster, fence)
        if outage:
            outage.failures, outage.probe = self._policy.breaker - 1, ""
            outage.until = None
            self._ready.admit(cluster)

    def succeed(self, cluster: str) -> None:
        """Forget the outage of a cluster: a run of it has succeeded."""
        if self._outages.pop(cluster, None):
            self._ready.admit(cluster)

    def end_probe(self, cluster: str, fence: str, now: float) -> None:
        """Allow another probe if this was one: it has ended and proved nothing."""
        if outage := self._probed_by(cluster, fence):
            outage.probe, outage.until = "", now

    def wake(self, cluster: str, now: float) -> None:
        """Allow the probe that was due and found no ready item."""
        outage = self._outages.get(cluster)
        if outage and outage.until == _PARKED:
            outage.until = now

    def due(self, now: float, *, parked: bool = False) -> list[str]:
        """Clusters whose probe is due, longest first; with `parked` also those without items."""
        ends = [
            (outage.until, name)
            for name, outage in self._outages.items()
            if outage.until is not None
        ]
        first = _PARKED if parked else 0
        return [name for until, name in sorted(ends) if first <= until <= now]

    def is_open(self, cluster: str) -> bool:
        """Whether the breaker of a cluster is open."""
        outage = self._outages.get(cluster)
        return outage is not None and outage.until is not None

    def next_try(self, cluster: str, now: float) -> float:
        """When to try a request again that another cluster caused: at the next probe, or soon."""
        until = self._outages[cluster].until
        return until if until is not None and now < until < inf else now + _PROBE_LATER

    def begin_probe(self, cluster: str, fence: str) -> None:
        """Note that an item of this cluster was handed out as its probe."""
        self._outages[cluster].probe, self._outages[cluster].until = fence, inf

    def park(self, cluster: str) -> None:
        """Note that a probe is due and no item of this cluster is ready."""
        self._outages[cluster].until = _PARKED

    def next_due(self, now: float) -> float:
        """When the next pause ends; infinite without one."""
        ends = [outage.until for outage in self._outages.values() if outage.until is not None]
        return min((end for end in ends if end > now), default=inf)

    def is_probe(self, cluster: str, fence: str) -> bool:
        """Whether this lease is the probe."""
        return self._probed_by(cluster, fence) is not None

    def breakers(self, now: float) -> list[Breaker]:
        """The open breakers, by cluster name."""
        return [
            Breaker(
                cluster=name,
                failures=outage.failures,
                opened=outage.opened,
                remaining=timedelta(seconds=0 if outage.probe else max(0.0, outage.until - now)),
                is_probing=bool(outage.probe),
            )
            for name, outage in sorted(self._outages.items())
            if outage.until is not None
        ]

    def is_empty(self) -> bool:
        """Whether no failures are counted."""
        return not self._outages

    def _probed_by(self, cluster: str, fence: str) -> _Outage | None:
        outage = self._outages.get(cluster)
        return outage if outage and outage.probe == fence else None
