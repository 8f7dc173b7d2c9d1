"""Decides whether an apply takes fields from other managers (rules D3, D6, D13).

The server answers an apply with a conflict both for a manual change and for a field of another
controller, and names who holds it. A plain update of an object that we have applied before is
drift, which may be undone. A manager that applies has declared the field its own, one that writes
through a subresource is a controller, and `.spec.replicas` belongs to the autoscaler by convention:
only a policy that overwrites everything takes these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.errors import Conflict
from fleetbus.kube.json_fields import many, string
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL

_UPDATED_BY: Final = re.compile(r'conflict with "[^"]*" using ')
_AUTOSCALED: Final = ".spec.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcePolicy:
    """The fields that an apply may take.

    Attributes:
        overwrites: all, whoever holds them.
        adopts: those of an object that we have never applied, if plain updates hold them all; the
            mark of a former owner counts as one.
        corrects: those of an object that we have applied, if plain updates have changed them all.
    """

    overwrites: bool = False
    adopts: bool = False
    corrects: bool = False


def is_forced(
    policy: ForcePolicy, causes: Sequence[Mapping[str, Any]], live: Mapping[str, Any], manager: str
) -> bool:
    """Whether an apply takes all fields that other managers hold.

    Args:
        policy: which fields it may take.
        causes: the `conflicts` that the server has named; none before it was asked.
        live: the object before the apply.
        manager: our field manager.
    """
    if policy.overwrites or not causes:
        return policy.overwrites
    if was_applied(live, manager):
        return policy.corrects and all(map(_is_by_hand, causes))
    return policy.adopts and all(_is_mark(cause) or _is_update(cause) for cause in causes)


def conflicts(error: Conflict) -> Sequence[dict[str, Any]]:
    """The causes that name a field of another manager; none if the object has changed instead."""
    causes = many(error.details, "causes")
    return [cause for cause in causes if cause.get("reason") == "FieldManagerConflict"]


def was_applied(live: Mapping[str, Any], manager: str) -> bool:
    """Whether a manager has applied an object before."""
    return any(
        entry.get("manager") == manager and entry.get("operation") == "Apply"
        for entry in many(live["metadata"], "managedFields")
    )


def _is_by_hand(cause: Mapping[str, Any]) -> bool:
    return _is_update(cause) and cause.get("field") != _AUTOSCALED


def _is_update(cause: Mapping[str, Any]) -> bool:
    return _UPDATED_BY.match(string(cause, "message")) is not None


def _is_mark(cause: Mapping[str, Any]) -> bool:
    return string(cause, "field").endswith((f".{OWNER_UID_LABEL}", f".{OWNER_ANNOTATION}"))
