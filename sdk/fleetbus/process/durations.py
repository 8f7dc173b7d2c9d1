"""Durations and points in time as people write them: `30s`, `10m`, or RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from fleetbus.errors import FleetbusError

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST: Final = timedelta(days=36_500)


class InvalidTime(FleetbusError, ValueError):
    """A duration or a point in time cannot be read; pydantic takes it as a ValueError."""


def parse_duration(text: str) -> timedelta:
    """Parse `250ms`, `30s`, `1.5m`, `2h` or `1d`.

    Raises:
        InvalidTime: it has another form, or is longer than 100 years.
    """
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise InvalidTime(f"{text[:80]!r} is not a duration such as 250ms, 30s, 5m, 1h or 1d")
    seconds = float(parts[1]) * _SECONDS[parts[2]]
    if seconds > _LONGEST.total_seconds():
        raise InvalidTime(f"{text[:80]!r} is longer than 100 years")
    return timedelta(seconds=seconds)


def parse_point(text: str, *, now: datetime) -> datetime:
    """Parse a point in time.

    Args:
        text: a duration, back from now; or RFC 3339 with an offset.
        now: the present, in UTC.

    Raises:
        InvalidTime: it is neither, it is in the future, or no calendar has it.
    """
    if _DURATION.fullmatch(text):
        return now - parse_duration(text)
    try:
        at = datetime.fromisoformat(text).astimezone(UTC) if _has_offset(text) else None
    except OverflowError:
        raise InvalidTime(f"{text[:80]!r} is out of range") from None
    if at is None:
        raise InvalidTime(
            f"{text[:80]!r} is neither a duration such as 90s, 10m, 2h or 1d nor a time such as"
            " 2026-01-02T15:04:05Z"
        )
    if at > now:
        raise InvalidTime(f"{text} is in the future")
    return at


def _has_offset(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
