"""Reads which deletions wait for a person, from the status of MultiClusterResources (rule D8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, cast

from fleetbus.kube.json_fields import condition, look, mapping, number
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
        """Read them from a MultiClusterResource; None if it holds nothing.

        Whatever else is malformed is left out: that a deletion is held has to be seen.
        """
        if not look(resource, "status", "held"):
            return None
        metadata, fields = mapping(resource, "metadata"), mapping(resource, "status", "held")
        clusters = fields.get("clusters")
        names = cast("list[Any]", clusters) if isinstance(clusters, list) else []
        plan_hash = str(fields.get("planHash", ""))
        confirmed = look(metadata, "annotations", CONFIRM_PRUNE_ANNOTATION)
        return cls(
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata.get("name", "")),
            reason=str(fields.get("reason", "")),
            objects=number(fields, "objects"),
            clusters=list(map(str, names)),
            plan_hash=plan_hash,
            message=str(condition(mapping(resource, "status"), "DeletionHeld").get("message", "")),
            is_confirmed=confirmed == plan_hash,
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


def status_of(resource: Object) -> Object:
    """The status of a MultiClusterResource; empty if it is malformed."""
    return mapping(resource, "status")


def find_held(resources: Iterable[Object]) -> list[Held]:
    """Find what is held in MultiClusterResources, by namespace and name."""
    return sorted(
        (deletion for deletion in map(Held.of, resources) if deletion is not None), key=str
    )
