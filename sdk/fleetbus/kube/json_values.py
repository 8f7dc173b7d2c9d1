"""Renders values of objects as Kubernetes prints them: texts as such, lists and maps as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from fleetbus.kube.path_budget import PathBudget


def render_value(value: object) -> str:
    """Render a value; the members of maps are sorted."""
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    return _render_scalar(value)


def render_start(value: object, longest: int, budget: PathBudget) -> str:
    """Render the first characters of a value, without rendering all of it.

    Raises:
        PathTooCostly: the budget is used up.
    """
    if not isinstance(value, list | dict):
        return _render_scalar(value)[:longest]
    parts: list[str] = []
    length = 0
    for piece in _json_parts(cast("object", value), longest, budget):
        parts.append(piece)
        length += len(piece)
        if length >= longest:
            break
    return "".join(parts)[:longest]


def _render_scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


_Part = str | tuple[Any]
"""Text of the JSON, or a value that is still to be rendered."""


def _json_parts(value: object, longest: int, budget: PathBudget) -> Iterator[str]:
    """The JSON of a value in parts; without recursion, because objects may be deep."""
    stack: list[Iterator[_Part]] = [iter([(value,)])]
    while stack:
        budget.spend(1)
        part = next(stack[-1], None)
        if part is None:
            stack.pop()
        elif isinstance(part, str):
            yield part
        elif isinstance(part[0], dict):
            members = cast("dict[str, Any]", part[0])
            budget.spend(len(members))
            stack.append(_members(members, longest))
        elif isinstance(part[0], list):
            stack.append(_elements(cast("list[Any]", part[0])))
        else:
            yield _leaf(part[0], longest)


def _members(members: dict[str, Any], longest: int) -> Iterator[_Part]:
    before = "{"
    for name in sorted(members):
        yield f"{before}{_leaf(name, longest)}:"
        yield (members[name],)
        before = ","
    yield "}" if members else "{}"


def _elements(elements: list[Any]) -> Iterator[_Part]:
    before = "["
    for element in elements:
        yield before
        yield (element,)
        before = ","
    yield "]" if elements else "[]"


def _leaf(value: object, longest: int) -> str:
    text = value[:longest] if isinstance(value, str) else value
    return json.dumps(text, ensure_ascii=False)
