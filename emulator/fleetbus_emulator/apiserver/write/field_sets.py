"""Sets of fields: the FieldsV1 trees of metadata.managedFields, and as sets of paths.

A path is a tuple of the elements that FieldsV1 uses: `f:name`, `k:{"name":"a"}` for an item of a
keyed list, `v:"x"` for an item of a set. In a tree a member without children is `{}`, one with
children holds `"."`. Plain updates edit trees in place (few paths change), applies compare whole
sets of paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import orjson

from fleetbus_emulator.apiserver.json_tree import as_list, as_object, mapping
from fleetbus_emulator.apiserver.types.merge_rules import MAP, SET, MergeRule, item_key, keyed_items

Path = tuple[str, ...]
Tree = dict[str, Any]
JsonObject = dict[str, Any]
OWNED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
UNOWNED_ROOTS = ("apiVersion", "kind", "metadata")
_STEP = re.compile(r"\[(?P<index>\d+)\]|(?P<field>[^.\[\]]+)")


def key_element(key: tuple[tuple[str, Any], ...]) -> str:
    """The element of a keyed list's item."""
    return "k:" + orjson.dumps(dict(sorted(key))).decode()


def value_element(value: Any) -> str:
    """The element of a set's item."""
    return "v:" + orjson.dumps(value).decode()


# what a value consists of ----------------------------------------------------------------------


def children(value: Any, rule: MergeRule) -> dict[str, tuple[Any, MergeRule]] | None:
    """The parts of a value that can be owned one by one; None for a leaf."""
    if isinstance(value, dict):
        if rule.atomic:
            return None
        fields = cast("JsonObject", value)
        return {f"f:{name}": (content, rule.child(name)) for name, content in fields.items()}
    if not isinstance(value, list):
        return None
    items = cast("list[Any]", value)
    if rule.list_type == MAP and (by_key := keyed_items(rule, items)) is not None:
        return {key_element(key): (item, rule.items) for key, item in by_key.items()}
    if rule.list_type == SET:
        return {value_element(item): (None, MergeRule(atomic=True)) for item in items}
    return None


def owned_parts(obj: JsonObject, rule: MergeRule) -> dict[str, tuple[Any, MergeRule]]:
    """The parts of a whole object that can be owned."""
    parts = {
        f"f:{name}": (value, rule.child(name))
        for name, value in obj.items()
        if name not in UNOWNED_ROOTS and (value or name != "status")
    }
    meta = mapping(obj, "metadata")
    owned = {name: meta[name] for name in OWNED_METADATA if meta.get(name)}
    return {"f:metadata": (owned, rule.child("metadata")), **parts}


def applied_paths(obj: JsonObject, rule: MergeRule) -> set[Path]:
    """The leaves of an applied configuration; keyed items belong to it as such."""
    paths: set[Path] = set()
    for element, (value, part_rule) in owned_parts(obj, rule).items():
        if element != "f:metadata" or value:
            _collect(value, part_rule, (element,), paths)
    return paths


def _collect(value: Any, rule: MergeRule, path: Path, paths: set[Path]) -> None:
    parts = children(value, rule)
    if not parts:
        paths.add(path)
        return
    if path[-1].startswith("k:"):
        paths.add(path)
    for element, (content, part_rule) in parts.items():
        if rule.declared and element.removeprefix("f:") not in rule.fields:
            paths.add((*path, element))
        _collect(content, part_rule, (*path, element), paths)


def shown_by_key(path: str, obj: Any, rule: MergeRule) -> str:
    """A path such as `a.b[0].c` as server-side apply writes it: `.a.b[name="x"].c`."""
    text = ""
    for step in _STEP.finditer(path):
        if step["field"] is not None:
            text += f".{step['field']}"
            obj, rule = (as_object(obj) or {}).get(step["field"]), rule.child(step["field"])
            continue
        items, index = as_list(obj) or [], int(step["index"])
        obj = items[index] if index < len(items) else None
        key = item_key(rule, obj) if rule.list_type == MAP else None
        text += shown_key(key) if key else f"[{index}]"
        rule = rule.items
    return text


def duplicate_items(value: Any, rule: MergeRule, place: str = "") -> list[str]:
    """Each key or value that a keyed list or a set holds twice, as server-side apply says it."""
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        below = (duplicate_items(v, rule.child(k), f"{place}.{k}") for k, v in fields.items())
        return [text for texts in below for text in texts]
    if not isinstance(value, list) or rule.list_type not in {MAP, SET}:
        return []
    texts: list[str] = []
    keys: set[str] = set()
    for item in cast("list[Any]", value):
        key = item_key(rule, item) if rule.list_type == MAP else None
        if rule.list_type == MAP and key is None:
            continue
        label = shown_key(key) if key else f"[={orjson.dumps(item).decode()}]"
        if label in keys:
            texts.append(f"{place}: duplicate entries for key {label}")
        keys.add(label)
        texts += duplicate_items(item, rule.items, f"{place}{label}")
    return texts


def shown_key(key: Iterable[tuple[str, Any]]) -> str:
    """The key of an item, such as `[name="x"]`."""
    return f"[{','.join(f'{name}={orjson.dumps(value).decode()}' for name, value in key)}]"


def lookup(obj: Any, path: Path, rule: MergeRule) -> tuple[bool, Any, MergeRule]:
    """Whether the object has something at the path, what, and its rule."""
    value = obj
    for element in path:
        parts = children(value, rule) or {}
        if element not in parts:
            return False, None, rule
        value, rule = parts[element]
    return True, value, rule


