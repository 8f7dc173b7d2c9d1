"""Paths into an object, and their removal or redaction in its bytes.

    spec.containers[*].env[*].value      a dot before each plain name, [*] for every item or member
    metadata.annotations[example.com/*]  brackets around a name with dots or slashes; * matches any
    data['a]b']                          quotes are allowed, and needed around a bracket

Only the maps and lists on the way are decoded, one level at a time; all else stays the bytes that
the server sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Final, TypeAlias

import msgspec

from fleetbus.kube.list_watch.listing import RawObject
from fleetbus.process import redact

Path = tuple[str, ...]
"""One pattern for each level; `*` in it matches any characters, or any index of a list."""

Mark: TypeAlias = "msgspec.Raw | Callable[[msgspec.Raw], msgspec.Raw]"
"""The replacement of a value, or a function that makes it from the value."""
MARK: Final = msgspec.Raw(f'"{redact.MARK}"'.encode())
"""Replaces a redacted value."""

_ANY: Final = "*"
_STEP: Final = re.compile(
    r"""(?:^\.?|\.)(?P<plain>[^.\[\]'"]+)   # .name
    | \[(?:'(?P<single>[^']+)'|"(?P<double>[^"]+)"|(?P<bare>[^\]'"][^\]]*))\]""",
    re.VERBOSE,
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_*-]+")
_MUST_STAY: Final[tuple[Path, ...]] = (
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
    ("metadata", "resourceVersion"),
)
_MAP, _LIST, _NULL = b"{[n"
_map_decoder = msgspec.json.Decoder(RawObject)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


def parse_path(text: str) -> Path:
    """Parse a path.

    Raises:
        ValueError: it is invalid, or it would remove a part of an object's identity.
    """
    steps: list[str] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"path {text!r} is invalid at {text[at:]!r}")
        steps.append(_name_of(match, text))
        at = match.end()
    if not steps:
        raise ValueError("a path is empty")
    path = tuple(steps)
    for required in _MUST_STAY:
        if len(path) <= len(required) and all(map(fits, path, required)):
            raise ValueError(f"path {text!r} would remove {'.'.join(required)}, which must stay")
    return path


def _name_of(match: re.Match[str], text: str) -> str:
    plain = match["plain"]
    if plain is None:
        return match["single"] or match["double"] or match["bare"]
    if not _PLAIN.fullmatch(plain):
        # `a.b/c` would be parsed as `b/c` below `a`, and match nothing.
        raise ValueError(f"path {text!r}: write {plain!r} in brackets, with its whole name")
    return plain


def fits(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, in which `*` matches any characters."""
    return pattern == _ANY or _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(_ANY))), re.DOTALL)


@dataclass(slots=True)
class Cut:
    """The changes to make at one place of an object, and at the places below it.

    Attributes:
        is_dropped: it is removed.
        mark: replaces each value at and below this place; None leaves them.
        named: what to do with the members of these names.
        patterns: likewise, for all names that match.
    """

    is_dropped: bool = False
    mark: Mark | None = None
    named: dict[str, Cut] = field(default_factory=dict[str, "Cut"])
    patterns: dict[str, Cut] = field(default_factory=dict[str, "Cut"])

    def at(self, path: Path) -> Cut:
        """Return the place of a path below this one; it is added if missing."""
        here = self
        for step in path:
            places = here.patterns if _ANY in step else here.named
            here = places.setdefault(step, Cut())
        return here

    def below(self, name: str) -> Cut | None:
        """Return what to do with a member of this name; None for nothing."""
        named = self.named.get(name)
        if not self.patterns:
            return named
        cuts = [cut for pattern, cut in self.patterns.items() if fits(pattern, name)]
        if named is not None:
            cuts.append(named)
        return reduce(_merged, cuts) if cuts else None


def _merged(first: Cut, other: Cut) -> Cut:
    return Cut(
        is_dropped=first.is_dropped or other.is_dropped,
        mark=other.mark if first.mark is None else first.mark,
        named=_joined(first.named, other.named),
        patterns=_joined(first.patterns, other.patterns),
    )


def _joined(first: dict[str, Cut], other: dict[str, Cut]) -> dict[str, Cut]:
    both = {name: _merged(first[name], other[name]) for name in first.keys() & other.keys()}
    return {**first, **other, **both}


def cut_members(members: RawObject, cut: Cut) -> bool:
    """Remove from a map what is to be dropped, and redact what is to be hidden.

    Returns:
        Whether a member was concerned.

    Raises:
        msgspec.DecodeError: something on the way cannot be decoded.
        RecursionError: likewise.
        UnicodeDecodeError: likewise.
    """
    concerned = False
    for name in list(members) if cut.patterns else cut.named:
        raw, below = members.get(name), cut.below(name)
        if raw is None or below is None:
            continue
        concerned = True
        value = _cut(raw, below)
        if value is None:
            del members[name]
        else:
            members[name] = value
    return concerned


def _cut(raw: msgspec.Raw, cut: Cut) -> msgspec.Raw | None:
    """Return a value after the cut of its place; None if it is removed."""
    if cut.is_dropped:
        return None
    if cut.named or cut.patterns:
        raw = _cut_below(raw, cut)
    return raw if cut.mark is None else _masked(raw, cut.mark)


def _cut_below(raw: msgspec.Raw, cut: Cut) -> msgspec.Raw:
    # What a cut concerns is always encoded again: of two members with one name only the last is
    # decoded, and the other must not stay.
    kind = _kind_of(raw)
    if kind == _MAP:
        members = _map_decoder.decode(raw)
        return msgspec.Raw(_encoder.encode(members)) if cut_members(members, cut) else raw
    return _cut_list(raw, cut) if kind == _LIST else raw


def _cut_list(raw: msgspec.Raw, cut: Cut) -> msgspec.Raw:
    items = _list_decoder.decode(raw)
    if not cut.named and cut.patterns.keys() == {_ANY}:
        # The usual case: no item is named by its index.
        below = cut.patterns[_ANY]
        remaining = [left for item in items if (left := _cut(item, below)) is not None]
    else:
        numbered = {str(index): item for index, item in enumerate(items)}
        cut_members(numbered, cut)
        remaining = list(numbered.values())
    return msgspec.Raw(_encoder.encode(remaining))


def _masked(raw: msgspec.Raw, mark: Mark) -> msgspec.Raw:
    """Replace each value at and below this place with the mark; names, lengths and null stay."""
    kind = _kind_of(raw)
    if kind == _MAP:
        members = _map_decoder.decode(raw)
        return msgspec.Raw(_encoder.encode({k: _masked(v, mark) for k, v in members.items()}))
    if kind == _LIST:
        items = _list_decoder.decode(raw)
        return msgspec.Raw(_encoder.encode([_masked(item, mark) for item in items]))
    if kind == _NULL:
        return raw
    return mark if isinstance(mark, msgspec.Raw) else mark(raw)


def _kind_of(raw: msgspec.Raw) -> int:
    return memoryview(raw)[0]
