"""Who manages whom: owner references, adoption and release."""

from __future__ import annotations

from typing import Any

from fleetbus_devfleet.apiserver.rules import selector_matches
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.view import (
    Ref,
    View,
    controller_uid,
    is_deleting,
    owners_of,
    uid_of,
)
from fleetbus_devfleet.sim.world import World

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


def labels_of(obj: JsonObject) -> JsonObject:
    """The labels."""
    return mapping(obj, "metadata", "labels")


def selects(owner: JsonObject, obj: JsonObject) -> bool:
    """Whether the owner's selector selects the object; an empty selector selects nothing."""
    selector = mapping(owner, "spec", "selector")
    return bool(selector) and selector_matches(selector, labels_of(obj))


def claim(world: World, owner: Ref, group: str, resource: str) -> list[Ref]:
    """The children of an owner, after adopting and releasing what its selector tells to.

    An object that matches and has no controller is adopted, for example the pods that survived the
    deletion of their ReplicaSet; a child that no longer matches is released, for example a pod
    whose label was changed to look at it in peace.
    """
    obj = world.view[owner]
    children = world.view.controlled(uid_of(obj), group, resource)
    if is_deleting(obj):
        return children
    kept = [ref for ref in children if not _release(world, obj, ref)]
    strays = world.view.unmanaged(group, resource, owner.namespace)
    return [*kept, *(ref for ref in strays if _adopt(world, obj, ref))]


def _release(world: World, owner: JsonObject, ref: Ref) -> bool:
    """Let go of a child that does not match; whether it was one."""
    child = world.view[ref]
    if is_deleting(child) or selects(owner, child):
        return False
    others = [o for o in owners_of(child) if o.get("uid") != uid_of(owner)]
    _set_owners(world, ref, others)
    return True


def _adopt(world: World, owner: JsonObject, ref: Ref) -> bool:
    """Take in an object that matches; whether it did."""
    child = world.view[ref]
    if is_deleting(child) or not selects(owner, child):
        return False
    others = [o for o in owners_of(child) if o.get("uid") != uid_of(owner)]
    _set_owners(world, ref, [*others, owner_reference(owner)])
    return True


def _set_owners(world: World, ref: Ref, owners: list[JsonObject]) -> None:
    guard = {"resourceVersion": world.view[ref]["metadata"]["resourceVersion"]}
    world.patch(ref, {"metadata": {"ownerReferences": owners, **guard}})


def managers_concerned(view: View, obj: JsonObject | None, group: str, resource: str) -> list[Ref]:
    """The objects of a type that an object's change concerns: its controller, or would-be ones."""
    if obj is None:
        return []
    if controller_uid(obj):
        ref = view.controller_of(obj)
        return [ref] if ref is not None and (ref.group, ref.resource) == (group, resource) else []
    namespace = obj["metadata"].get("namespace") or ""
    candidates = view.of_type(group, resource, namespace)
    return [ref for ref in candidates if selects(view[ref], obj)]