def remove_at(value: Any, path: Path, rule: MergeRule) -> None:
    """Remove what is at a path, in place; a path that leads nowhere is ignored."""
    for element in path[:-1]:
        parts = children(value, rule) or {}
        if element not in parts:
            return
        value, rule = parts[element]
    last = path[-1]
    if isinstance(value, dict):
        cast("JsonObject", value).pop(last.removeprefix("f:"), None)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        items[:] = [item for item in items if not _is_item(item, last, rule)]


def _is_item(item: Any, element: str, rule: MergeRule) -> bool:
    if element.startswith("v:"):
        return value_element(item) == element
    key = item_key(rule, item)
    return key is not None and key_element(key) == element


# trees ------------------------------------------------------------------------------------------


def is_tree(value: Any) -> bool:
    """Whether a value is a tree of FieldsV1."""
    fields = as_object(value)
    if fields is None:
        return False
    return all(_is_element(name) and is_tree(below) for name, below in fields.items())


def _is_element(name: str) -> bool:
    kind, colon, body = name.partition(":")
    if kind in {"f", "i"} or name == ".":
        return name == "." or bool(colon)
    try:
        parsed: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return kind == "v" or (kind == "k" and as_object(parsed) is not None)


def to_paths(tree: Tree) -> set[Path]:
    """The members of a tree."""
    paths: set[Path] = set()
    _walk(tree, (), paths)
    return paths


def _walk(tree: Tree, path: Path, paths: set[Path]) -> None:
    for element, below in tree.items():
        if element == ".":
            paths.add(path)
        elif below:
            _walk(below, (*path, element), paths)
        else:
            paths.add((*path, element))


def to_tree(paths: set[Path]) -> Tree:
    """The tree of a set of paths, in a stable order."""
    tree: Tree = {}
    for path in sorted(paths):
        insert(tree, path)
    return tree


def insert(tree: Tree, path: Path) -> None:
    """Make the path a member."""
    node = tree
    for element in path[:-1]:
        below: Tree | None = node.get(element)
        if below is None:
            below = node[element] = Tree()
        elif not below:
            below["."] = {}  # it was a leaf and stays a member
        node = below
    last = path[-1]
    present = node.get(last)
    if present is None:
        node[last] = {}
    elif present and "." not in present:
        node[last] = {".": {}, **present}


def drop(tree: Tree, path: Path) -> bool:
    """Remove the path and all below it; says whether there was anything."""
    element = path[0]
    below = tree.get(element)
    if below is None:
        return False
    if len(path) == 1:
        del tree[element]
        return True
    if not below or not drop(below, path[1:]):
        return False
    if not below:
        del tree[element]
    elif set(below) == {"."}:
        tree[element] = {}
    return True


def whole_tree(obj: JsonObject, rule: MergeRule, structs: frozenset[str]) -> Tree:
    """The tree of an object that came whole: of all that `differences` finds from nothing to it."""
    trees: Tree = {}
    for element, (value, part_rule) in sorted(owned_parts(obj, rule).items()):
        tree = tree_of(value, part_rule, element, structs)
        if tree or element != "f:metadata":
            trees[element] = tree
    return trees


def tree_of(value: Any, rule: MergeRule, element: str, structs: frozenset[str]) -> Tree:
    """The tree of one part of such an object."""
    parts = children(value, rule)
    if not parts:
        return {}
    tree = {n: tree_of(content, s, n, structs) for n, (content, s) in sorted(parts.items())}
    is_member = isinstance(value, dict) and element not in structs
    return {".": {}, **tree} if is_member else tree


def differences(
    old: JsonObject, new: JsonObject, rule: MergeRule, structs: frozenset[str]
) -> tuple[set[Path], set[Path]]:
    """The paths that a plain write added or changed, and those it removed.

    Maps and keyed items that came whole are members themselves, except `structs`: fields that
    are never absent in the built-in types' Go form.
    """
    changed: set[Path] = set()
    gone: set[Path] = set()
    _compare(owned_parts(old, rule), owned_parts(new, rule), (), (changed, gone), structs)
    return changed, gone


def _compare(
    old: dict[str, tuple[Any, MergeRule]],
    new: dict[str, tuple[Any, MergeRule]],
    path: Path,
    paths: tuple[set[Path], set[Path]],
    structs: frozenset[str],
) -> None:
    changed, gone = paths
    gone.update((*path, element) for element in old if element not in new)
    for element, (value, rule) in new.items():
        here = (*path, element)
        if element not in old:
            _added(value, rule, here, changed, structs)
            continue
        before, _ = old[element]
        if before is value or before == value:
            continue
        old_parts, new_parts = children(before, rule), children(value, rule)
        if old_parts is not None and new_parts is not None:
            _compare(old_parts, new_parts, here, paths, structs)
            continue
        if old_parts is not None:
            gone.add(here)
        _added(value, rule, here, changed, structs)


def _added(
    value: Any, rule: MergeRule, path: Path, changed: set[Path], structs: frozenset[str]
) -> None:
    parts = children(value, rule)
    if not parts or (isinstance(value, dict) and path[-1] not in structs):
        changed.add(path)
    for element, (content, part_rule) in (parts or {}).items():
        _added(content, part_rule, (*path, element), changed, structs)
