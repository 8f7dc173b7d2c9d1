"""Parses the bytes of an object into a tree of Python values."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_LONGEST: Final = 4000
"""Digits of an int; Python refuses more than 4,300."""


def read_tree(body: bytes) -> Any:
    """Parse JSON; a number that does not fit a double is legal, and becomes infinity or an int.

    Raises:
        ValueError: it is not valid JSON, or nested too deeply for Python.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as e:
        try:
            return json.loads(body, parse_int=_number, parse_constant=_refuse)
        except RecursionError:
            raise e from None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")
