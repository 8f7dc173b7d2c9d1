"""Prints parts of answers about the past: the limits on stderr (rule A9), and differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from fleetbus.process import printer
from fleetbus.process.durations import parse_point

_NAMED: Final = 5
_ROUNDING: Final = timedelta(seconds=1)


def lacks(answer: Mapping[str, Any], cluster: str) -> bool:
    """Whether an answer knows nothing of a cluster: it may not be in the fleet."""
    return answer["freshness"].get(cluster, {}).get("state", "unknown") == "unknown"


def note_window(window: Mapping[str, Any]) -> None:
    """Say where the past has gaps: those of clusters with the same reason in one line."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for number, gap in enumerate(window["gaps"]):
        key = str(gap["reason"]) if gap["cluster"] else f"{number}"
        alike.setdefault(key, []).append(gap)
    for gaps in [*alike.values()][:_NAMED]:
        names = [str(gap["cluster"]) for gap in gaps if gap["cluster"]]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        where = f"{', '.join(names[:_NAMED])}{more}, " if names else ""
        end = max(str(gap["to"]) for gap in gaps)[:19]
        printer.note(f"note: {where}up to {end}Z: {gaps[0]['reason']}")


def note_beginning(answer: Mapping[str, Any], point: str) -> None:
    """Note on stderr if the answer begins later than was asked for.

    Args:
        answer: has `since` and `window`.
        point: the time as the user wrote it.
    """
    now, since = (
        datetime.fromisoformat(text) for text in (answer["window"]["to"], answer["since"])
    )
    if parse_point(point, now=now) < since - _ROUNDING:
        begin = answer["since"][:19]
        printer.note(f"note: there is no history before {begin}Z")


def print_differences(answer: Mapping[str, Any], indent: str) -> None:
    """Print `differences` and `moreDifferences` of an answer, a line each."""
    for difference in answer["differences"]:
        change = f"{_value(difference['before'])} → {_value(difference['after'])}"
        printer.line(f"{indent}{difference['path']}: {change}")
    if answer["moreDifferences"]:
        printer.line(f"{indent}and {answer['moreDifferences']} more")


def _value(value: object) -> str:
    if value is None:
        return "(absent)"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and text == text.strip() and text else json.dumps(text)
