"""The state of one epoch: a list and the watch that continues it (rules W4, W7)."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from fleetbus.bus.acks import Ack
from fleetbus_proto.events import Rank
from fleetbus_watcher.errors import PublishGivenUp, WatcherError
from fleetbus_watcher.follow.low_water_mark import LowWaterMark, Slot


class EpochState:
    """The bookkeeping of one epoch; all its events carry its rank.

    Attributes:
        rank: of the list.
        mark: up to where the watch is stored (W4).
        is_complete: whether the epoch's end is stored; no checkpoint may be written before.
        listed: how many objects of the list were handed over.
        is_spoiled: whether an object of the list could not be published: then the end must not be
            published (W8, W16).
        lost: set once an object of the list or the watch could not be published.
        watch_lost: set once one of the watch could not; the list need not contain it.
        ended: set once the list is over, with or without its end.
    """

    def __init__(self, rank: Rank, resource_version: str, *, is_complete: bool) -> None:
        self.rank = rank
        self.mark = LowWaterMark(resource_version)
        self.is_complete = is_complete
        self.listed = 0
        self.is_spoiled = False
        self.lost = asyncio.Event()
        self.watch_lost = asyncio.Event()
        self.ended = asyncio.Event()
        if is_complete:
            self.ended.set()
        self._unacknowledged = 0
        self._all_acknowledged = asyncio.Event()
        self._all_acknowledged.set()
        self._failure: asyncio.Future[WatcherError] = asyncio.get_running_loop().create_future()

    def sent_listed(self) -> None:
        """Count an object of the list that is about to be published."""
        self.listed += 1
        self._unacknowledged += 1
        self._all_acknowledged.clear()

    def settle_listed(self, ack: Ack) -> None:
        """Take the acknowledgement of an object of the list."""
        if ack.error is not None:
            self.fail(PublishGivenUp(ack.error.description))
            return
        self._unacknowledged -= 1
        if not self._unacknowledged:
            self._all_acknowledged.set()

    def settle(self, slot: Slot, ack: Ack) -> None:
        """Take the acknowledgement of an event of the watch."""
        if ack.error is not None:
            self.fail(PublishGivenUp(ack.error.description))
            return
        self.mark.settle(slot)

    async def wait_listed(self) -> None:
        """Wait until every object of the list is stored."""
        await self._all_acknowledged.wait()

    def fail(self, error: WatcherError) -> None:
        """Note that a message may not be stored; `failure` raises the first of these errors."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def failure(self) -> NoReturn:
        """Wait until a message may not be stored.

        Raises:
            WatcherError: always, at the end.
        """
        raise await asyncio.shield(self._failure)
