"""Moves managedFields to the version that is applied, as Flux does (rule D9).

managedFields name the version of the type that each manager has used. After an upgrade of a CRD the
API server may be unable to convert the object to such a version: then it refuses every apply with
"field not declared in schema", until the entries name a version whose schema has the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from fleetbus.errors import KubeError
from fleetbus.kube.json_fields import many, mapping
from fleetbus.owned_objects.refusal import UNDECLARED
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.targets.target import Target, patch_exactly
from fleetbus_proto.resources import Resource

Entry: TypeAlias = dict[str, Any]
_SAME: Final = ("manager", "operation", "subresource")


def is_outdated(error: KubeError, live: Mapping[str, Any], api_version: str) -> bool:
    """Whether a refusal may come from managedFields of another version of the same group."""
    if UNDECLARED not in error.message:
        return False
    return any(_differs(entry, api_version) for entry in entries_of(live))


def entries_of(live: Mapping[str, Any]) -> list[Entry]:
    """The managedFields of an object."""
    return list(many(live["metadata"], "managedFields"))


def _differs(entry: Entry, api_version: str) -> bool:
    version = str(entry.get("apiVersion", ""))
    same_group = version.rpartition("/")[0] == api_version.rpartition("/")[0]
    return same_group and version != api_version


def to_version(entries: list[Entry], api_version: str) -> list[Entry]:
    """The entries under another version; those that then name the same manager are united."""
    moved: dict[tuple[Any, ...], Entry] = {}
    for one in entries:
        entry: Entry = (
            {**one, "apiVersion": api_version} if _differs(one, api_version) else dict(one)
        )
        key = (*(str(entry.get(name, "")) for name in _SAME), str(entry.get("apiVersion", "")))
        before = moved.get(key)
        if before is not None:
            entry["fieldsV1"] = _unite(_fields_of(before), _fields_of(entry))
        moved[key] = entry
    return list(moved.values())


def _fields_of(entry: Entry) -> Entry:
    return mapping(entry, "fieldsV1")


def _unite(first: Entry, second: Entry) -> Entry:
    united = dict(first)
    for name, fields in second.items():
        united[name] = _unite(mapping(united, name), mapping(fields))
    return united


async def move_fields(target: Target, resource: Resource, live: Object, api_version: str) -> Object:
    """Store the entries under another version; nothing else of the object changes.

    Raises:
        Conflict: the object has changed meanwhile.
        KubeError: the cluster refuses.
    """
    entries = to_version(entries_of(live), api_version)
    moved = await patch_exactly(target, resource, live, {"managedFields": entries})
    target.memory.note_write(target.name, moved)
    return moved
