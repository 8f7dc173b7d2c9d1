"""Server-side apply: merge a manager's configuration into the object, and record ownership.

The algorithm is that of structured-merge-diff, on sets of paths:
1. my new set = the leaves of the configuration;
2. conflict: another manager owns such a leaf and the live value differs; `force` takes it away;
3. merge; then remove what I owned before, do not apply now, and nobody else owns.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.encoding import decode
from fleetbus_emulator.apiserver.encoding.go_types import UNDECLARED
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.storage.state import State
from fleetbus_emulator.apiserver.types.merge_rules import MAP, SET, MergeRule, keyed_items
from fleetbus_emulator.apiserver.write import field_sets, identity, managed_fields, write
from fleetbus_emulator.apiserver.write.field_sets import Path
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import Outcome, WriteOptions

JsonObject = dict[str, Any]


def apply(state: State, target: Target, body: JsonObject, options: WriteOptions) -> Outcome:
    """Apply a configuration; creates the object if it is missing."""
    config = _checked(target, body)
    owner = write.ownership(state, target, options)
    existing = state.store(target.rtype).get(target.key)
    if existing is None:
        return _create(state, target, config, owner, options)
    merging = _Merging(owner, config, force=options.force)
    return write.update(state, target, merging.merge, options, finish=merging.stamp)


def _checked(target: Target, body: JsonObject) -> JsonObject:
    kind, api_version = body.get("kind"), body.get("apiVersion")
    if not kind or not api_version:
        raise errors.bad_request(f"invalid object type: /, Kind={kind or ''}")
    meta: JsonObject = mapping(body, "metadata")
    if meta.get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    write.check_kind(target, body)
    config = write.to_storage(target.served, cast("JsonObject", _without_nulls(body)))
    config.setdefault("metadata", {})
    _check_declared(target, config)
    # The main endpoint and /status each ignore what belongs to the other.
    if target.subresource == "status":
        return {k: v for k, v in config.items() if k in (*field_sets.UNOWNED_ROOTS, "status")}
    if "status" in target.version.subresources:
        config.pop("status", None)
    return config


def _check_declared(target: Target, config: JsonObject) -> None:
    """Refuse fields that the type lacks or has in another form, and items that are there twice.

    Applies are not pruned, and an item of a keyed list is found by its key. The code is 500, as
    from real servers (kubernetes#139253).
    """
    # Of a copy: what Go omits, like `false`, is applied and owned all the same.
    problems, inconvertible = decode.problems_of_apply(target.served, copy.deepcopy(config))
    if target.version.schema is not None:
        problems += [(p, UNDECLARED) for p in target.version.schema.unknown_fields(config)]
    rule = target.version.merge_rule
    texts = [f"{field_sets.shown_by_key(path, config, rule)}: {why}" for path, why in problems]
    texts += field_sets.duplicate_items(config, rule)
    if not texts and not inconvertible:
        return
    place = f"{mapping(config, 'metadata').get('namespace') or ''}/{target.name}"
    kind = f"{target.rtype.group}/{target.version.name}, Kind={target.rtype.kind}"
    if not texts:
        why = f"to proper version: unable to convert unstructured object to {kind}: {inconvertible}"
        raise errors.ApiError(500, None, f"failed to convert new object ({place}; {kind}) {why}")
    listed = texts[0] if len(texts) == 1 else "errors:\n" + "\n".join(f"  {t}" for t in texts)
    message = f"failed to create typed patch object ({place}; {kind}): {listed}"
    raise errors.ApiError(500, None, message)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        return {k: _without_nulls(v) for k, v in fields.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[Any]", value)]
    return value


def _create(
    state: State,
    target: Target,
    config: JsonObject,
    owner: managed_fields.Ownership,
    options: WriteOptions,
) -> Outcome:
    if target.subresource:
        raise errors.not_found(target.rtype, target.name)
    if not config["metadata"].get("name"):  # that of an existing object may be left out
        raise errors.bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: "
            "name must be provided"
        )
    identity.check_name(target, config["metadata"])
    uid = config["metadata"].get("uid")
    if uid:
        why = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object was "
            "found"
        )
        raise errors.conflict(target.rtype, target.name, why)
    entry = owner.new_entry(managed_fields.APPLY)
    entry["fieldsV1"] = field_sets.to_tree(field_sets.applied_paths(config, owner.merge_rule))
    decode.read_unwrapped(target.served, config)
    config["metadata"]["managedFields"] = [entry] if entry["fieldsV1"] else []
    return write.create_applied(state, target, config, options)


@dataclass(slots=True)
class _Others:
    """The fields of the other managers."""

    entries: list[tuple[JsonObject, set[Path]]]

    def owns(self, path: Path) -> bool:
        return any(path in paths for _, paths in self.entries)

    def owns_at_or_below(self, path: Path) -> bool:
        length = len(path)
        return any(p[:length] == path for _, paths in self.entries for p in paths)

    def lose(self, path: Path) -> None:
        """Take away what they own at the path and below."""
        length = len(path)
        for entry, paths in self.entries:
            field_sets.drop(entry["fieldsV1"], path)
            paths.difference_update([p for p in paths if p[:length] == path])


class _Merging:
    """One apply onto an existing object, run as the transformation of an update."""

    def __init__(self, owner: managed_fields.Ownership, config: JsonObject, *, force: bool) -> None:
        self._owner = owner
        self._config = config
        self._force = force
        self._stamped_entry: JsonObject | None = None

    def merge(self, live: JsonObject) -> JsonObject:
        """The live object with the configuration merged in."""
        rule = self._owner.merge_rule
        entries: list[JsonObject] = listing(live["metadata"], "managedFields")
        mine = managed_fields.find_entry(entries, self._owner.key(managed_fields.APPLY))
        before = field_sets.to_paths(mine["fieldsV1"]) if mine else set[Path]()
        applied_paths = field_sets.applied_paths(self._config, rule)
        others = _Others(
            [(e, field_sets.to_paths(e["fieldsV1"])) for e in entries if e is not mine]
        )
        self._settle_conflicts(live, applied_paths, others)
        merged = _merge_object(live, self._config, rule)
        _remove(merged, before - applied_paths, applied_paths, others, rule)
        if mine is None:
            mine = self._owner.new_entry(managed_fields.APPLY)
            del mine["time"]
            entries.append(mine)
        mine["apiVersion"] = self._owner.api_version
        if applied_paths != before:
            mine["fieldsV1"] = field_sets.to_tree(applied_paths)
        self._stamped_entry = mine
        managed_fields.store_entries(merged, entries)
        return merged

    def stamp(self, old: JsonObject, new: JsonObject) -> None:
        """Renew the entry's time if the object changed; owning more or less alone does not."""
        if self._stamped_entry is None or _without_books(old) == _without_books(new):
            return
        self._stamped_entry["time"] = self._owner.time
        managed_fields.store_entries(new, listing(new["metadata"], "managedFields"))

    def _settle_conflicts(
        self, live: JsonObject, applied_paths: set[Path], others: _Others
    ) -> None:
        causes: list[Cause] = []
        for entry, owned in others.entries:
            contested = [path for path in applied_paths & owned if self._differs(live, path)]
            if self._force:
                for path in contested:
                    field_sets.drop(entry["fieldsV1"], path)
                    owned.discard(path)
            else:
                who = _described(entry)
                causes += [
                    Cause(_dotted(path), who, "FieldManagerConflict") for path in sorted(contested)
                ]
        if causes:
            raise errors.apply_conflict(causes)

    def _differs(self, live: JsonObject, path: Path) -> bool:
        rule = self._owner.merge_rule
        present, value, _ = field_sets.lookup(live, path, rule)
        _, applied, child_rule = field_sets.lookup(self._config, path, rule)
        if not present:
            return True
        if field_sets.children(applied, child_rule):
            return False  # a keyed item is there; its fields are compared on their own
        return value != applied


def _without_books(obj: JsonObject) -> JsonObject:
    meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": meta}


def _described(entry: JsonObject) -> str:
    manager = f'conflict with "{entry.get("manager")}"'
    if entry.get("subresource"):
        manager += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == managed_fields.UPDATE:
        manager += f" using {entry.get('apiVersion')}"
    return manager


def _dotted(path: Path) -> str:
    text = ""
    for element in path:
        kind, _, detail = element.partition(":")
        if kind == "f":
            text += f".{detail}"
        elif kind == "v":
            text += f"[={detail}]"
        else:
            key: JsonObject = orjson.loads(detail)
            pairs = (f"{name}={orjson.dumps(value).decode()}" for name, value in key.items())
            text += f"[{','.join(pairs)}]"
    return text


# merging ----------------------------------------------------------------------------------------


def _merge_object(live: JsonObject, config: JsonObject, rule: MergeRule) -> JsonObject:
    merged = dict(live)
    for name, value in config.items():
        if name not in field_sets.UNOWNED_ROOTS:
            merged[name] = _merge(live.get(name), value, rule.child(name))
    meta, applied = dict(live["metadata"]), config["metadata"]
    for name in field_sets.OWNED_METADATA:
        if applied.get(name):
            child_rule = rule.child("metadata").child(name)
            meta[name] = _merge(meta.get(name), applied[name], child_rule)
    for name in ("name", "namespace", "uid", "resourceVersion"):
        if applied.get(name):
            meta[name] = applied[name]
    merged["metadata"] = meta
    return merged


def _merge(live: Any, config: Any, rule: MergeRule) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not rule.atomic:
        merged = dict(cast("JsonObject", live))
        for name, value in cast("JsonObject", config).items():
            merged[name] = _merge(merged.get(name), value, rule.child(name))
        return merged
    if isinstance(config, list) and isinstance(live, list):
        return _merge_list(cast("list[Any]", live), cast("list[Any]", config), rule)
    return cast("Any", config)


def _merge_list(live: list[Any], config: list[Any], rule: MergeRule) -> list[Any]:
    if rule.list_type == SET:
        return live + [item for item in config if item not in live]
    present, applied = keyed_items(rule, live), keyed_items(rule, config)
    if rule.list_type != MAP or present is None or applied is None:
        return config
    merged = {
        key: _merge(item, applied[key], rule.items) if key in applied else item
        for key, item in present.items()
    }
    merged |= {key: item for key, item in applied.items() if key not in present}
    return list(merged.values())


def _remove(
    merged: JsonObject,
    dropped: set[Path],
    applied_paths: set[Path],
    others: _Others,
    rule: MergeRule,
) -> None:
    """Remove what is no longer applied; the shortest paths first, so that items go whole.

    An item is removed unless another owns the item itself; changes of others in it go with it.
    """
    for path in sorted(dropped, key=len):
        if path[-1].startswith("k:"):
            if others.owns(path) or path in applied_paths:
                continue
            others.lose(path)
        elif others.owns_at_or_below(path) or any(p[: len(path)] == path for p in applied_paths):
            continue
        field_sets.remove_at(merged, path, rule)
        _remove_emptied(merged, path, applied_paths, others, rule)


def _remove_emptied(
    merged: JsonObject, path: Path, applied_paths: set[Path], others: _Others, rule: MergeRule
) -> None:
    """Remove the list or map that lost its last item, unless a manager owns it as such."""
    for length in range(len(path) - 1, 0, -1):
        parent = path[:length]
        if parent == ("f:metadata",) or parent in applied_paths or others.owns_at_or_below(parent):
            return
        present, value, _ = field_sets.lookup(merged, parent, rule)
        if not present or value or not isinstance(value, (dict, list)):
            return
        field_sets.remove_at(merged, parent, rule)
