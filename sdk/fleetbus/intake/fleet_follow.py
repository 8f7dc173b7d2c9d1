"""Reconciles everything again when the fleet itself changes.

What a controller writes often depends on which clusters there are. No object changes when one
joins, leaves or is relabelled, so no event wakes the objects that have to be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from redis.exceptions import RedisError

from fleetbus.errors import FleetbusError
from fleetbus.snapshot.read import ListQuery
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority

if TYPE_CHECKING:
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.controller import Controller, Watch
    from fleetbus.fleet import Fleet
    from fleetbus.workqueue.queue import Queue

log = structlog.get_logger()

_LOOK_EVERY: Final = timedelta(milliseconds=500)
_PAGE: Final = 500


async def follow_fleet(controller: Controller, queue: Queue, fleet: Fleet) -> None:
    """Enqueue what the controller's identity watches name, after each change of the fleet.

    The first look is left to the full enqueue at the start.
    """
    seen: list[ClusterInfo] | None = None
    while True:
        now = fleet.clusters() if fleet.is_known else seen
        if seen is not None and now is not None and now != seen:
            try:
                await enqueue_known(controller, queue, fleet)
            except (FleetbusError, RedisError, WorkqueueError) as e:
                # The store is away: the change is seen again at the next look.
                log.warning("fleet_change_waits", controller=controller.name, error=str(e))
                now = seen
        seen = now
        await asyncio.sleep(_LOOK_EVERY.total_seconds())


async def enqueue_known(controller: Controller, queue: Queue, fleet: Fleet) -> None:
    """Enqueue every object of the identity watches, as the snapshot has them.

    Raises:
        redis.exceptions.RedisError: the store is away.
        FleetbusError: the store was emptied.
        WorkqueueError: the queue is away.
    """
    for watch in controller.watches:
        if watch.is_identity and watch.resource is not None:
            names = [i.name for i in fleet.clusters() if watch.clusters.test(i.name, i)]
            await _enqueue(controller, watch, queue, fleet, names)


async def _enqueue(
    controller: Controller, watch: Watch, queue: Queue, fleet: Fleet, names: Iterable[str]
) -> None:
    if watch.resource is None:
        return
    token = ""
    while True:
        page = await fleet.reader.list(
            ListQuery(
                clusters=list(names),
                resource=watch.resource.key,
                labels=watch.selector or None,
                limit=_PAGE,
                continue_token=token,
                count=False,
            )
        )
        wanted = [
            entry
            for entry in page.entries
            if watch.namespaces is None or entry.namespace in watch.namespaces
        ]
        if wanted:
            requests = [controller.request(e.cluster, e.namespace, e.name) for e in wanted]
            await queue.add([Add(request, Priority.INITIAL) for request in requests])
        token = page.continue_token
        if not token:
            return
