"""Differences of two states of an object, as paths with the values before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import msgspec

from fleetbus_query_api.fields.tree_size import compared_levels

MOST: Final = 50
"""Differences that are shown; further ones are counted."""
COUNTED: Final = 1_000
"""Differences that are counted, with those that are shown: two large lists have half a million."""
_SHOWN: Final = 200
"""Characters of a value."""
_LONGEST_PATH: Final = 1_000
"""Characters of a path: names of fields may be as long as the object."""
_DEEPEST: Final = 60
_VERSIONS: Final = frozenset({"resourceVersion", "managedFields", "generation"})
"""Versions in the metadata: they change with every change."""
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
    """The first differences, and how many more there are.

    Attributes:
        more: of those that were counted.
        digest: of all of them with their whole values: it is equal only for equal changes.
    """

    shown: tuple[Difference, ...]
    more: int = 0
    digest: bytes = b""

    def render(self) -> dict[str, Any]:
        """As in the answers of the query API."""
        return {
            "differences": [
                {"path": difference.path, "before": difference.before, "after": difference.after}
                for difference in self.shown
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
    levels = compared_levels(before, after, deepest=_DEEPEST)
    changes = list(islice(_walk(before, after, "", levels), COUNTED))
    rendered = tuple(
        Difference(_cut(path, _LONGEST_PATH), _render(old), _render(new))
        for path, old, new in changes[:MOST]
    )
    remainder = [("", before, after)] if len(changes) == COUNTED else []
    return Differences(rendered, len(changes) - len(rendered), _digest([*changes, *remainder]))


def _digest(changes: Sequence[tuple[str, Any, Any]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path, *values in changes:
        texts = [b"" if value is _ABSENT else msgspec.json.encode(value) for value in values]
        for piece in (path.encode(), *texts):
            digest.update(b"%d:%b" % (len(piece), piece))
    return digest.digest() if changes else b""


def _decode(body: bytes) -> dict[str, Any]:
    try:
        tree = _object.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    metadata = tree.get("metadata")
    if isinstance(metadata, dict):
        fields = cast("dict[str, Any]", metadata)
        tree["metadata"] = {name: fields[name] for name in fields if name not in _VERSIONS}
    return tree


def _walk(before: Any, after: Any, path: str, levels: int) -> Iterator[tuple[str, Any, Any]]:
    """The places where two trees differ; maps and equally long lists are entered."""
    if before == after and type(before) is type(after):
        return
    if levels and isinstance(before, dict) and isinstance(after, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for name in sorted(old.keys() | new.keys()):
            below = _below(path, name)
            yield from _walk(old.get(name, _ABSENT), new.get(name, _ABSENT), below, levels - 1)
    elif levels and (pairs := _pair(before, after)) is not None:
        for at, (old, new) in enumerate(pairs):
            yield from _walk(old, new, f"{path}[{at}]", levels - 1)
    else:
        yield path, before, after


def _pair(before: Any, after: Any) -> list[tuple[Any, Any]] | None:
    """The elements of two lists of the same length; None for anything else."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    old, new = cast("list[Any]", before), cast("list[Any]", after)
    return list(zip(old, new, strict=True)) if len(old) == len(new) else None


def _below(path: str, name: str) -> str:
    if len(path) > _LONGEST_PATH:
        return path
    if name and all(sign not in name for sign in "./[]'"):
        return f"{path}.{name}" if path else name
    return f"{path}['{name}']"


def _render(value: Any) -> str | float | bool | None:
    if value is _ABSENT or value is None:
        return None
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _cut(text, _SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
