"""Finds whole numbers that an API server has stored as others (rule D3).

Go cuts an integer that is too large for its field to the lowest 32 bits, without a word: 2^40
replicas become none. The next apply changes nothing any more, so the server itself shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

_INT32: Final = range(-(2**31), 2**31)
_BITS: Final = 2**32


def wrapped_number(desired: Any, live: Any) -> str:
    """Name the first such number; empty if all are as they were applied."""
    return next(_wrapped(desired, live, ""), "")


def _wrapped(desired: Any, live: Any, path: str) -> Iterator[str]:
    if type(desired) is int and type(live) is int and _is_cut(desired, live):
        yield f"{path}: the server has stored {live} for {desired}, which its type cannot hold"
    for step, value, stored in _members(desired, live):
        if isinstance(value, dict | list | int):
            yield from _wrapped(value, stored, f"{path}{step}")


def _members(desired: Any, live: Any) -> Iterator[tuple[str, Any, Any]]:
    """The members of both, and the steps to them."""
    if isinstance(desired, dict) and isinstance(live, dict):
        there = cast("dict[str, Any]", live)
        for name, value in cast("dict[str, Any]", desired).items():
            yield f".{name}", value, there.get(name)
    elif isinstance(desired, list) and isinstance(live, list):
        items, stored = cast("list[Any]", desired), cast("list[Any]", live)
        if len(items) == len(stored):
            for at, (value, other) in enumerate(zip(items, stored, strict=True)):
                yield f"[{at}]", value, other


def _is_cut(desired: int, live: int) -> bool:
    return desired not in _INT32 and live in _INT32 and (desired - live) % _BITS == 0
