"""The time of day, in the forms of the wire; how long something took is no matter of this clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def utc_now() -> str:
    """RFC 3339 with microseconds."""
    return rfc3339(datetime.now(UTC))


def rfc3339(at: datetime, *, timespec: Literal["seconds", "microseconds"] = "microseconds") -> str:
    """A time of UTC as messages, Kubernetes and NATS write it: with a `Z` at its end."""
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")
