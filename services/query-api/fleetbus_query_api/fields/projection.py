"""Leaves only some fields of an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import msgspec

from fleetbus.kube.field_paths import FieldPath, Special, Step
from fleetbus.snapshot import Entry
from fleetbus_proto.events import UNREADABLE
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.responses.render import body_of

MAX_FIELDS: Final = 32
"""Fields of a list: each is looked up in each object (rule A8)."""

_Shown: TypeAlias = dict[Step, "_Shown"]
"""Steps to what is below; without any, everything is."""
_NOTHING: Final = object()


def project(entry: Entry, paths: Sequence[FieldPath]) -> Entry:
    """The entry with these fields only; elements of lists stay in lists, without the others."""
    body = body_of(entry)
    if not body:
        return entry
    try:
        projected = _pick(decode(body), _shown_steps(tuple(paths)))
    except UnreadableBody:
        return entry._replace(degraded=UNREADABLE)
    return entry._replace(body=msgspec.json.encode({} if projected is _NOTHING else projected))


@lru_cache(maxsize=256)
def _shown_steps(paths: tuple[FieldPath, ...]) -> _Shown:
    steps: _Shown = {}
    for path in paths:
        here = steps
        for step in path.steps:
            if step in here and not here[step]:
                break  # a field around this one was named
            here = here.setdefault(step, {})
        else:
            here.clear()  # everything below, whatever else was named there
    return steps


def _pick(tree: Any, steps: _Shown) -> Any:
    if not steps:
        return tree
    if isinstance(tree, Mapping):
        fields = cast("Mapping[str, Any]", tree)
        return _filled(
            {
                step: _pick(fields[step], below)
                for step, below in steps.items()
                if isinstance(step, str) and step in fields
            }
        )
    if isinstance(tree, list):
        elements = cast("list[Any]", tree)
        picked = [_pick_element(at, element, steps) for at, element in enumerate(elements)]
        return [element for element in picked if element is not _NOTHING] or _NOTHING
    return _NOTHING


def _pick_element(at: int, element: Any, steps: _Shown) -> Any:
    below = [steps[step] for step in (Special.EACH, at) if step in steps]
    if not below:
        return _NOTHING
    # Without anything below, everything is shown.
    merged: _Shown = {} if not all(below) else {k: v for branch in below for k, v in branch.items()}
    return _pick(element, merged)


def _filled(picked: Mapping[str, Any]) -> Any:
    return {name: value for name, value in picked.items() if value is not _NOTHING} or _NOTHING
