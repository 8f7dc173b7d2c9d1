"""Differences of two states of an object, as paths with the values before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

MOST: Final = 50
"""Differences that are shown; further ones are counted."""
_SHOWN: Final = 200
"""Characters of a value."""
_DEEPEST: Final = 60
_VERSIONS: Final = frozenset({"resourceVersion", "managedFields", "generation"})
"""Of the metadata: they change with every change."""
_ABSENT: Final = object()

_object = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that has changed.

    Attributes:
        path: as field selectors write it.
        before: its value as text or a scalar; None if it was absent.
        after: the same of the later state.
    """

    path: str
    before: str | float | bool | None
    after: str | float | bool | None


@dataclass(frozen=True, slots=True)
class Differences:
    """The first differences, and how many more there are."""

    shown: tuple[Difference, ...]
    more: int = 0

    def render(self) -> dict[str, Any]:
        """As in the answers of the query API."""
        return {
            "differences": [
                {"path": one.path, "before": one.before, "after": one.after} for one in self.shown
            ],
            "moreDifferences": self.more,
        }


NONE: Final = Differences(())


def compare_bodies(before: bytes, after: bytes) -> Differences:
    """Compare two states; without what changes with every change, such as resourceVersion.

    A body that cannot be decoded counts as an empty object.
    """
    return compare_trees(_decode(before), _decode(after))


def compare_trees(before: Mapping[str, Any], after: Mapping[str, Any]) -> Differences:
    """Compare two decoded objects."""
    shown: list[Difference] = []
    more = 0
    for path, old, new in _walk(before, after, "", 0):
        if len(shown) < MOST:
            shown.append(Difference(path, _render(old), _render(new)))
        else:
            more += 1
    return Differences(tuple(shown), more)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        tree = _object.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    metadata = tree.get("metadata")
    if isinstance(metadata, dict):
        kept = cast("dict[str, Any]", metadata)
        tree["metadata"] = {name: kept[name] for name in kept if name not in _VERSIONS}
    return tree


def _walk(before: Any, after: Any, path: str, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """The places where two trees differ; maps and equally long lists are entered."""
    if before == after and type(before) is type(after):
        return
    if depth < _DEEPEST and isinstance(before, dict) and isinstance(after, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for name in sorted(old.keys() | new.keys()):
            below = _below(path, name)
            yield from _walk(old.get(name, _ABSENT), new.get(name, _ABSENT), below, depth + 1)
    elif depth < _DEEPEST and (pairs := _pair(before, after)) is not None:
        for at, (old, new) in enumerate(pairs):
            yield from _walk(old, new, f"{path}[{at}]", depth + 1)
    else:
        yield path, before, after


def _pair(before: Any, after: Any) -> list[tuple[Any, Any]] | None:
    """The elements of two lists of the same length; None for anything else."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    old, new = cast("list[Any]", before), cast("list[Any]", after)
    return list(zip(old, new, strict=True)) if len(old) == len(new) else None


def _below(path: str, name: str) -> str:
    if name and all(sign not in name for sign in "./[]'"):
        return f"{path}.{name}" if path else name
    return f"{path}['{name}']"


def _render(value: Any) -> str | float | bool | None:
    if value is _ABSENT or value is None:
        return None
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
