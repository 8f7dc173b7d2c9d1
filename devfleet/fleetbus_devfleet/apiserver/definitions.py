"""Custom resource definitions: from the CRD object to a served type, and away again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.builtin import CRDS
from fleetbus_devfleet.apiserver.errors import Cause
from fleetbus_devfleet.apiserver.resource import Column, ResourceType, ScalePaths, TypeVersion
from fleetbus_devfleet.apiserver.schema import Schema, shape_of
from fleetbus_devfleet.apiserver.tree import listing, mapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_devfleet.apiserver.served import ServedTypes
    from fleetbus_devfleet.apiserver.state import Change, State
    from fleetbus_devfleet.apiserver.store import Stored

JsonObject = dict[str, Any]
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
REQUIRED = "FieldValueRequired"


def definition_problems(obj: JsonObject) -> list[Cause]:
    """What is wrong with a definition."""
    spec: JsonObject = mapping(obj, "spec")
    names: JsonObject = mapping(spec, "names")
    causes: list[Cause] = []
    name = obj["metadata"].get("name")
    if name != f"{names.get('plural')}.{spec.get('group')}":
        why = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("metadata.name", why))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        causes.append(Cause("spec.scope", "Required value", REQUIRED))
    versions: list[JsonObject] = listing(spec, "versions")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        why = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("spec.versions", why))
    for index, version in enumerate(versions):
        if not mapping(version, "schema").get("openAPIV3Schema"):
            place = f"spec.versions[{index}].schema.openAPIV3Schema"
            causes.append(Cause(place, "Required value", REQUIRED))
    return causes


def resource_type(definition: JsonObject) -> ResourceType:
    """The type that a valid definition describes; only served versions are part of it."""
    spec = definition["spec"]
    names = spec["names"]
    versions = {
        version["name"]: _type_version(version, names["kind"])
        for version in spec["versions"]
        if version.get("served")
    }
    stored = next(v["name"] for v in spec["versions"] if v.get("storage"))
    return ResourceType(
        group=spec["group"],
        plural=names["plural"],
        kind=names["kind"],
        versions=versions,
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        custom=True,
        has_generation=True,
        unconditional_update=False,
        store=(spec["group"], names["plural"]),
        storage=stored,
    )


def _type_version(version: JsonObject, kind: str) -> TypeVersion:
    subresources: JsonObject = mapping(version, "subresources")
    schema: JsonObject = version["schema"]["openAPIV3Schema"]
    scale: JsonObject | None = subresources.get("scale")
    return TypeVersion(
        name=version["name"],
        subresources=frozenset(name for name in ("status", "scale") if name in subresources),
        columns=tuple(_column(column) for column in listing(version, "additionalPrinterColumns")),
        scale=_scale_paths(scale) if scale else None,
        schema=Schema(schema, kind, version["name"]),
        shape=shape_of(schema),
    )


def _column(column: JsonObject) -> Column:
    return Column(
        name=column["name"],
        type=column.get("type", "string"),
        priority=column.get("priority", 0),
        json_path=column.get("jsonPath", ""),
        format=column.get("format", ""),
        description=column.get("description", ""),
    )


def _scale_paths(scale: JsonObject) -> ScalePaths:
    selector = scale.get("labelSelectorPath")
    return ScalePaths(
        spec_replicas=_steps(scale["specReplicasPath"]),
        status_replicas=_steps(scale["statusReplicasPath"]),
        selector=_steps(selector) if selector else None,
    )


def _steps(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^.]+", path))


class Definitions:
    """Keeps the served types in step with the CRD objects.

    Args:
        state: The cluster, subscribed to.
        served: The types to change.
        later: Runs a function after the delay with which custom resources become served.
    """

    def __init__(
        self, state: State, served: ServedTypes, later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._state = state
        self._served = served
        self._later = later
        self._terminating: dict[tuple[str, str], str] = {}  # type -> name of its definition
        state.subscribers.append(self._observe)

    def is_terminating(self, rtype: ResourceType) -> bool:
        """Whether instances can no longer be created."""
        return rtype.store in self._terminating

    def resync(self) -> None:
        """Serve what the stored definitions say, after the past was restored."""
        for rtype in self._served.custom_types():
            self._served.remove(rtype.group, rtype.plural)
        self._terminating.clear()
        for stored in self._state.store(CRDS).snapshot().select(None):
            if _is_established(stored.obj):
                self._serve(stored.obj)

    def _observe(self, change: Change) -> None:
        place = (change.group, change.resource)
        if place == CRDS.store:
            self._definition_changed(change)
        elif change.type == "DELETED" and place in self._terminating:
            self._finish(place)

    def _definition_changed(self, change: Change) -> None:
        name, meta = change.new["metadata"]["name"], change.new["metadata"]
        if change.type == "DELETED":
            self._gone(change.new)
        elif "deletionTimestamp" in meta:
            self._terminate(change.new)
        elif not _is_established(change.new):
            self._later(lambda: self._establish(name))
        else:
            self._serve(change.new)

    def _stored(self, name: str) -> Stored | None:
        return self._state.store(CRDS).get(("", name))

    def _establish(self, name: str) -> None:
        stored = self._stored(name)
        if stored is None or "deletionTimestamp" in stored.obj["metadata"]:
            return
        if _is_established(stored.obj):
            return
        new = stored.copy()
        spec = new["spec"]
        now = self._state.timestamp()
        storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
        new["status"] = {
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
                _condition(
                    "Established",
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                    now,
                ),
            ],
            "acceptedNames": spec["names"],
            "storedVersions": [storage],
        }
        self._state.put(CRDS, stored.key, new, stored)

    def _serve(self, definition: JsonObject) -> None:
        rtype = resource_type(definition)
        present = self._served.type_of(rtype.group, rtype.plural)
        if present is not None and not present.custom:
            return
        self._state.store(rtype)
        self._served.add(rtype)

    def _terminate(self, definition: JsonObject) -> None:
        """Delete the instances; each one's end is observed, the last one's finishes."""
        if CLEANUP_FINALIZER not in (listing(definition["metadata"], "finalizers")):
            return
        spec = definition["spec"]
        place = (spec["group"], spec["names"]["plural"])
        if place in self._terminating:
            return
        self._terminating[place] = definition["metadata"]["name"]
        rtype = self._served.type_of(*place)
        if rtype is not None:
            self._delete_instances(rtype)
        self._finish(place)

    def _delete_instances(self, rtype: ResourceType) -> None:
        for stored in list(self._state.store(rtype).snapshot().select(None)):
            meta = stored.obj["metadata"]
            if not meta.get("finalizers"):
                self._state.remove(rtype, stored)
            elif "deletionTimestamp" not in meta:
                held = stored.copy()
                held["metadata"]["deletionTimestamp"] = self._state.timestamp()
                held["metadata"]["deletionGracePeriodSeconds"] = 0
                held["metadata"]["generation"] = meta.get("generation", 0) + 1
                self._state.put(rtype, stored.key, held, stored)

    def _finish(self, place: tuple[str, str]) -> None:
        rtype, name = self._served.type_of(*place), self._terminating[place]
        if rtype is not None and len(self._state.store(rtype)):
            return
        stored = self._stored(name)
        if stored is None:
            return
        finalizers: list[str] = listing(stored.obj["metadata"], "finalizers")
        if finalizers == [CLEANUP_FINALIZER]:
            self._state.remove(CRDS, stored)
        elif CLEANUP_FINALIZER in finalizers:
            new = stored.copy()
            new["metadata"]["finalizers"] = [f for f in finalizers if f != CLEANUP_FINALIZER]
            self._state.put(CRDS, stored.key, new, stored)

    def _gone(self, definition: JsonObject) -> None:
        spec = definition["spec"]
        place = (spec["group"], spec["names"]["plural"])
        self._terminating.pop(place, None)
        rtype = self._served.type_of(*place)
        if rtype is not None and rtype.custom:
            self._served.remove(*place)
            self._state.drop_store(rtype)


def _is_established(definition: JsonObject) -> bool:
    conditions: list[JsonObject] = listing(definition, "status", "conditions")
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _condition(name: str, reason: str, message: str, now: str) -> JsonObject:
    return {
        "type": name,
        "status": "True",
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }
