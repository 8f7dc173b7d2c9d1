"""What is wrong with children, told once: in the log, as a metric, as an Event of the parent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from fleetbus.children.policy import Place
from fleetbus.children.writes import State
from fleetbus.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.metrics import CHILD_PROBLEMS
from fleetbus.reconcile import Request

log = structlog.get_logger()

_EVENTS: Final = {
    State.UNREACHABLE: "child_unreachable",
    State.MISSING: "child_kind_or_namespace_missing",
    State.REFUSED: "child_refused",
    State.CONFLICT: "child_conflict",
    State.EXTRA: "child_extra",
    State.PROTECTED: "child_protected",
    State.LEFT_BEHIND: "child_left_behind",
}
"""The lines of the log."""
_WAITS: Final = frozenset({State.UNREACHABLE, State.MISSING, State.PROTECTED})
"""What passes, or is as somebody wishes; the others are errors."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One child that is not as it is wanted, and where."""

    state: State
    place: Place
    message: str

    def __str__(self) -> str:
        cluster, resource, namespace, name = self.place
        where = f"{resource} {namespace}/{name}" if name else resource
        return f"{where} in cluster {cluster}: {self.message}"


class Reports:
    """Remembers what was told of which parent, so that each problem is told once per process.

    Args:
        controller: the name of the `Children` controller.
    """

    def __init__(self, controller: str) -> None:
        self._controller = controller
        # Only parents with problems are kept.
        self._told: dict[Request, frozenset[tuple[State, Place]]] = {}
        for state in _EVENTS:
            CHILD_PROBLEMS.labels(controller, state)

    async def tell(
        self, request: Request, problems: Iterable[Problem], parent: Object | None, fleet: Fleet
    ) -> None:
        """Tell what is new about a parent's children; a parent that is gone gets no Event."""
        now = {(one.state, one.place): one for one in problems}
        before = self._told.get(request, frozenset[tuple[State, Place]]())
        if now:
            self._told[request] = frozenset(now)
        else:
            self._told.pop(request, None)
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
