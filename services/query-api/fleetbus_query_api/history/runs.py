"""The last runs of controllers for an object, from their queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.reconcile import Request
from fleetbus_query_api.operations.controllers import KnownControllers

if TYPE_CHECKING:
    from redis.asyncio import Redis

_KEPT: Final = timedelta(seconds=30)
"""A timeline may lack the runs of a controller that is younger."""


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
        self._controllers = KnownControllers(redis, lifetime=_KEPT)

    async def last_runs(self, places: Sequence[tuple[str, str, str]]) -> list[ControllerRun]:
        """Read the last run of each controller for each of these, if it is remembered.

        Args:
            places: cluster, namespace and name.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        controller_runs: list[ControllerRun] = []
        for controller in await self._controllers.list():
            requests = [Request(controller, *place) for place in places]
            runs = await LastRuns(self._redis, controller).get_many(requests)
            controller_runs += [
                ControllerRun(request, run)
                for request, run in zip(requests, runs, strict=True)
                if run is not None
            ]
        return controller_runs
