"""Removes secret values from the messages of API servers, which may quote objects (rule D14).

Messages go into conditions, Events and logs, which many more people can read than Secrets.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

MAX_LENGTH: Final = 600
_HIDDEN: Final = "<redacted>"
_SENSITIVE_NAME: Final = re.compile(
    r"pass(word|wd)?|secret|token|credential|api_?key|private", re.IGNORECASE
)
_QUOTED_VALUE: Final = re.compile(r"(Invalid|Unsupported|Duplicate|Required) value: .*", re.DOTALL)
_MIN_LENGTH: Final = 3
"""Shorter strings occur in every sentence."""


def redact(message: str, obj: Mapping[str, Any]) -> str:
    """Remove the secret values of an object from a message about it, and truncate it.

    For a Secret whose values are unknown the whole message is hidden: any word may be one.
    """
    if obj.get("kind") == "Secret" and not (obj.get("data") or obj.get("stringData")):
        return _HIDDEN
    cleaned = message
    for value in sorted(_secrets_of(obj), key=len, reverse=True):
        cleaned = cleaned.replace(value, _HIDDEN)
    if obj.get("kind") == "Secret":
        cleaned = _QUOTED_VALUE.sub(rf"\1 value: {_HIDDEN}", cleaned)
    return cleaned if len(cleaned) <= MAX_LENGTH else f"{cleaned[: MAX_LENGTH - 1]}…"


def _secrets_of(obj: Mapping[str, Any]) -> set[str]:
    found = set(_secret_data(obj)) if obj.get("kind") == "Secret" else set[str]()
    found |= set(_sensitive_members(dict(obj)))
    pieces = {line for text in found for line in text.splitlines()}
    return {text for text in found | pieces if len(text) >= _MIN_LENGTH}


def _secret_data(obj: Mapping[str, Any]) -> Iterator[str]:
    for field in ("data", "stringData"):
        for text in _strings(obj.get(field)):
            yield text
            try:
                yield base64.b64decode(text, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError):
                continue


def _sensitive_members(value: Any, name: str = "") -> Iterator[str]:
    """Values of members named like `password`, and of environment variables with such names."""
    if isinstance(value, str):
        if _SENSITIVE_NAME.search(name):
            yield value
    elif isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        called = str(members.get("name", ""))
        for key, member in members.items():
            yield from _sensitive_members(member, called if key == "value" else key)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _sensitive_members(item, name)


def _strings(value: Any) -> Iterator[str]:
    """Every string below a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in cast("dict[str, Any]", value).values():
            yield from _strings(member)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)
