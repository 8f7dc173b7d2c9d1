"""Reads which deletions wait for a person, from the status of MultiClusterResources (rule D8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, cast

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
        metadata, status = _map(resource.get("metadata")), status_of(resource)
        if not status.get("held"):
            return None
        found = _map(status["held"])
        conditions = map(_map, _list(status.get("conditions")))
        messages = [
            str(one.get("message", "")) for one in conditions if one.get("type") == "DeletionHeld"
        ]
        plan_hash = str(found.get("planHash", ""))
        annotations = _map(metadata.get("annotations"))
        objects = found.get("objects")
        return cls(
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata.get("name", "")),
            reason=str(found.get("reason", "")),
            objects=objects if isinstance(objects, int) else 0,
            clusters=list(map(str, _list(found.get("clusters")))),
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


def status_of(resource: Object) -> Object:
    """The status of a MultiClusterResource; empty if it is malformed."""
    return _map(resource.get("status"))


def find_held(resources: Iterable[Object]) -> list[Held]:
    """Find what is held in MultiClusterResources, by namespace and name."""
    return sorted((one for one in map(Held.of, resources) if one is not None), key=str)


def _map(value: object) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
