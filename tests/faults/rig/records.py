"""The types of record that both campaigns share, and the bounds that both check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

MEMORY_KB = 48 * 1024
"""Memory by which a process may exceed the median: its window, some pages, and Python's own
overhead."""
SETTLED_SECONDS = 60
"""Time after the last fault within which all views must agree (rule I1)."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule."""

    rule: str
    text: str


def read_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def log_of(path: Path) -> list[Json]:
    """The lines of a process' log that are whole: a killed one leaves a part."""
    lines: list[Json] = []
    for line in path.read_bytes().splitlines():
        with suppress(orjson.JSONDecodeError):
            lines.append(orjson.loads(line))
    return [line for line in lines if "timestamp" in line]


def settled_within(meta: Json) -> float:
    """I1's bound, in seconds; longer on cores that others use as well.

    A backlog is worked off by the share of the machine that is left to us.
    """
    busy = meta.get("load_average", 0.0) / (2 * meta.get("cores", 1))
    return SETTLED_SECONDS * max(1.0, busy)
