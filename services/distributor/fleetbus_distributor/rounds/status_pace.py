"""Limits how often the progress of a MultiClusterResource is written to its status (rule D11).

Each write is the whole status, up to a megabyte, and wakes everybody who watches it. So repairs,
and rounds for single clusters, share one write a second, over all processes: whoever comes too
early leaves a note for the round that writes next, and that round looks again. What a rule needs
before the next write to a cluster, and the end of a round for all clusters, waits for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from fleetbus.errors import StoreError
from fleetbus.store.connection import store_errors
from fleetbus_distributor.targets.outcome import ClusterOutcome
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

EVERY: Final = timedelta(seconds=1)
_MOST: Final = 1_000
_FAILURE: Final = "the last write of a status cannot be read or noted"


class StatusPace:
    """When each status was last written, in the store.

    Args:
        redis: the store.
        every: how much time is between two writes.
    """

    def __init__(self, redis: Redis, every: timedelta = EVERY) -> None:
        self._redis = redis
        self._every = every
        # What was corrected last, by owner and cluster, where the status does not show it yet: no
        # later look would find that. It is announced already, so that this process may forget it.
        self._corrections: OrderedDict[tuple[str, str], str] = OrderedDict()

    def keep_corrections(self, owner: str, outcomes: Sequence[ClusterOutcome]) -> None:
        """Keep what was corrected for the round that writes the status."""
        for outcome in outcomes:
            if outcome.last_correction:
                self._corrections[owner, outcome.name] = outcome.last_correction
        while len(self._corrections) > _MOST:
            self._corrections.popitem(last=False)

    def add_corrections(self, owner: str, outcomes: Sequence[ClusterOutcome]) -> None:
        """Add what was kept to outcomes that show no newer correction."""
        for outcome in outcomes:
            correction = self._corrections.get((owner, outcome.name), "")
            outcome.last_correction = outcome.last_correction or correction

    def drop_corrections(self, owner: str, outcomes: Sequence[ClusterOutcome]) -> None:
        """Drop what the status shows by now."""
        for outcome in outcomes:
            self._corrections.pop((owner, outcome.name), None)

    async def wait(self, owner: str, *, lets_notes_first: bool = False) -> timedelta | None:
        """Return the time to postpone a write by; None to write now, as without the store.

        Args:
            owner: the UID of the MultiClusterResource.
            lets_notes_first: leave the write to the round that follows the notes, if there are any.
        """
        key = keys.status_written(owner)
        try:
            with store_errors(_FAILURE):
                if lets_notes_first and await self._redis.exists(keys.missing_objects(owner)):
                    return self._every
                async with self._redis.pipeline(transaction=False) as pipe:
                    pipe.set(key, "", nx=True, px=self._every)
                    pipe.pttl(key)
                    is_mine, left = cast("tuple[Any, int]", await pipe.execute())
        except StoreError as error:
            log.debug("status_not_paced", error=str(error))
            return None
        return None if is_mine else timedelta(milliseconds=max(1, left))

    async def note(self, owner: str) -> None:
        """Note a write that has waited for nothing."""
        try:
            with store_errors(_FAILURE):
                await self._redis.set(keys.status_written(owner), "", px=self._every)
        except StoreError as error:
            log.debug("status_not_paced", error=str(error))
