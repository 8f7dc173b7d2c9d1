"""The values at the JSONPath of a printer column, by the rules of k8s.io/client-go/util/jsonpath.

A path that client-go cannot evaluate on an object (an index out of range, a slice of a map) has
no value there: the cell is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import eq, ge, gt, le, lt, ne
from typing import Any, cast

import orjson

JsonObject = dict[str, Any]
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_STEP = re.compile(
    rf"(?P<descend>\.\.)?\.?(?:(?P<field>(?:[^.\[\]\\\s]|\\.)+)"
    rf"|\[(?P<inside>(?:{_QUOTED}|\((?:{_QUOTED}|[^)'\"])*\)|[^\]'\"(])*)\])"
)
_FILTER = re.compile(
    rf"\?\(\s*(?P<left>{_QUOTED}|[^=!<>]+?)\s*"
    rf"(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<right>{_QUOTED}|.+?)\s*)?\)"
)
_SLICE = re.compile(r"(-?\d+)|(-?\d*):(-?\d*)(?::(-?\d*))?")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


class _NoValueError(Exception):
    """The path cannot be evaluated on this object."""


def json_path(obj: JsonObject, path: str) -> Any:
    """The first value at a path; None if there is none."""
    try:
        values = _values(obj, path)
    except _NoValueError:
        return None
    return values[0] if values else None


def _values(root: Any, path: str) -> list[Any]:
    values = [root]
    for step in _STEP.finditer(path):
        if step["descend"]:
            values = [below for value in values for below in _descend(value)]
        if step["field"] is not None:
            name = re.sub(r"\\(.)", r"\1", step["field"])
            values = [child for value in values for child in _named(value, name)]
        else:
            values = [child for value in values for child in _inside(value, step["inside"])]
    return values


def _descend(value: Any) -> Iterator[Any]:
    yield value
    for child in _children(value):
        yield from _descend(child)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [child for _, child in sorted(cast("JsonObject", value).items())]
    return cast("list[Any]", value) if isinstance(value, list) else []


def _named(value: Any, name: str) -> list[Any]:
    if name == "*":
        return _children(value)
    fields = cast("JsonObject", value) if isinstance(value, dict) else {}
    return [fields[name]] if name in fields else []


def _inside(value: Any, inside: str) -> list[Any]:
    """The values that brackets select: a name, an index, a slice, a filter or several of these."""
    if inside == "*":
        return _children(value)
    if match := _FILTER.fullmatch(inside):
        items = cast("list[Any]", value) if isinstance(value, list) else []
        return [item for item in items if _holds(item, match)]
    values: list[Any] = []
    for key in re.findall(rf"{_QUOTED}|[^,\s]+", inside):
        # client-go reads a quoted name as `.name`, so that its dots lead further down.
        values += _values(value, f".{key[1:-1]}") if key[0] in "'\"" else _sliced(value, key)
    return values


def _sliced(value: Any, text: str) -> list[Any]:
    match = _SLICE.fullmatch(text)
    if not match or not isinstance(value, list):
        raise _NoValueError
    items = cast("list[Any]", value)
    if match[1]:
        start, end, step = int(match[1]), None, 1
        start += len(items) if start < 0 else 0
        end = start + 1
    else:
        start, step = int(match[2] or 0), int(match[4] or 1)
        start += len(items) if start < 0 else 0
        end = int(match[3]) if match[3] else len(items)
        end += len(items) if end < 0 else 0
    if start == end:
        return []
    if step < 1 or not (0 <= start < len(items) and start < end <= len(items)):
        raise _NoValueError
    return items[start:end:step]


def _holds(item: Any, match: re.Match[str]) -> bool:
    left = _operand(item, match["left"])
    if not match["operator"]:
        return bool(left)
    right = _operand(item, match["right"])
    if len(left) != 1 or len(right) != 1:
        return False
    try:
        return _OPERATORS[match["operator"]](left[0], right[0])
    except TypeError:
        return False


def _operand(item: Any, text: str) -> list[Any]:
    if text.startswith("@"):
        return _values(item, text[1:])
    if text[0] in "'\"":
        return [_text(text)]
    try:
        return [orjson.loads(text)]
    except orjson.JSONDecodeError:
        raise _NoValueError from None


def _text(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1])
