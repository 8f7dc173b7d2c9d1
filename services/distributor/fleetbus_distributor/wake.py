"""A cluster joins, leaves or is relabelled: every MultiClusterResource is looked at again.

The change of a Cluster object arrives over the bus, perhaps before this process' own registry has
heard of it; then the round that it wakes still sees the old fleet. So the registry's own change
wakes too, and that also covers providers without Cluster objects.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.errors import FleetbusError
from fleetbus.kube.client import Object
from fleetbus.reconcile import Request
from fleetbus.worker.connections import Connections
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.render.spec import RESOURCE

log = structlog.get_logger()

_AGAIN: Final = timedelta(seconds=2)


async def all_requests(controller: str, fleet: FleetView) -> list[Request]:
    """A request for every MultiClusterResource of the hub, read live.

    Raises:
        FleetbusError: the hub cannot be asked.
    """
    if not fleet.hub:
        return []
    found = await fleet.cluster(fleet.hub).live.list(RESOURCE)
    return [
        Request(controller, fleet.hub, one["metadata"]["namespace"], one["metadata"]["name"])
        for one in found
    ]


async def requests_of(controller: str, cluster: str, fleet: FleetView) -> list[Request]:
    """A request for every MultiClusterResource of the hub that has objects on a cluster.

    Raises:
        FleetbusError: the hub cannot be asked.
    """
    if not fleet.hub:
        return []
    found = await fleet.cluster(fleet.hub).live.list(RESOURCE)
    return [
        Request(controller, cluster, one["metadata"]["namespace"], one["metadata"]["name"])
        for one in found
        if any(entry["name"] == cluster for entry in _recorded(one))
    ]


def _recorded(resource: Object) -> list[dict[str, Any]]:
    status: dict[str, Any] = resource.get("status") or {}
    recorded: dict[str, list[dict[str, Any]]] = status.get("intent") or {}
    return recorded.get("clusters") or []


class Waker:
    """Follows the registry.

    Args:
        controller: whose queue the requests go to.
        connections: the registry, the fleet and the store.
    """

    def __init__(self, controller: str, connections: Connections) -> None:
        self._controller = controller
        self._connections = connections
        self._changed = asyncio.Event()
        connections.clusters.on_change(self._changed.set)

    async def run(self) -> None:
        """Enqueue everything after each change of the fleet, until cancelled."""
        queue = RedisQueue(self._connections.redis, self._controller)
        try:
            await self._connections.clusters.known()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._wake_all(queue)
        finally:
            await queue.aclose()

    async def _wake_all(self, queue: RedisQueue) -> None:
        try:
            requests = await all_requests(self._controller, self._connections.fleet)
            await queue.add([Add(request) for request in requests])
        except (FleetbusError, QueueUnavailableError) as error:
            # The hub or the store is away; the change is not forgotten.
            log.debug("wake_postponed", error=str(error))
            self._changed.set()
            await asyncio.sleep(_AGAIN.total_seconds())
