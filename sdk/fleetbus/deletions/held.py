"""Reads which deletions wait for a person, from the status of MultiClusterResources (rule D8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION

Object: TypeAlias = dict[str, Any]

FLEET_BUDGET: Final = "FleetBudget"
"""The reason of deletions held by the budget of the whole fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The held deletions of one MultiClusterResource, from its status."""

    namespace: str
    name: str
    reason: str
    objects: int
    clusters: Sequence[str]
    plan_hash: str
    message: str
    is_confirmed: bool

    @classmethod
    def of(cls, resource: Object) -> Self | None:
        """Read them from a MultiClusterResource; None if it holds nothing."""
        metadata: Object = resource["metadata"]
        status: Object = resource.get("status", {})
        found: Object = status.get("held", {})
        if not found:
            return None
        conditions: list[Object] = status.get("conditions", [])
        messages = [
            str(one.get("message", "")) for one in conditions if one.get("type") == "DeletionHeld"
        ]
        plan_hash = str(found.get("planHash", ""))
        annotations: Object = metadata.get("annotations", {})
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            reason=str(found.get("reason", "")),
            objects=int(found.get("objects", 0)),
            clusters=list(map(str, found.get("clusters", []))),
            plan_hash=plan_hash,
            message=messages[0] if messages else "",
            is_confirmed=annotations.get(CONFIRM_PRUNE_ANNOTATION) == plan_hash,
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def describe(self) -> dict[str, Any]:
        """Describe them for a program."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "reason": self.reason,
            "objects": self.objects,
            "clusters": list(self.clusters),
            "planHash": self.plan_hash,
            "confirmed": self.is_confirmed,
            "message": self.message,
        }


def find_held(resources: Iterable[Object]) -> list[Held]:
    """Find what is held in MultiClusterResources, by namespace and name."""
    return sorted((one for one in map(Held.of, resources) if one is not None), key=str)
