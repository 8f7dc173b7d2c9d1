"""metadata.managedFields: who owns which field, kept by plain writes and by applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.write import field_sets

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.merge_rules import MergeRule

JsonObject = dict[str, Any]
APPLY = "Apply"
UPDATE = "Update"
# Go structs that are values, not pointers: built-in types always have them, so they have no owner.
STRUCTS = frozenset(
    f"f:{name}"
    for name in ("metadata", "spec", "status", "template", "strategy", "jobTemplate", "resources")
)
METADATA_ONLY = frozenset({"f:metadata"})


@dataclass(frozen=True, slots=True)
class Ownership:
    """On whose behalf a write is recorded."""

    manager: str
    api_version: str
    subresource: str
    time: str
    merge_rule: MergeRule
    custom: bool

    def key(self, operation: str) -> tuple[str, str, str, str]:
        """The key of an entry."""
        return _key(self.manager, operation, self.api_version, self.subresource)

    def new_entry(self, operation: str) -> JsonObject:
        """An entry without fields."""
        entry: JsonObject = {
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
            "manager": self.manager,
            "operation": operation,
        }
        if self.subresource:
            entry["subresource"] = self.subresource
        return {**entry, "time": self.time}


def entry_key(entry: JsonObject) -> tuple[str, str, str, str]:
    """The key of an entry."""
    return _key(
        entry.get("manager", ""),
        entry.get("operation", ""),
        entry.get("apiVersion", ""),
        entry.get("subresource", ""),
    )


def _key(
    manager: str, operation: str, api_version: str, subresource: str
) -> tuple[str, str, str, str]:
    """Who applies has one entry, whatever version it applies."""
    return (manager, operation, "" if operation == APPLY else api_version, subresource)


def find_entry(entries: list[JsonObject], key: tuple[str, str, str, str]) -> JsonObject | None:
    """The entry with this key."""
    return next((entry for entry in entries if entry_key(entry) == key), None)


def entries_of(old: JsonObject, new: JsonObject, *, custom: bool) -> list[JsonObject] | None:
    """The entries a write starts from, ours to change; None if the write clears them.

    A body without managedFields keeps the present ones; one that carries others (kubectl's
    migration to server-side apply) replaces them, unless they cannot be read. `[{}]` clears them,
    and so does `[]` for a built-in type; for a custom resource `[]` keeps them [1.34.1].
    """
    entries: list[JsonObject] | None = new["metadata"].get("managedFields")
    present = listing(old, "metadata", "managedFields")
    if entries and entries == present:
        return entries  # a patch, and most updates
    if entries == [{}] or (entries == [] and not custom):
        return None
    if not entries or not all(_is_readable(e) for e in entries):
        return orjson.loads(orjson.dumps(present))
    return entries


def _is_readable(entry: JsonObject) -> bool:
    is_field_set = (
        entry.get("operation") in {APPLY, UPDATE} and entry.get("fieldsType") == "FieldsV1"
    )
    return is_field_set and field_sets.is_tree(entry.get("fieldsV1"))


def record_update(owner: Ownership, old: JsonObject, new: JsonObject) -> None:
    """Make the manager owner of what a plain write changed; others lose it."""
    entries = entries_of(old, new, custom=owner.custom)
    if entries is None:
        new["metadata"].pop("managedFields", None)
        return
    structs = METADATA_ONLY if owner.custom else STRUCTS
    if not old and not entries:  # a create: all of it is new
        entry = owner.new_entry(UPDATE)
        entry["fieldsV1"] = field_sets.whole_tree(new, owner.merge_rule, structs)
        store_entries(new, [entry])
        return
    changed, gone = field_sets.differences(old, new, owner.merge_rule, structs)
    if changed or gone:
        _transfer(owner, entries, changed, gone)
    store_entries(new, entries)


def _transfer(
    owner: Ownership,
    entries: list[JsonObject],
    changed: set[field_sets.Path],
    gone: set[field_sets.Path],
) -> None:
    mine = find_entry(entries, owner.key(UPDATE))
    for entry in entries:
        tree: field_sets.Tree = mapping(entry, "fieldsV1")
        _disown(tree, gone)
        if entry is not mine:
            _disown(tree, changed)
        entry["fieldsV1"] = tree
    if not changed:
        return  # who only removes fields leaves no trace of its own
    if mine is None:
        mine = owner.new_entry(UPDATE)
        entries.append(mine)
    for path in sorted(changed):
        field_sets.insert(mine["fieldsV1"], path)
    mine["time"] = owner.time


def _disown(tree: field_sets.Tree, paths: set[field_sets.Path]) -> None:
    for path in paths:
        field_sets.drop(tree, path)


def store_entries(obj: JsonObject, entries: list[JsonObject]) -> None:
    """Put the entries into the object: no empty ones, applies first, then by time and name."""
    nonempty = [entry for entry in entries if entry.get("fieldsV1")]
    nonempty.sort(key=_order)
    if nonempty:
        obj["metadata"]["managedFields"] = nonempty
    else:
        obj["metadata"].pop("managedFields", None)


def _order(entry: JsonObject) -> tuple[str, str, str, str]:
    return (
        entry.get("operation", ""),
        entry.get("time") or "",
        entry.get("manager", ""),
        entry.get("apiVersion", ""),
    )
