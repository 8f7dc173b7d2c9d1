"""One list and the watch that descends from it: what is on its way, and what went wrong."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from fleetbus.bus.acks import Ack
from fleetbus_proto.events import Rank
from fleetbus_watcher.errors import PublishGivenUp, WatcherError
from fleetbus_watcher.follow.low_water_mark import LowWater, Slot


class Stream:
    """The bookkeeping of one lineage of events; all of them carry its rank.

    Attributes:
        rank: of the list.
        mark: how far the watch is stored (W4).
        is_complete: whether the epoch's end is stored; before that nothing may be checkpointed.
        listed: how many objects of the list were handed over.
        is_spoiled: whether an object of the list could not be published: no end then (W8, W16).
        lost: set once an object of the list or the watch could not be published.
        ended: set once the list is over, with or without its end.
        torn: set once the watch could not publish something; its own list need not hold that.
    """

    def __init__(self, rank: Rank, resource_version: str, *, is_complete: bool) -> None:
        self.rank = rank
        self.mark = LowWater(resource_version)
        self.is_complete = is_complete
        self.listed = 0
        self.is_spoiled = False
        self.lost = asyncio.Event()
        self.torn = asyncio.Event()
        self.ended = asyncio.Event()
        if is_complete:
            self.ended.set()
        self._unacknowledged = 0
        self._all_acknowledged = asyncio.Event()
        self._all_acknowledged.set()
        self._failure: asyncio.Future[WatcherError] = asyncio.get_running_loop().create_future()

    def sent_listed(self) -> None:
        """An object of the list is about to be published."""
        self.listed += 1
        self._unacknowledged += 1
        self._all_acknowledged.clear()

    def settle_listed(self, ack: Ack) -> None:
        """The fate of an object of the list is known."""
        if ack.error is not None:
            self.fail(PublishGivenUp(ack.error.description))
            return
        self._unacknowledged -= 1
        if not self._unacknowledged:
            self._all_acknowledged.set()

    def settle(self, slot: Slot, ack: Ack) -> None:
        """The fate of an event of the watch is known."""
        if ack.error is not None:
            self.fail(PublishGivenUp(ack.error.description))
            return
        self.mark.settle(slot)

    async def wait_listed(self) -> None:
        """Wait until every object of the list is stored."""
        await self._all_acknowledged.wait()

    def fail(self, error: WatcherError) -> None:
        """What was sent may not be stored; whoever waits in `failure` hears the first of these."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def failure(self) -> NoReturn:
        """Wait until something goes wrong, and raise it.

        Raises:
            WatcherError: always, at the end.
        """
        raise await asyncio.shield(self._failure)
