"""What the queue in memory keeps of each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbus.workqueue.queue import Lease, Priority


@dataclass(slots=True)
class Held:
    """A lease as the queue knows it."""

    lease: Lease
    token: str
    since: float
    ends: float
    suspected: float | None = None


@dataclass(slots=True)
class Entry:
    """All that is known of one key; an item that knows nothing is dropped."""

    dirty: tuple[Priority, float] | None = None
    due: float | None = None
    trigger: bytes = b""
    trace: str = ""
    cause: str = ""
    note: bytes = b""
    noted: float = 0.0
    failures: int = 0
    reclaims: list[float] = field(default_factory=list[float])
    quarantines: int = 0
    kept_until: float | None = None
