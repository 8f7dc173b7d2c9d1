"""The last runs of controllers for an object, from their queues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.reconcile import Request
from fleetbus.workqueue.controllers import list_controllers

if TYPE_CHECKING:
    from redis.asyncio import Redis

_KEEP_SECONDS: Final = 30.0
"""The controllers are found by a walk over all keys of the store."""


class ControllerRun(NamedTuple):
    """The last run of a controller for a request."""

    request: Request
    run: LastRun


class RunReads:
    """Reads the last runs.

    Args:
        redis: where the queues are.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._known: tuple[float, Sequence[str]] = (float("-inf"), ())

    async def last_runs(self, places: Sequence[tuple[str, str, str]]) -> list[ControllerRun]:
        """Read the last run of each controller for each of these, if it is remembered.

        Args:
            places: cluster, namespace and name.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        found: list[ControllerRun] = []
        for controller in await self._controllers():
            requests = [Request(controller, *place) for place in places]
            runs = await LastRuns(self._redis, controller).get_many(requests)
            found += [
                ControllerRun(request, run)
                for request, run in zip(requests, runs, strict=True)
                if run is not None
            ]
        return found

    async def _controllers(self) -> Sequence[str]:
        read_at, names = self._known
        if time.monotonic() - read_at > _KEEP_SECONDS:
            names = await list_controllers(self._redis)
            self._known = (time.monotonic(), names)
        return names
