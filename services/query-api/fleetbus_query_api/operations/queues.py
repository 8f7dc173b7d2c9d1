"""Lists the workqueues of controllers, as `fleetbus queue` does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import msgspec
from redis.asyncio import Redis

from fleetbus.errors import StoreError
from fleetbus.process.human_time import render_time
from fleetbus.store.connection import store_errors
from fleetbus.workqueue.describe import View, describe
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus_query_api.access.authorise import Access, Right
from fleetbus_query_api.operations.controllers import KnownControllers
from fleetbus_query_api.operations.hub_rights import require_on_hub
from fleetbus_query_api.requests.user import User

QUEUES: Final = Right("list", "fleetbus.dev", "queues")
"""Queues are no objects: this resource exists in roles only."""
_KEPT: Final = timedelta(seconds=10)
"""The page asks every two seconds, in each tab."""
_FAILURE: Final = "the queues cannot be read"


class QueueListing:
    """Answers requests for queues, as JSON.

    Args:
        redis: holds the queues.
        access: decides who may see them.
    """

    def __init__(self, *, redis: Redis, access: Access) -> None:
        self._redis = redis
        self._controllers = KnownControllers(redis, lifetime=_KEPT)
        self._access = access

    async def list(self, user: User) -> bytes:
        """List the queue of each controller, by name, as it is now; durations are in seconds.

        Raises:
            ForbiddenProblem: the user may not list queues on the hub.
            StoreError: the store does not answer, or a newer release has written a queue.
            UnavailableProblem: the hub does not decide.
        """
        await require_on_hub(self._access, user, QUEUES)
        try:
            with store_errors(_FAILURE):
                seconds, microseconds = await self._redis.time()
                items = await self._describe()
        except QueueUnavailableError as e:
            raise StoreError(f"{_FAILURE}: {e}") from e
        asked_at = render_time(seconds + microseconds / 1e6)
        return msgspec.json.encode({"items": items, "askedAt": asked_at})

    async def _describe(self) -> list[View]:
        views: list[View] = []
        for name in await self._controllers.list():
            views.append(await describe(self._redis, name))
            await asyncio.sleep(0)  # let others run
        return views
