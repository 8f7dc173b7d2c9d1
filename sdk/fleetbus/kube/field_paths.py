r"""Paths to the fields of an object: `status.phase`, `spec.containers[*].image`.

A part in brackets is an index (`[0]`), every element (`[*]`) or a key in quotes, which may have
dots (`spec.nodeSelector['kubernetes.io/os']`); outside of brackets a dot of a key is written `\.`.
Below `metadata.labels` and `metadata.annotations` everything is one key, because their values have
no fields: `metadata.labels.app.kubernetes.io/name`. The forms of kubectl, `.a.b` and `{.a.b}`, mean
the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias, cast

from fleetbus.errors import FleetbusError

MAX_LENGTH: Final = 512
"""Characters of a path."""
MAX_STEPS: Final = 24
MAX_VALUES: Final = 2_000
"""Limit of values of one path in one object. A selector may have 32 paths, which are read for each
change."""
_PART = re.compile(
    r"""(?:\.|^)(?P<key>(?:\\.|[^.\[\]\\\s{}'"])+)"""
    r"""|\[(?:(?P<all>\*)|(?P<index>[0-9]{1,6})|'(?P<single>[^']+)'|"(?P<double>[^"]+)")\]"""
)
_STRINGS_BELOW = re.compile(r"metadata\.(labels|annotations)\.(?=[^\[])(.+)")


class InvalidPath(FleetbusError, ValueError):
    """A malformed path; the message says what a path looks like."""


class TooManyValues(FleetbusError):
    """An object has more values at a path than are compared."""


class Special(Enum):
    """Steps and values of a kind of their own."""

    EACH = "*"
    """As a step: every element of a list."""
    COMPOSITE = "<map or list>"
    """As a value: may be as large as the object, so that it is not compared with anything."""


Scalar: TypeAlias = str | int | float | bool
One: TypeAlias = Scalar | Special | None
"""A value; None if the field is absent, or null."""
Value: TypeAlias = One | tuple[One, ...]
"""A tuple if the path has `[*]`: one value for each element."""
Step: TypeAlias = str | int | Special


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Where a field is; equal paths are equal however they were written."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a path.

        Raises:
            InvalidPath: it is malformed, or too long.
        """
        return cls(_parse(text))

    @property
    def is_many(self) -> bool:
        """Whether it has `[*]`."""
        return Special.EACH in self.steps

    def read(self, tree: Any) -> Value:
        """The value in an object, as a tree of maps.

        Raises:
            TooManyValues: there are more than `MAX_VALUES`.
        """
        here = [tree]
        for step in self.steps:
            here = [below for value in here for below in _below(value, step)]
            if len(here) > MAX_VALUES:
                raise TooManyValues(f"more than {MAX_VALUES} values at {self}")
        values = tuple(one_of(value) for value in here)
        return values if self.is_many else (values[0] if values else None)

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, str):
                text += f".{step}" if _is_plain(step) else f"['{step}']"
            else:
                text += f"[{step.value if isinstance(step, Special) else step}]"
        return text.removeprefix(".")


def one_of(value: Any) -> One:
    """A decoded value as it is compared."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return Special.COMPOSITE


def texts_of(value: Value) -> Sequence[str]:
    """The texts that a selector compares; an absent field is an empty one, a map or list none."""
    values = value if isinstance(value, tuple) else (value,)
    texts = [_text(element) for element in values if not isinstance(element, Special)]
    return texts if values else ("",)


def _text(value: Scalar | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _below(tree: Any, step: Step) -> Sequence[Any]:
    if isinstance(step, str):
        if not isinstance(tree, Mapping):
            return ()
        # An element that lacks the field counts with an absent value: `ports[*].name=` finds it.
        return (cast("Mapping[str, Any]", tree).get(step),)
    if not isinstance(tree, list):
        return ()
    elements = cast("list[Any]", tree)
    if isinstance(step, Special):
        return elements
    return elements[step : step + 1]


def _is_plain(step: str) -> bool:
    return not re.search(r"[.\[\]\\\s{}'\"]", step)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Step, ...]:
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix(".")
    if not path or len(path) > MAX_LENGTH:
        raise _invalid(text)
    if match := _STRINGS_BELOW.fullmatch(path):
        return ("metadata", match[1], re.sub(r"\\(.)", r"\1", match[2]))
    steps: list[Step] = []
    at = 0
    while at < len(path):
        step_match = _PART.match(path, at)
        if step_match is None or len(steps) == MAX_STEPS:
            raise _invalid(text)
        steps.append(_step(step_match))
        at = step_match.end()
    if not isinstance(steps[0], str):
        raise _invalid(text)
    return tuple(steps)


def _step(step_match: re.Match[str]) -> Step:
    if step_match["all"]:
        return Special.EACH
    if step_match["index"]:
        return int(step_match["index"])
    return (
        step_match["single"] or step_match["double"] or re.sub(r"\\(.)", r"\1", step_match["key"])
    )


def _invalid(text: str) -> InvalidPath:
    return InvalidPath(
        f"{text[:80]!r} is not a path of at most {MAX_LENGTH} characters and {MAX_STEPS} parts,"
        " like status.phase, spec.containers[*].image or metadata.labels.app"
    )
