"""The low-water mark of a watch: the version up to which everything is stored (rule W4).

Acknowledgements arrive out of order. The mark is the highest version with every earlier event of
the same watch acknowledged: "the last one acknowledged" would skip holes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque


class Slot:
    """One event in flight."""

    __slots__ = ("is_done", "resource_version", "sent")

    def __init__(self, resource_version: str, *, is_done: bool) -> None:
        self.resource_version = resource_version
        self.is_done = is_done
        self.sent = time.monotonic()


class LowWaterMark:
    """The mark of one watch; it holds one slot per event in flight, which the window bounds.

    Attributes:
        resource_version: the mark.
    """

    def __init__(self, resource_version: str) -> None:
        self.resource_version = resource_version
        self._slots: deque[Slot] = deque()
        self._stored = asyncio.Event()
        self._stored.set()

    def sent(self, resource_version: str) -> Slot:
        """Add an event that is about to be published; settle its slot when it is stored."""
        slot = Slot(resource_version, is_done=False)
        self._slots.append(slot)
        self._stored.clear()
        return slot

    def settle(self, slot: Slot) -> None:
        """Note that the event of this slot is stored."""
        slot.is_done = True
        while self._slots and self._slots[0].is_done:
            self.resource_version = self._slots.popleft().resource_version
        if not self._slots:
            self._stored.set()

    async def wait_stored(self) -> None:
        """Wait until no event is in flight."""
        await self._stored.wait()

    def passed(self, resource_version: str) -> None:
        """Note a bookmark, or an event that cannot be published: nothing will be acknowledged."""
        if not self._slots:
            self.resource_version = resource_version
        elif self._slots[-1].is_done:
            # Bookmarks while an acknowledgement is missing: the last one replaces the others.
            self._slots[-1].resource_version = resource_version
        else:
            self._slots.append(Slot(resource_version, is_done=True))

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest event that is not acknowledged yet."""
        return time.monotonic() - self._slots[0].sent if self._slots else 0.0
