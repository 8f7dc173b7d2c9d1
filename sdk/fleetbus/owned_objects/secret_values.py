"""Finds the secret values of an object, and removes them from messages about it (rule D14).

An API server may quote the object that it refuses. Messages go into conditions, Events and logs,
which many more people can read than Secrets.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from fleetbus.process.redact import MARK, cut

Path: TypeAlias = tuple[str, ...]

SENSITIVE_NAME: Final = re.compile(
    r"pass(word|wd)?|secret|token|credential|api_?key|private", re.IGNORECASE
)
"""Names of members whose values are shown to nobody."""
_QUOTED_VALUE: Final = re.compile(r"(Invalid|Unsupported|Duplicate|Required) value: .*", re.DOTALL)
_QUOTED_BY_MERGE: Final = re.compile(r": expected (.+?), got &[^\n]*")
"""Server-side apply quotes a value of another type: `.data.a: expected string, got &value…`."""
_MIN_LENGTH: Final = 3
"""Shorter strings occur in every sentence."""
_MAX_READ: Final = 4096
"""Characters of a message: patterns and values are looked for in every place of it."""
_LINES: Final = re.compile(r"(:?)\s*[\r\n]\s*")
_PLACEHOLDER: Final = "\0"
"""Stands for a value while others are looked for, which must not be found in `<redacted>`."""


def without_secret_values(message: str, obj: Mapping[str, Any], *, limit: int) -> str:
    """Remove the secret values of an object from a message about it; one line, truncated.

    A list of errors becomes `errors: first; second`: tables end a cell at its first line.

    For a Secret whose values are unknown the whole message is hidden: any word may be one.

    Args:
        message: of a server.
        obj: the object as far as it is known.
        limit: the most characters of the result.
    """
    is_secret = obj.get("kind") == "Secret"
    if is_secret and not (obj.get("data") or obj.get("stringData")):
        return MARK
    cleaned = _QUOTED_BY_MERGE.sub(r": expected \1", message[:_MAX_READ])
    for value in sorted(_spellings(obj), key=len, reverse=True):
        cleaned = cleaned.replace(value, _PLACEHOLDER)
    if is_secret:
        cleaned = _QUOTED_VALUE.sub(rf"\1 value: {_PLACEHOLDER}", cleaned)
    if len(message) > _MAX_READ and len(cleaned) <= limit:
        return MARK  # its end may be the beginning of a value
    line = _LINES.sub(lambda end: ": " if end[1] else "; ", cleaned.strip())
    return cut(line.replace(_PLACEHOLDER, MARK), limit)


def _spellings(obj: Mapping[str, Any]) -> set[str]:
    """The secret values of an object, each of their lines, and what data of a Secret encode."""
    values = {value for _, value in secrets_in(obj)}
    if obj.get("kind") == "Secret":
        values |= {decoded for value in values if (decoded := _decode(value))}
    lines = {line for value in values for line in value.splitlines()}
    return {value for value in values | lines if len(value) >= _MIN_LENGTH}


def _decode(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def secrets_in(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Each secret value with its path: of Secrets all, else those of members with such names."""
    is_secret = tree.get("kind") == "Secret"
    for name, member in tree.items():
        is_data = is_secret and name in ("data", "stringData")
        yield from strings_in(member, (name,), name, is_secret=is_data)


def strings_in(
    value: Any, path: Path, called: str, *, is_secret: bool
) -> Iterator[tuple[Path, str]]:
    """Each secret string below a member, with its path.

    Args:
        value: the member.
        path: its path.
        called: its name.
        is_secret: whether all strings are, also those of members with other names.
    """
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        item_name = str(members.get("name", ""))
        for key, member in members.items():
            name = item_name if key == "value" else key
            yield from strings_in(member, (*path, key), name, is_secret=is_secret)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            inner = (*path, name_of(item, at))
            yield from strings_in(item, inner, called, is_secret=is_secret)
    elif is_secret or (isinstance(value, str) and SENSITIVE_NAME.search(called)):
        yield path, str(value)


def name_of(item: Any, at: int) -> str:
    """The name of an item of a list, by which it is recognised after it moved; else its place."""
    name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
    return str(name) if isinstance(name, str) and name else str(at)
