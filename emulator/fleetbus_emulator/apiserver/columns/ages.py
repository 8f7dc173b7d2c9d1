"""Ages as kubectl writes them: 5s, 3m20s, 4h, 2d3h."""

from __future__ import annotations

from datetime import UTC, datetime

MINUTE, HOUR, DAY = 60, 3600, 86_400
YEAR = 365 * DAY
UNKNOWN = "<unknown>"
# Below so many seconds: the unit, its size, the smaller unit shown with it, its size.
_STEPS = (
    (2 * MINUTE, "s", 1, "", 0),
    (10 * MINUTE, "m", MINUTE, "s", 1),
    (3 * HOUR, "m", MINUTE, "", 0),
    (8 * HOUR, "h", HOUR, "m", MINUTE),
    (48 * HOUR, "h", HOUR, "", 0),
    (8 * DAY, "d", DAY, "h", HOUR),
    (2 * YEAR, "d", DAY, "", 0),
    (8 * YEAR, "y", YEAR, "d", DAY),
)


def duration(seconds: int) -> str:
    """Seconds in at most two units, the second only while the first is small."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(0, seconds)
    for below, unit, size, minor, minor_size in _STEPS:
        if seconds < below:
            count, remainder = divmod(seconds, size)
            smaller = remainder // minor_size if minor else 0
            return f"{count}{unit}{smaller}{minor}" if smaller else f"{count}{unit}"
    return f"{seconds // YEAR}y"


def age(timestamp: str | None, now: datetime) -> str:
    """The time since a timestamp of an object."""
    return between(timestamp, now.astimezone(UTC).isoformat()) if timestamp else UNKNOWN


def between(start: str, end: str) -> str:
    """The time between two timestamps of an object; `<invalid>` if one is none."""
    try:
        lasted = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    except (TypeError, ValueError):  # one with a zone and one without, or no timestamp at all
        return "<invalid>"
    return duration(int(lasted.total_seconds()))
