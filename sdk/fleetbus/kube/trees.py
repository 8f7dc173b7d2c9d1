"""An object's bytes as a tree of Python values."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_LONGEST: Final = 4000
"""Python refuses to make an int of more than 4,300 digits."""


def read_tree(body: bytes) -> Any:
    """Read JSON; a number that no double holds is legal there, and becomes infinity or an int.

    Raises:
        ValueError: it is no JSON, or nested more deeply than Python likes.
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
    raise ValueError(f"{constant} is no JSON")
