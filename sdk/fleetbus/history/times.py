"""Points in time as people write them: `10m` ago, or RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from fleetbus.history.errors import HistoryError

_DURATION: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_point(text: str, *, now: datetime) -> datetime:
    """Parse a point in time.

    Args:
        text: `90s`, `10m`, `2h` or `1d`, back from now; or RFC 3339 with an offset.
        now: the present, in UTC.

    Raises:
        HistoryError: it is neither, or it is in the future.
    """
    found = _DURATION.fullmatch(text)
    try:
        if found is not None:
            return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
        at = datetime.fromisoformat(text)
    except OverflowError:
        raise HistoryError(f"{text[:80]!r} is out of range") from None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise HistoryError(
            f"{text[:80]!r} is neither a duration such as 90s, 10m, 2h or 1d nor a time such as"
            " 2026-01-02T15:04:05Z"
        )
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise HistoryError(f"{text[:80]!r} is out of range") from None
    if at > now:
        raise HistoryError(f"{text} is in the future")
    return at
