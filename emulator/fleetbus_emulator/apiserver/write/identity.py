"""Checks of an object's identity in a write: name, namespace, uid, revision, system fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import listing

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.storage.store import Stored
    from fleetbus_emulator.apiserver.write.target import Target

JsonObject = dict[str, Any]
SYSTEM_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


def check_place(target: Target, meta: JsonObject) -> None:
    """Refuse a namespace unlike that of the URL; write the right one down."""
    namespace = meta.get("namespace")
    if not target.rtype.namespaced:
        meta.pop("namespace", None)
        return
    if namespace and namespace != target.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta["namespace"] = target.namespace


def check_name(target: Target, meta: JsonObject) -> None:
    """Refuse a body that names another object than the URL; sets the name if it has none."""
    name = meta.get("name") or target.name
    if name != target.name:
        raise errors.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    meta["name"] = name


def check_identity(target: Target, meta: JsonObject, old: Stored, *, by_patch: bool) -> None:
    """Refuse an update of something else, or of another revision, than what is stored."""
    check_name(target, meta)
    check_place(target, meta)
    _check_uid(target, meta, old, by_patch=by_patch)
    version = str(meta.get("resourceVersion") or "0")
    if version == "0":
        if not by_patch and not target.rtype.unconditional_update:
            cause = Cause(
                "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise errors.invalid(target.rtype.qualified, target.name, [cause])
    elif version != old.obj["metadata"]["resourceVersion"]:
        raise errors.conflict(target.rtype, target.name)


def _check_uid(target: Target, meta: JsonObject, old: Stored, *, by_patch: bool) -> None:
    uid, present = meta.get("uid"), old.obj["metadata"]["uid"]
    if not uid or uid == present:
        return
    if by_patch:
        cause = Cause("metadata.uid", f'Invalid value: "{uid}": field is immutable')
        raise errors.invalid_object(target.rtype, target.name, [cause, cause])
    group = f"{target.rtype.group}/" if target.rtype.custom else ""
    namespace = f"{target.namespace}/" if target.namespace else ""
    key = f"/registry/{group}{target.rtype.plural}/{namespace}{target.name}"
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, "
        f"UID in object meta: {present}"
    )
    raise errors.conflict(target.rtype, target.name, why)


def restore_system_fields(meta: JsonObject, old: JsonObject) -> None:
    """Keep what only the server may set."""
    for name in (*SYSTEM_FIELDS, "resourceVersion"):
        if name in old:
            meta[name] = old[name]
        else:
            meta.pop(name, None)


def new_finalizers(meta: JsonObject, old: JsonObject) -> list[Cause]:
    """Validate the finalizers of an object that is being deleted."""
    if "deletionTimestamp" not in old:
        return []
    before = listing(old, "finalizers")
    added = [name for name in listing(meta, "finalizers") if name not in before]
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    why = (
        "Forbidden: no new finalizers can be added if the object is being deleted, "
        f"found new finalizers []string{{{listed}}}"
    )
    return [Cause("metadata.finalizers", why, "FieldValueForbidden")] * 2


def check_put_of_missing(target: Target, meta: JsonObject) -> None:
    """Refuse a PUT that cannot create the object it found missing."""
    check_name(target, meta)
    if meta.get("uid"):
        raise errors.not_found(target.rtype, target.name)
