"""The two controllers of the distributor: for all clusters at once, and for single ones (rule D11).

A cluster that joins, leaves or is relabelled concerns every MultiClusterResource. The change of a
Cluster object arrives over the bus, perhaps before this process's own registry has it; then the
round that it triggers still sees the old fleet. So a change of the registry triggers one, too, and
that also covers providers without Cluster objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.errors import FleetbusError
from fleetbus.fleet.fleet import Fleet
from fleetbus.fleet.inventory_chunks import is_chunked
from fleetbus.kube.client import Object
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES, Owner
from fleetbus.reconcile import Request, Result
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.kind import KIND
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.settings import DistributorSettings

log = structlog.get_logger()

NAME: Final = "distributor"
TARGETS: Final = "distributor-targets"
"""The second controller; its requests name a MultiClusterResource and a target cluster."""
_RETRY: Final = timedelta(seconds=2)


def build_controllers(settings: DistributorSettings, distributor: Distributor) -> list[Controller]:
    """Build the controller for all clusters, and the one for single clusters."""
    return [_for_all(settings, distributor), _for_one(settings, distributor)]


def _for_all(settings: DistributorSettings, distributor: Distributor) -> Controller:
    """Changes on the hub concern all clusters: edits, deletions, changes of the fleet."""
    controller = Controller(
        NAME,
        concurrency=settings.concurrency,
        timeout=settings.timeout,
        # Every request is of the hub; there is no other cluster to leave slots to.
        max_per_cluster=settings.concurrency,
    )
    controller.repaired_by = TARGETS  # it watches what this one creates

    async def to_all(_event: Object | None, request: Request, fleet: Fleet) -> Iterable[Request]:
        # Only Cluster objects on the hub describe the fleet.
        return await list_requests(NAME, fleet) if request.cluster == fleet.hub else []

    controller.watch(MULTI_CLUSTER_RESOURCES, clusters=_is_hub, predicate=is_user_change)
    controller.watch(CLUSTER_RESOURCE, clusters=_is_hub, predicate=is_user_change, map=to_all)

    @controller.reconcile
    async def reconcile(request: Request, fleet: Fleet) -> Result | None:
        return await distributor.reconcile(request, fleet)

    return controller


def _for_one(settings: DistributorSettings, distributor: Distributor) -> Controller:
    """Changes on a cluster, and of its connection, concern that cluster alone."""
    controller = Controller(TARGETS, concurrency=settings.concurrency, timeout=settings.timeout)

    async def to_cluster(_event: Object | None, request: Request, fleet: Fleet) -> list[Request]:
        return await list_requests(TARGETS, fleet, cluster=request.name)

    controller.watch_owned(
        "*", owner_kind=KIND, per_cluster=True, ignore=distributor.executor.memory.has_made
    )
    controller.watch(
        CLUSTER_RESOURCE, clusters=_is_hub, predicate=is_connection_change, map=to_cluster
    )

    @controller.reconcile
    async def repair(request: Request, fleet: Fleet) -> Result | None:
        return await distributor.repair(request, fleet)

    return controller


def _is_hub(info: ClusterInfo) -> bool:
    return info.hub


def is_user_change(old: Object | None, new: Object | None) -> bool:
    """Whether more than the status of an object changed; we write that ourselves."""
    return old is None or new is None or _user_fields(old) != _user_fields(new)


def _user_fields(resource: Object) -> tuple[object, ...]:
    metadata: Object = resource.get("metadata", {})
    fields = ("uid", "generation", "labels", "annotations", "finalizers", "deletionTimestamp")
    return tuple(metadata.get(name) for name in fields)


def is_connection_change(old: Object | None, new: Object | None) -> bool:
    """Whether a Cluster became reachable or unreachable."""
    return old is None or new is None or _connection(old) != _connection(new)


def _connection(cluster: Object) -> tuple[object, ...]:
    status: Object = cluster.get("status") or {}
    conditions: list[Object] = status.get("conditions") or []
    return tuple(
        condition.get("status") for condition in conditions if condition.get("type") == "Connected"
    )


async def list_requests(controller: str, fleet: FleetView, *, cluster: str = "") -> list[Request]:
    """List a request for every MultiClusterResource of the hub, read live.

    Args:
        controller: the controller that is to get the requests.
        fleet: the clusters.
        cluster: only those that have objects on this cluster, and for it; "" for all of them.

    Raises:
        FleetbusError: the hub cannot be read.
    """
    if not fleet.hub:
        return []
    resources = await fleet.cluster(fleet.hub).live.list(MULTI_CLUSTER_RESOURCES)
    return [
        Request(
            controller,
            cluster or fleet.hub,
            resource["metadata"]["namespace"],
            resource["metadata"]["name"],
        )
        for resource in resources
        if not cluster or _may_have_objects(resource, cluster)
    ]


def _may_have_objects(resource: Object, cluster: str) -> bool:
    """Whether its intent names a cluster; one in chunks is not read for that."""
    status: dict[str, Any] = resource.get("status") or {}
    recorded: dict[str, list[dict[str, Any]]] = status.get("intent") or {}
    entries = recorded.get("clusters") or []
    return is_chunked(status) or any(entry["name"] == cluster for entry in entries)


class Requeuer:
    """Enqueues later rounds, for single clusters or for all.

    Args:
        for_all: queue of the first controller.
        for_one: queue of the second one.
    """

    def __init__(self, for_all: RedisQueue, for_one: RedisQueue) -> None:
        self._for_all = for_all
        self._for_one = for_one

    async def __call__(self, owner: Owner, cluster: str, after: timedelta) -> None:
        """Enqueue a round for a MultiClusterResource on a cluster; "" stands for all."""
        if cluster:
            request = Request(TARGETS, cluster, owner.namespace, owner.name)
            await self._for_one.add_after(request, after)
        else:
            request = Request(NAME, owner.cluster_name, owner.namespace, owner.name)
            await self._for_all.add_after(request, after)


class FleetChanges:
    """Enqueues every MultiClusterResource after a change of the registry.

    Args:
        clusters: the registry.
        fleet: to read the hub.
        queue: of the controller for all clusters.
    """

    def __init__(self, *, clusters: Clusters, fleet: FleetView, queue: RedisQueue) -> None:
        self._clusters = clusters
        self._fleet = fleet
        self._queue = queue
        self._changed = asyncio.Event()
        clusters.on_change(self._changed.set)

    async def run(self) -> None:
        """Enqueue until cancelled."""
        await self._clusters.known()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._enqueue_all()

    async def _enqueue_all(self) -> None:
        try:
            requests = await list_requests(NAME, self._fleet)
            await self._queue.add([Add(request) for request in requests])
        except (FleetbusError, QueueUnavailableError) as error:
            # The hub or the store is away; the change is not forgotten.
            log.debug("fleet_change_postponed", error=str(error))
            self._changed.set()
            await asyncio.sleep(_RETRY.total_seconds())
