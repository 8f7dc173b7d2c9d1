"""Reports problems with children once while they last: log, metric, Event of the parent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

import structlog

from fleetbus.children.policy import Place
from fleetbus.children.writes import ChildState
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.process.metrics import CHILD_PROBLEMS
from fleetbus.reconcile import Request

log = structlog.get_logger()

_EVENTS: Final = {
    ChildState.UNREACHABLE: "child_unreachable",
    ChildState.MISSING: "child_kind_or_namespace_missing",
    ChildState.REFUSED: "child_refused",
    ChildState.CONFLICT: "child_conflict",
    ChildState.EXTRA: "child_extra",
    ChildState.PROTECTED: "child_protected",
    ChildState.LEFT_BEHIND: "child_left_behind",
}
"""The log event of each state."""
UNSEEN: Final = timedelta(hours=1)
"""A problem not seen for this long may have been solved since: a lasting one is checked again every
few minutes, by one process of several."""
PARENTS: Final = 10_000
"""Most parents whose problems are remembered; beyond that, the oldest are reported again."""
_WARNINGS: Final = frozenset({ChildState.UNREACHABLE, ChildState.MISSING, ChildState.PROTECTED})
"""States that pass by themselves or are intended; the others are logged as errors."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A problem with one child."""

    state: ChildState
    place: Place
    message: str

    def __str__(self) -> str:
        cluster, resource, namespace, name = self.place
        where = f"{resource} {namespace}/{name}" if name else resource
        return f"{where} in cluster {cluster}: {self.message}"


class _Reported(NamedTuple):
    conditions: frozenset[tuple[ChildState, Place]]
    seen: float
    """When they were last seen."""


class ConditionReporter:
    """Reports each problem of a parent once per process while it lasts.

    A problem is reported again after it was solved, or was not seen here for an hour: another
    process may have seen it solved.

    Args:
        controller: the name of the `Children` controller.
        now: a monotonic clock in seconds.
    """

    def __init__(self, controller: str, now: Callable[[], float] = time.monotonic) -> None:
        self._controller = controller
        self._now = now
        # Only parents with problems, ordered by when they were last seen.
        self._reported: dict[Request, _Reported] = {}
        for state in _EVENTS:
            CHILD_PROBLEMS.labels(controller, state)

    async def report(
        self, request: Request, conditions: Iterable[Condition], parent: Object | None, fleet: Fleet
    ) -> None:
        """Report what is new about a parent's children; a deleted parent gets no Event."""
        now = {(one.state, one.place): one for one in conditions}
        before = self._replace(request, frozenset(now))
        new = [one for key, one in now.items() if key not in before]
        for one in new:
            CHILD_PROBLEMS.labels(self._controller, one.state).inc()
            cluster, resource, namespace, name = one.place
            write = log.warning if one.state in _WARNINGS else log.error
            write(
                _EVENTS[one.state],
                child_cluster=cluster,
                child_resource=resource,
                child_namespace=namespace,
                child_name=name,
                reason=one.message,
            )
            if parent is not None:
                await fleet.cluster(request.cluster).event(
                    parent, reason=f"Child{one.state}", message=str(one), type="Warning"
                )

    def _replace(
        self, request: Request, conditions: frozenset[tuple[ChildState, Place]]
    ) -> frozenset[tuple[ChildState, Place]]:
        """Remember these conditions of a parent; return those that were reported and still last."""
        now = self._now()
        before = self._reported.pop(request, None)
        if conditions:
            self._reported[request] = _Reported(conditions, now)
            if len(self._reported) > PARENTS:
                del self._reported[next(iter(self._reported))]
        is_fresh = before is not None and now - before.seen <= UNSEEN.total_seconds()
        return before.conditions if before is not None and is_fresh else frozenset()
