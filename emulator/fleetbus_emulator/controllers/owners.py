"""Owner references and selectors: which object manages which."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.apiserver.types.validation import selector_matches
from fleetbus_emulator.controllers.reading import texts_at
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import View, controller_uid, uid_of

JsonObject = dict[str, Any]


def owner_reference(owner: JsonObject) -> JsonObject:
    """The reference by which a controller's children name it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def labels_of(obj: JsonObject) -> dict[str, str]:
    """The labels."""
    return texts_at(obj, "metadata", "labels")


def selects(owner: JsonObject, obj: JsonObject) -> bool:
    """Whether the owner's selector selects the object; an empty selector selects nothing."""
    selector = mapping(owner, "spec", "selector")
    return bool(selector) and selector_matches(selector, labels_of(obj))


def selects_own(owner: JsonObject) -> bool:
    """Whether the owner selects what its template makes.

    The API server sees to it. An owner from elsewhere that does not would release each of its
    children and make the next, for ever.
    """
    return selects(owner, mapping(owner, "spec", "template"))


def managers_concerned(view: View, change: Change, group: str, resource: str) -> list[Ref]:
    """The objects of a type that a write concerns: who managed the object, and who does now."""
    managers: dict[Ref, None] = {}
    for obj in (change.new, change.old):
        uid = controller_uid(obj) if obj is not None else None
        ref = view.find_uid(uid) if uid else None
        if ref is not None and (ref.group, ref.resource) == (group, resource):
            managers[ref] = None
    return list(managers)
