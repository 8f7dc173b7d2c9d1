"""The health of all objects of one cluster: the worst state, and the first object that has it.

It depends on nothing but the objects that were read and the rules of the spec (rule D21).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleetbus.process.redact import cut
from fleetbus_distributor.health.feedback import Feedback, collect
from fleetbus_distributor.health.health import health_of
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.health.rules import HealthRule

MAX_REASON: Final = 100
MAX_MESSAGE: Final = 500
_SEVERITY: Final = {state: number for number, state in enumerate(HealthState)}


@dataclass(frozen=True, slots=True)
class StatusRules:
    """The parts of the spec about the status of objects: `spec.health` and `spec.feedback`."""

    health: Sequence[HealthRule] = ()
    feedback: Sequence[Feedback] = ()

    def health_of(self, obj: Mapping[str, Any]) -> Health:
        """The health of an object as it was read."""
        return health_of(obj, self.health)

    def collect(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """The chosen fields of an object as it was read."""
        return collect(obj, self.feedback) if self.feedback else {}


NO_RULES: Final = StatusRules()


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The health of one cluster."""

    state: HealthState = HealthState.HEALTHY
    objects: int = 0
    """Number of unhealthy objects."""
    first: str = ""
    """First of the objects with the worst state, by name: objects are applied side by side."""
    reason: str = ""
    message: str = ""
    feedback: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Object → the chosen fields of its status."""

    def with_object(self, name: str, health: Health, values: Mapping[str, Any]) -> ClusterHealth:
        """Add an object; of what a cluster says about it only the beginning is kept."""
        feedback = {**self.feedback, name: values} if values else self.feedback
        if health.state is HealthState.HEALTHY:
            return replace(self, feedback=feedback)
        counted = replace(self, objects=self.objects + 1, feedback=feedback)
        mine, other = _SEVERITY[self.state], _SEVERITY[health.state]
        if mine > other or (mine == other and self.first <= name):
            return counted
        return replace(
            counted,
            state=health.state,
            first=name,
            reason=cut(health.reason, MAX_REASON),
            message=cut(health.message, MAX_MESSAGE),
        )
