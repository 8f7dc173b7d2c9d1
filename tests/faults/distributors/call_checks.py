"""Checks of the calls that went through agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from faults.distributors.kill_points import BEFORE
from faults.rig.records import Json, Violation


def check_calls(sent: Sequence[Json]) -> Iterator[Violation]:
    """Each call is sent to an API server once at most, however many agents there are."""
    for (call, write), count in Counter(passed_on(sent)).items():
        if count > 1:
            yield Violation("agent call", f"{write} of call {call} was sent {count} times")


def passed_on(sent: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """The writes that agents sent to API servers: the id of the call, and the write."""
    for line in sent:
        if line.get("call") and line["side"] == BEFORE:
            yield line["call"], line["write"]
