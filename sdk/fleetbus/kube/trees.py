"""Parses the bytes of an object into a tree of Python values."""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

import orjson

_LONGEST: Final = 4000
"""Digits of an int; Python refuses more than 4,300."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def read_tree(body: bytes) -> Any:
    """Parse JSON; a number that does not fit a double is legal, and becomes infinity or an int.

    Half of a surrogate pair becomes U+FFFD, as in Go: no string with one can be written again.

    Raises:
        ValueError: it is not valid JSON, or nested too deeply for Python.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as e:
        try:
            return _encodable(json.loads(body, parse_int=_number, parse_constant=_refuse))
        except RecursionError:
            raise e from None


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_SURROGATE.sub("\ufffd", key): _encodable(item) for key, item in members.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in cast("list[Any]", value)]
    return value


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")
