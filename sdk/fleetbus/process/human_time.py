"""Renders durations as kubectl does: 42s, 5m12s, 7h, 3d4h."""

from __future__ import annotations

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400

_STEPS = (
    # below so many seconds: the large unit, its letter, the small unit, its letter
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    (float("inf"), _YEAR, "y", 0, ""),
)


def render_duration(seconds: float) -> str:
    """Render a duration; a shorter one in finer units."""
    total = max(int(seconds), 0)
    _, large, letter, small, small_letter = next(step for step in _STEPS if total < step[0])
    remainder = total % large // small if small else 0
    return (
        f"{total // large}{letter}{remainder}{small_letter}"
        if remainder
        else f"{total // large}{letter}"
    )


def parse_time(value: object) -> datetime | None:
    """Parse an RFC 3339 time of an object; None if it is invalid."""
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def render_age(value: object, now: datetime | None = None) -> str:
    """Render how long ago a time is; `<unknown>` if it is invalid."""
    then = parse_time(value)
    if then is None:
        return "<unknown>"
    return render_duration(((now or datetime.now(UTC)) - then).total_seconds())


def render_time(seconds: float) -> str:
    """Render seconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
