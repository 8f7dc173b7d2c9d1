"""The wall clock in the formats of the wire; durations use a monotonic clock instead."""

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
    """Format a UTC time like Kubernetes and NATS, with a `Z` at the end."""
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")
