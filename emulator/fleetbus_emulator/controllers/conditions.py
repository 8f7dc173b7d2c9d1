"""Conditions, as Kubernetes keeps them in a status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.controllers.reading import objects_at

JsonObject = dict[str, Any]
BOOKKEEPING = ("lastTransitionTime", "lastUpdateTime", "lastProbeTime")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""

    def to_dict(self) -> JsonObject:
        """The condition as in an object, without times; empty strings are left out."""
        texts = {"reason": self.reason, "message": self.message}
        details = {name: text for name, text in texts.items() if text}
        return {"type": self.type, "status": self.status, **details}


def truth(value: object) -> str:
    """`True` or `False`, the text."""
    return "True" if value else "False"


def find_condition(obj: JsonObject, condition_type: str) -> JsonObject:
    """The condition of a type; an empty object if there is none."""
    for condition in objects_at(obj, "status", "conditions"):
        if condition.get("type") == condition_type:
            return condition
    return {}


def is_true(obj: JsonObject, condition_type: str) -> bool:
    """Whether the object has the condition with status True."""
    return find_condition(obj, condition_type).get("status") == "True"


def with_condition(
    conditions: list[JsonObject],
    condition: Condition,
    now: str,
    *,
    has_update_time: bool = False,
    has_probe_time: bool = False,
    renewed: bool = False,
) -> list[JsonObject]:
    """The conditions with one added or replaced; the very same list if it says nothing new.

    Args:
        conditions: The present ones.
        condition: What to say.
        now: The time.
        has_update_time: The kind keeps `lastUpdateTime`, as Deployments do.
        has_probe_time: The kind keeps `lastProbeTime`, as Jobs do.
        renewed: Move lastUpdateTime also if nothing else is new.
    """
    old = next((c for c in conditions if c.get("type") == condition.type), None)
    new = condition.to_dict()
    content = {k: v for k, v in (old or {}).items() if k not in BOOKKEEPING}
    if content == new and not renewed:
        return conditions
    same_status = old is not None and old.get("status") == condition.status
    new["lastTransitionTime"] = old["lastTransitionTime"] if old and same_status else now
    if has_update_time:
        new["lastUpdateTime"] = now
    if has_probe_time:
        new["lastProbeTime"] = now
    return [*(c for c in conditions if c is not old), new]


def without_condition(conditions: list[JsonObject], condition_type: str) -> list[JsonObject]:
    """The conditions but for those of a type."""
    return [c for c in conditions if c.get("type") != condition_type]


def with_conditions(obj: JsonObject, new_conditions: list[Condition], now: str) -> list[JsonObject]:
    """The object's conditions in the order of `new_conditions`; foreign ones are kept behind."""
    conditions = objects_at(obj, "status", "conditions")
    for condition in new_conditions:
        conditions = with_condition(conditions, condition, now)
    order = {condition.type: place for place, condition in enumerate(new_conditions)}
    return sorted(conditions, key=lambda c: order.get(c["type"], len(order)))
