"""Merge patch, JSON patch, strategic merge patch."""

from __future__ import annotations

from typing import Any, cast

import jsonpatch
import orjson

from fleetbus_emulator.apiserver.errors import ApiError, bad_request
from fleetbus_emulator.apiserver.json_tree import as_list, as_object, listing
from fleetbus_emulator.apiserver.types.merge_rules import MAP, SET, MergeRule

JsonObject = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
DIRECTIVE = "$patch"
DELETE_FROM = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"
RETAIN = "$retainKeys"
MOST_OPERATIONS = 10_000
MOST_COPIED = 3 * 1024 * 1024  # bytes


def accepted(*, custom: bool) -> tuple[str, ...]:
    """The kinds of patches that a type takes; custom resources know no strategic merge."""
    return (JSON_PATCH, MERGE, APPLY) if custom else (JSON_PATCH, MERGE, STRATEGIC, APPLY)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, maps merge, everything else replaces. Changes `target`."""
    if not isinstance(patch, dict):
        return patch
    result = cast("JsonObject", target) if isinstance(target, dict) else {}
    for name, value in cast("JsonObject", patch).items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def apply_json_patch(target: JsonObject, body: bytes) -> JsonObject:
    """RFC 6902; whatever fails is 422."""
    try:
        operations: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    if not isinstance(operations, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type "
            "[]handlers.jsonPatchOp"
        )
    steps = cast("list[JsonObject]", operations)
    if len(steps) > MOST_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}"
        message = f"Request entity too large: {why}, got {len(steps)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    try:
        return _after(steps, target)
    except Exception as error:
        # jsonpatch raises its own, jsonpointer's and plain TypeErrors for bad operations.
        message = "the server rejected our request due to an error in our request"
        raise ApiError(422, "Invalid", message) from error


def _after(operations: list[JsonObject], document: Any) -> JsonObject:
    """The document after the operations; raises the library's errors for invalid ones."""
    jsonpatch.JsonPatch(operations)  # all are looked at before the first is done
    copied = 0
    for operation in operations:
        if operation["op"] == "copy":  # a few of them, each of what the last one made, fill memory
            source = jsonpatch.JsonPointer(operation["from"]).resolve(document)
            copied += len(orjson.dumps(source))
            if copied > MOST_COPIED:
                raise ValueError(f"copies of more than {MOST_COPIED} bytes")
        document = jsonpatch.JsonPatch([operation]).apply(document, in_place=True)  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(document, dict):
        raise TypeError("an object has become something else")
    return cast("JsonObject", document)


def strategic(target: Any, patch: Any, rule: MergeRule) -> Any:
    """A strategic merge: keyed lists merge by key, directives delete or replace."""
    if not isinstance(patch, dict):
        return patch
    changes = cast("JsonObject", patch)
    if changes.get(DIRECTIVE) == "replace":
        return {name: value for name, value in changes.items() if name != DIRECTIVE}
    if changes.get(DIRECTIVE) == "delete":
        return {}
    result = cast("JsonObject", target) if isinstance(target, dict) else {}
    if RETAIN in changes:
        names = listing(changes, RETAIN)
        result = {name: value for name, value in result.items() if name in names}
    for name, value in changes.items():
        if name.startswith("$"):
            _remove_listed(result, name, value)
            continue
        _merge_field(result, name, value, rule.child(name))
    return result


def _remove_listed(result: JsonObject, directive: str, value: Any) -> None:
    if directive.startswith(DELETE_FROM):
        name = directive.removeprefix(DELETE_FROM)
        unwanted = as_list(value) or []
        result[name] = [item for item in listing(result, name) if item not in unwanted]


def _merge_field(result: JsonObject, name: str, value: Any, rule: MergeRule) -> None:
    if value is None:
        result.pop(name, None)
    elif isinstance(value, list):
        result[name] = _merge_list(listing(result, name), cast("list[Any]", value), rule)
    else:
        result[name] = strategic(result.get(name), value, rule)


def _merge_list(present: list[Any], patch: list[Any], rule: MergeRule) -> list[Any]:
    if rule.list_type == SET:
        return present + [item for item in patch if item not in present]
    if rule.list_type != MAP or any(as_object(item) is None for item in present + patch):
        return [item for item in patch if not _is_directive(item)]
    if any(_is_directive(item) and item[DIRECTIVE] == "replace" for item in patch):
        return [item for item in patch if not _is_directive(item)]
    key = next(iter(rule.keys))  # the strategic merge key is the first of the apply keys
    result = list(present)
    fresh: list[Any] = []
    for item in patch:
        index = _find(result, key, item)
        if isinstance(item, dict) and cast("JsonObject", item).get(DIRECTIVE) == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            fresh.append(item)
        else:
            result[index] = strategic(result[index], item, rule.items)
    return fresh + result  # a real server puts new items first


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and DIRECTIVE in item


def _find(items: list[Any], key: str, patch_item: JsonObject) -> int | None:
    for index, item in enumerate(items):
        if item.get(key) == patch_item.get(key):
            return index
    return None
