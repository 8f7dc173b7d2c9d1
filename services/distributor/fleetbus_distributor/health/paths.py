"""Paths to fields, as in `kubectl get -o jsonpath` and the printer columns of a CRD.

    .status.phase    .status.ports[0].port    .status.conditions[?(@.type=='Ready')].status

Members, indexes, and an item of a list by one of its members: what names one value at most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

_PART: Final = re.compile(
    r"\.(?P<member>(?:[A-Za-z0-9_-]|\\.)+)"
    r"|\['(?P<quoted>[^'\]]+)'\]"
    r"|\[(?P<index>[0-9]{1,6})\]"
    r"""|\[\?\(@\.(?P<key>[A-Za-z0-9_-]+)\s*==\s*(?P<mark>['"])(?P<value>[^'"]*)(?P=mark)\)\]"""
)
_FORMS: Final = (
    "write .status.phase, .status.ports[0] or .status.conditions[?(@.type=='Ready')].status"
)
MAX_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class _Item:
    """The item of a list that has a member with a value."""

    key: str
    value: str


_Step: TypeAlias = str | int | _Item
_Steps: TypeAlias = tuple[_Step, ...]


@lru_cache(maxsize=4096)
def parse_path(path: str) -> _Steps:
    """Split a path into its steps.

    Raises:
        ValueError: it has another form.
    """
    steps: list[_Step] = []
    at = 0
    while at < len(path):
        match = _PART.match(path, at)
        if match is None:
            raise ValueError(f"is not a path at character {at + 1}; {_FORMS}")
        steps.append(_step(match))
        at = match.end()
    if not steps or len(path) > MAX_LENGTH:
        raise ValueError(f"a path has 1 to {MAX_LENGTH} characters")
    return tuple(steps)


def _step(match: re.Match[str]) -> _Step:
    if (index := match["index"]) is not None:
        return int(index)
    if (key := match["key"]) is not None:
        return _Item(key, match["value"])
    return match["quoted"] or re.sub(r"\\(.)", r"\1", match["member"])


ABSENT: Final = object()
"""There is no such field."""


def read_path(obj: Any, path: str) -> Any:
    """The value of a field; ABSENT if there is none.

    Raises:
        ValueError: the path has another form.
    """
    value = obj
    for step in parse_path(path):
        value = _follow(value, step)
        if value is ABSENT:
            return ABSENT
    return value


def _follow(value: Any, step: _Step) -> Any:
    if isinstance(step, str):
        return (
            cast("dict[str, Any]", value).get(step, ABSENT) if isinstance(value, dict) else ABSENT
        )
    if not isinstance(value, list):
        return ABSENT
    every = cast("Sequence[Any]", value)
    if isinstance(step, int):
        return every[step] if step < len(every) else ABSENT
    for item in every:
        if isinstance(item, dict) and cast("dict[str, Any]", item).get(step.key) == step.value:
            return cast("Any", item)
    return ABSENT
