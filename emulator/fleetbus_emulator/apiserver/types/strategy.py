"""Write strategies: how types differ in defaults, status, generation and validation."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.definitions import definition_problems
from fleetbus_emulator.apiserver.json_tree import as_object, listing, mapping, same
from fleetbus_emulator.apiserver.types import defaults, services, validation
from fleetbus_emulator.apiserver.types.builtin import CRDS, NAMESPACES, SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.apiserver.errors import Cause
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
STATUS_KEPT_ON_CREATE = frozenset({"nodes", "persistentvolumes"})
LABELS_FIXED_IN_STATUS = frozenset({"apps", "batch"})

__all__ = [
    "CRDS",
    "NAMESPACES",
    "moves_generation",
    "prepare_create",
    "prepare_update",
    "problems",
    "restrict",
]


def _has_status(served: Served) -> bool:
    return "status" in served.version.subresources


def prepare_create(
    state: State,
    served: Served,
    obj: JsonObject,
    validation: str,
    warnings: list[str],
) -> None:
    """Reset what a creator may not set, prune and default."""
    if _has_status(served) and served.rtype.plural not in STATUS_KEPT_ON_CREATE:
        obj.pop("status", None)
    if served.version.schema is not None:
        served.version.schema.admit(obj, validation, warnings)
        return
    defaults.apply_defaults(served.rtype, obj)
    defaults.apply_creation_defaults(state, served.rtype, obj)
    _allocate(state, served, obj)


def _allocate(state: State, served: Served, obj: JsonObject) -> None:
    if served.rtype is SERVICES:
        services.allocate(obj, state.random, lambda: _other_services(state, obj))


def _other_services(state: State, obj: JsonObject) -> Iterator[JsonObject]:
    place = obj["metadata"].get("namespace"), obj["metadata"].get("name")
    for stored in state.store(SERVICES).snapshot().select(None):
        meta = stored.obj["metadata"]
        if (meta["namespace"], meta["name"]) != place:
            yield stored.obj


def prepare_update(
    state: State,
    served: Served,
    obj: JsonObject,
    subresource: str,
    validation: str,
    warnings: list[str],
) -> None:
    """Prune and default."""
    if served.version.schema is not None:
        served.version.schema.admit(obj, validation, warnings)
        return
    if not subresource:
        defaults.apply_defaults(served.rtype, obj)
        _allocate(state, served, obj)


def problems(state: State, served: Served, obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """Validate the object apart from its metadata."""
    if served.version.schema is not None:
        return served.version.schema.problems(obj)
    if served.rtype is CRDS:
        return definition_problems(obj, old)
    causes = validation.problems(served.rtype, obj, old)
    if served.rtype is SERVICES and not causes:
        return services.unavailable(obj, lambda: _other_services(state, obj))
    return causes


def restrict(served: Served, subresource: str, old: JsonObject, new: JsonObject) -> JsonObject:
    """Undo the changes that the endpoint does not allow: status here, all else there."""
    if subresource == "":
        return _without_status_changes(served, old, new)
    if subresource == "status":
        return _only_status_changes(served, old, new)
    if subresource == "finalize":
        return {**old, "metadata": new["metadata"], "spec": mapping(new, "spec")}
    return new


def _without_status_changes(served: Served, old: JsonObject, new: JsonObject) -> JsonObject:
    if served.rtype is SERVICES:
        services.keep_allocated(old, new)
    if not _has_status(served):
        return new
    new.pop("status", None)
    if "status" in old:
        new["status"] = old["status"]
    if served.rtype is NAMESPACES and "spec" in old:
        new["spec"] = old["spec"]
    if served.rtype is CRDS:
        _store_version(new)
    return new


def _store_version(definition: JsonObject) -> None:
    """Record the storage version in storedVersions, where it stays."""
    versions: list[JsonObject] = listing(definition, "spec", "versions")
    stored: list[str] = listing(definition, "status", "storedVersions")
    storage = (v.get("name") for v in versions if as_object(v) is not None and v.get("storage"))
    name = next(storage, None)
    if isinstance(name, str) and name not in stored:
        status: JsonObject = mapping(definition, "status")
        definition["status"] = {**status, "storedVersions": [*stored, name]}


def _only_status_changes(served: Served, old: JsonObject, new: JsonObject) -> JsonObject:
    result = {name: value for name, value in old.items() if name != "status"}
    if new.get("status") is not None:
        result["status"] = new["status"]
    meta: JsonObject = new["metadata"]
    if served.rtype.custom:
        meta = dict(old["metadata"])
        if "managedFields" in new["metadata"]:
            meta["managedFields"] = new["metadata"]["managedFields"]
    elif served.rtype.group in LABELS_FIXED_IN_STATUS:
        meta.pop("labels", None)
        if "labels" in old["metadata"]:
            meta["labels"] = old["metadata"]["labels"]
    result["metadata"] = meta
    return result


def moves_generation(served: Served, subresource: str, old: JsonObject, new: JsonObject) -> bool:
    """Whether an update bumps metadata.generation."""
    if subresource in ("status", "binding"):
        return False
    ignored = {"metadata", "kind", "apiVersion"}
    if _has_status(served):
        ignored.add("status")
    names = (old.keys() | new.keys()) - ignored
    equal = same if served.rtype.custom else operator.eq  # built-in types have one type a field
    if not all(equal(old.get(name), new.get(name)) for name in names):
        return True
    if served.rtype.plural != "deployments" or served.rtype.custom:
        return False
    before, after = old["metadata"].get("annotations"), new["metadata"].get("annotations")
    return (before or {}) != (after or {})
