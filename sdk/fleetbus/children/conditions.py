"""What is wrong with children, told once while it lasts: log, metric, Event of the parent."""

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
"""The lines of the log."""
UNSEEN: Final = timedelta(hours=1)
"""What was not seen for so long may have been solved since; a lasting problem is looked at again
after minutes, by one process of several."""
PARENTS: Final = 10_000
"""Whose problems are remembered; of more, those not seen for longest are told again."""
_WAITS: Final = frozenset({ChildState.UNREACHABLE, ChildState.MISSING, ChildState.PROTECTED})
"""What passes, or is as somebody wishes; the others are errors."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One child that is not as it is desired, and where."""

    state: ChildState
    place: Place
    message: str

    def __str__(self) -> str:
        cluster, resource, namespace, name = self.place
        where = f"{resource} {namespace}/{name}" if name else resource
        return f"{where} in cluster {cluster}: {self.message}"


class _Told(NamedTuple):
    problems: frozenset[tuple[ChildState, Place]]
    seen: float
    """When they were there last."""


class ConditionReporter:
    """Remembers what was told of which parent, so that a process tells a problem once.

    It tells it again after it was solved, or was not seen here for an hour: another process may
    have seen that it was solved.

    Args:
        controller: the name of the `Children` controller.
        now: a monotonic clock in seconds.
    """

    def __init__(self, controller: str, now: Callable[[], float] = time.monotonic) -> None:
        self._controller = controller
        self._now = now
        # Only parents with problems are kept, the one seen last at the end.
        self._told: dict[Request, _Told] = {}
        for state in _EVENTS:
            CHILD_PROBLEMS.labels(controller, state)

    async def tell(
        self, request: Request, problems: Iterable[Condition], parent: Object | None, fleet: Fleet
    ) -> None:
        """Tell what is new about a parent's children; a parent that is gone gets no Event."""
        now = {(one.state, one.place): one for one in problems}
        before = self._replace(request, frozenset(now))
        new = [one for key, one in now.items() if key not in before]
        for one in new:
            CHILD_PROBLEMS.labels(self._controller, one.state).inc()
            cluster, resource, namespace, name = one.place
            tell = log.warning if one.state in _WAITS else log.error
            tell(
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
        self, request: Request, problems: frozenset[tuple[ChildState, Place]]
    ) -> frozenset[tuple[ChildState, Place]]:
        """Remember these problems of a parent; answers those that are known to have lasted."""
        now = self._now()
        told = self._told.pop(request, None)
        if problems:
            self._told[request] = _Told(problems, now)
            if len(self._told) > PARENTS:
                del self._told[next(iter(self._told))]
        is_fresh = told is not None and now - told.seen <= UNSEEN.total_seconds()
        return told.problems if told is not None and is_fresh else frozenset()
