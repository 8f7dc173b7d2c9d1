"""Spans of time as kubectl writes them: 42s, 5m12s, 7h, 3d4h."""

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


def render_span(seconds: float) -> str:
    """A span of time, the finer the shorter it is."""
    whole = max(int(seconds), 0)
    _, large, letter, small, small_letter = next(step for step in _STEPS if whole < step[0])
    rest = whole % large // small if small else 0
    return f"{whole // large}{letter}{rest}{small_letter}" if rest else f"{whole // large}{letter}"


def parse_time(text: object) -> datetime | None:
    """A time of an object (RFC 3339); None when it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def render_age(text: object, now: datetime | None = None) -> str:
    """How long ago a time of an object is; `<unknown>` without one."""
    then = parse_time(text)
    if then is None:
        return "<unknown>"
    return render_span(((now or datetime.now(UTC)) - then).total_seconds())


def render_moment(seconds: float) -> str:
    """A moment in seconds since 1970 as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
