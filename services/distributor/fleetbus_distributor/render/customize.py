"""Applies per-cluster changes to rendered templates: JSON Patch and merge patch.

Patches apply to the template, not to the live object, so the same patch applied again gives the
same object. Two habits of multi_resource_operator, which patched live objects, are kept: `add`
below a missing `/metadata/labels` or `/metadata/annotations` creates the map, and `replace` of a
member that only the defaults of the API server would have set works as an add.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]

from fleetbus_distributor.errors import CustomizeError, RenderError
from fleetbus_distributor.render.finish import finish, is_aggregated
from fleetbus_distributor.render.place import matches
from fleetbus_distributor.render.spec import Action, ClusterCustomize, PatchOp, Spec, Target
from fleetbus_distributor.render.template import (
    Context,
    Object,
    reference,
    render,
    substitute,
)
from fleetbus_distributor.render.work import MAX_BYTES, Work

_MAPS_OF_METADATA = (["metadata", "labels"], ["metadata", "annotations"])
_NEEDS_VALUE = (PatchOp.ADD, PatchOp.REPLACE, PatchOp.TEST)
_MISSING = object()
_AGGREGATED = "not applied, because the aggregationRule has the control plane write them"
_MAX_SHOWN = 200
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class _Scene:
    """The values that every patch of one cluster shares."""

    context: Context
    work: Work
    warnings: list[str]


def render_for(
    spec: Spec, context: Context, work: Work | None = None
) -> tuple[list[Object], list[str]]:
    """Render and customize everything for one cluster.

    Args:
        spec: the spec.
        context: the values that templates and patches may use.
        work: counts what is made for this cluster.

    Returns:
        The finished objects in the order of the spec, and warnings for the author.

    Raises:
        RenderError: a template does not fit this cluster.
        CustomizeError: a patch does not fit its object.
    """
    work = work or Work()
    scene = _Scene(context, work, [])
    finished: list[Object] = []
    entries = _entries(spec, context)
    for path, template in render(spec, context, work):
        current = template
        for where, entry in entries:
            work.spend_scalar()
            if _is_target(entry.target, current):
                current = _customize(current, entry, scene, where)
        if entries:
            # Moves nest without making anything, and what follows cannot bear every depth.
            Work().spend_value(current, path)
        finished.append(finish(current, path))
        if current.get("rules") and is_aggregated(current):
            scene.warnings.append(f"{path}.rules: {_AGGREGATED}")
    _check_whole(finished)
    return finished, scene.warnings


def _check_whole(objects: list[Object]) -> None:
    """Refuse duplicate objects, and a result that is too large (rule D15)."""
    first: dict[tuple[str, str, str, str], int] = {}
    for n, ref in enumerate(map(reference, objects)):
        other = first.setdefault(ref.key, n)
        if other != n:
            raise RenderError(f"spec.templates[{n}]: {ref} is that of spec.templates[{other}], too")
    if len(json.dumps(objects)) > MAX_BYTES:
        raise RenderError(f"the rendered objects are larger than {MAX_BYTES} bytes")


def _entries(spec: Spec, context: Context) -> list[tuple[str, ClusterCustomize]]:
    return [
        (f"spec.customize.clusters[{n}]", entry)
        for n, entry in enumerate(spec.customize.clusters)
        if _is_for(entry, context.cluster, context.labels)
    ]


def _is_for(entry: ClusterCustomize, cluster: str, labels: Mapping[str, str]) -> bool:
    if entry.cluster_selector is not None:
        return matches(entry.cluster_selector, labels)
    return entry.name == cluster


def _is_target(target: Target | None, obj: Object) -> bool:
    if target is None:
        return True
    metadata: Any = obj.get("metadata")
    names = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    facts = [
        (target.api_version, obj.get("apiVersion")),
        (target.kind, obj.get("kind")),
        (target.namespace, names.get("namespace")),
        (target.name, names.get("name")),
    ]
    return all(expected is None or expected == actual for expected, actual in facts)


def _customize(obj: Object, entry: ClusterCustomize, scene: _Scene, where: str) -> Object:
    """Patch an object in place: it was rendered for this cluster alone."""
    current = obj
    for n, action in enumerate(entry.action):
        current = _act(current, action, scene, f"{where}.action[{n}]")
    if entry.merge is not None:
        merge = substitute(entry.merge, scene.context, f"{where}.merge", scene.work)
        current = cast("Object", merge_patch(current, merge))
    return current


def _act(obj: Object, action: Action, scene: _Scene, where: str) -> Object:
    operation: dict[str, Any] = {"op": str(action.op), "path": action.path}
    if action.op in _NEEDS_VALUE:
        value = _value_of(action, scene, where)
        if value is _MISSING:
            raise CustomizeError(f"{where}: {action.op} {_cut(action.path)} needs a value")
        operation["value"] = value
    if action.op in (PatchOp.MOVE, PatchOp.COPY):
        operation["from"] = action.from_path
    _spend(obj, action, scene.work, where)
    return _apply(obj, operation, where)


def _value_of(action: Action, scene: _Scene, where: str) -> Any:
    if not action.has_value:
        return _MISSING
    if isinstance(action.value, list):
        # The others are looked at as well.
        scene.work.spend(len(cast("list[Any]", action.value)))
    value, warning = read_value(action.value)
    scene.warnings.extend([f"{where}.value: {warning}"] if warning else [])
    if value is _MISSING:
        return value
    return substitute(value, scene.context, f"{where}.value", scene.work)


def _spend(obj: Object, action: Action, work: Work, where: str) -> None:
    """Count an action before it is taken."""
    for pointer in (action.path, action.from_path or ""):
        work.spend_action(pointer, _value_at(obj, _tokens(pointer)[:-1]))
    if action.op is PatchOp.COPY:
        work.spend_value(_value_at(obj, _tokens(action.from_path or "")), where)
    elif action.op is PatchOp.TEST:
        work.spend_value(_value_at(obj, _tokens(action.path)), where)


def _value_at(obj: Object, tokens: list[str]) -> Any:
    here: Any = obj
    for token in tokens:
        here = _step(here, token)
    return here


def _apply(obj: Object, operation: dict[str, Any], where: str) -> Object:
    try:
        _add_parents(obj, operation)
        result: Any = jsonpatch.apply_patch(obj, [operation], in_place=True)
    except jsonpatch.JsonPatchTestFailed as error:
        # The message of the library quotes both values (rule D14).
        raise _error(obj, operation, where, "test failed: value differs") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise _error(obj, operation, where, "the object has no such path") from error
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise _error(obj, operation, where, "does not fit the object") from error
    if not isinstance(result, dict):
        raise _error(obj, operation, where, "the result is not an object")
    return cast("Object", result)


def _error(obj: Object, operation: dict[str, Any], where: str, why: str) -> CustomizeError:
    subject = f"{operation['op']} {_cut(operation['path'])} of {_cut(_named(obj))}"
    return CustomizeError(f"{where}: {subject}: {why}")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _named(obj: Object) -> str:
    """Kind and name of an object that may lack either."""
    metadata: Any = obj.get("metadata")
    name: Any = cast("Object", metadata).get("name") if isinstance(metadata, dict) else None
    return f"{obj.get('kind', 'an object')} {name or 'without a name'}"


def _add_parents(obj: Object, operation: dict[str, Any]) -> None:
    """Create the maps and members that a live object would have; see above."""
    tokens = _tokens(operation["path"])
    parents = tokens[:-1]
    if operation["op"] == PatchOp.REPLACE and tokens and _is_member_missing(obj, tokens):
        operation["op"] = str(PatchOp.ADD)
        _ensure_maps(obj, parents)
    elif operation["op"] == PatchOp.ADD and parents in _MAPS_OF_METADATA:
        _ensure_maps(obj, parents)


def _is_member_missing(obj: Object, tokens: list[str]) -> bool:
    """Whether a prefix of the path exists, and the rest are missing members."""
    here: Any = obj
    for token in tokens:
        if isinstance(here, dict) and token not in here:
            return True
        here = _step(here, token)
        if here is _MISSING:
            return False
    return False


def _step(here: Any, token: str) -> Any:
    if isinstance(here, dict):
        return cast("dict[str, Any]", here).get(token, _MISSING)
    if isinstance(here, list) and token.isdecimal() and len(token) <= _MAX_DIGITS:
        items = cast("list[Any]", here)
        return items[int(token)] if int(token) < len(items) else _MISSING
    return _MISSING


def _ensure_maps(obj: Object, tokens: list[str]) -> None:
    here: Any = obj
    for token in tokens:
        if isinstance(here, dict):
            members = cast("dict[str, Any]", here)
            members[token] = {} if members.get(token) is None else members[token]
        here = _step(here, token)


def _tokens(pointer: str) -> list[str]:
    parts = pointer.split("/")[1:]
    return [piece.replace("~1", "/").replace("~0", "~") for piece in parts]


def read_value(value: Any) -> tuple[Any, str]:
    """Read the value of an action as multi_resource_operator does.

    A list stands for its last element; if any string in it contains `=`, for the map of all its
    `k=v` elements. An empty list is no value. A list that is meant literally is nested.

    Returns:
        The value (a private sentinel if there is none) and a warning, or "".
    """
    if not isinstance(value, list):
        return value, ""
    items = cast("list[Any]", value)
    pairs = [item for item in items if isinstance(item, str) and "=" in item]
    if not pairs:
        return (items[-1] if items else _MISSING), ""
    lost = [pair.split("=")[0] for pair in pairs if pair.count("=") > 1]
    ignored = len(items) - len(pairs)
    parts = [pair.split("=") for pair in pairs]
    warning = ""
    if lost or ignored:
        names = f"everything after the second '=' of {', '.join(lost)}" if lost else ""
        others = f"{ignored} element(s) without '='" if ignored else ""
        subjects = " and ".join(text for text in (names, others) if text)
        warning = (
            f"a list with k=v strings is read as a map and loses {subjects}; write a plain value"
        )
    return {pair[0]: pair[1] for pair in parts}, warning


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, maps merge, everything else replaces.

    The target is changed in place: a copy of each map would make many small patches of one large
    object expensive.
    """
    if not isinstance(patch, dict):
        return patch
    merged = cast("dict[str, Any]", target) if isinstance(target, dict) else {}
    for key, value in cast("dict[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
