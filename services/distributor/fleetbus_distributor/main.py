"""The distributor service: composition root."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.deletions.budget import DeletionBudget
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import import_light
from fleetbus.ownership import Owner
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus.reconcile import Request, Result
from fleetbus.worker.connections import connect
from fleetbus.worker.host import run_controllers
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.orphan_sweep import OrphanSweep
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE, KIND, RESOURCE
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.rounds.settled import Settled
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.wake import Waker, all_requests, requests_of

log = structlog.get_logger()

NAME = "distributor"
TARGETS = "distributor-targets"
"""The second queue: (MultiClusterResource, target cluster), for what happens on that cluster."""


class Looks:
    """Asks for later looks, at single clusters or at all.

    Args:
        for_all: queue of the first controller.
        for_one: of the second one.
    """

    def __init__(self, for_all: RedisQueue, for_one: RedisQueue) -> None:
        self._for_all = for_all
        self._for_one = for_one

    async def __call__(self, owner: Owner, cluster: str, after: timedelta) -> None:
        """Look again at what an owner has on a cluster; "" stands for all."""
        if cluster:
            request = Request(TARGETS, cluster, owner.namespace, owner.name)
            await self._for_one.add_after(request, after)
        else:
            request = Request(NAME, owner.cluster_name, owner.namespace, owner.name)
            await self._for_all.add_after(request, after)


def build_controllers(settings: DistributorSettings, distributor: Distributor) -> list[Controller]:
    """The two controllers: of all clusters at once, and of single ones (rule D11)."""
    return [_for_all(settings, distributor), _for_one(settings, distributor)]


def _for_all(settings: DistributorSettings, distributor: Distributor) -> Controller:
    """What is said on the hub concerns all clusters: edits, deletions, changes of the fleet."""
    controller = Controller(
        NAME,
        concurrency=settings.concurrency,
        timeout=settings.timeout,
        # Every request is of the hub; there is no other cluster to leave slots to.
        max_per_cluster=settings.concurrency,
    )

    async def wake_all(_event: Object | None, request: Request, fleet: Fleet) -> Iterable[Request]:
        # Clusters of the fleet are told by objects on the hub only.
        return await all_requests(NAME, fleet) if request.cluster == fleet.hub else []

    controller.watch(RESOURCE, clusters=_is_hub, predicate=is_said)
    controller.watch(CLUSTER_RESOURCE, clusters=_is_hub, predicate=is_said, map=wake_all)

    @controller.reconcile
    async def reconcile(request: Request, fleet: Fleet) -> Result | None:
        return await distributor.reconcile(request, fleet)

    return controller


def _for_one(settings: DistributorSettings, distributor: Distributor) -> Controller:
    """Drift: a change of one of our objects concerns its cluster alone, as does its connection."""
    controller = Controller(TARGETS, concurrency=settings.concurrency, timeout=settings.timeout)

    async def wake_there(_event: Object | None, request: Request, fleet: Fleet) -> list[Request]:
        return await requests_of(TARGETS, request.name, fleet)

    controller.watch_owned("*", owner_kind=KIND, per_cluster=True)
    controller.watch(
        CLUSTER_RESOURCE, clusters=_is_hub, predicate=is_connection_changed, map=wake_there
    )

    @controller.reconcile
    async def repair(request: Request, fleet: Fleet) -> Result | None:
        return await distributor.repair(request, fleet)

    return controller


def _is_hub(info: ClusterInfo) -> bool:
    return info.hub


def is_said(old: Object | None, new: Object | None) -> bool:
    """Whether somebody said something about an object of the hub: our own status is no news."""
    return old is None or new is None or _said(old) != _said(new)


def _said(resource: Object) -> tuple[object, ...]:
    metadata: Object = resource.get("metadata", {})
    fields = ("uid", "generation", "labels", "annotations", "finalizers", "deletionTimestamp")
    return tuple(metadata.get(name) for name in fields)


def is_connection_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a Cluster that answered does not any more, or the other way round."""
    return old is None or new is None or _connection(old) != _connection(new)


def _connection(cluster: Object) -> tuple[object, ...]:
    status: Object = cluster.get("status") or {}
    conditions: list[Object] = status.get("conditions") or []
    return tuple(one.get("status") for one in conditions if one.get("type") == "Connected")


async def run(
    shared: SharedSettings, settings: DistributorSettings, *, health: Health | None = None
) -> None:
    """Run the distributor until cancelled.

    Args:
        shared: where hub, NATS and Redis are.
        settings: periods and limits.
        health: what the process knows of itself; made here if it is not given.
    """
    told = health or Health()
    async with (
        connect(shared, name=NAME) as connections,
        told.serve(shared.health_host, shared.health_port, shared.health_port_file),
        aclosing(RedisQueue(connections.redis, NAME)) as for_all,
        aclosing(RedisQueue(connections.redis, TARGETS)) as for_one,
        asyncio.TaskGroup() as outer,
    ):
        distributor = Distributor(
            settings=settings,
            budget=DeletionBudget(connections.redis),
            missing=MissingObjects(connections.redis),
            settled=Settled(settings.resync),
            wake=Looks(for_all, for_one),
        )
        controllers = build_controllers(settings, distributor)
        waker = Waker(NAME, connections)
        outer.create_task(connections.clusters.run(), name="clusters")
        # In a group of their own, so that they have ended before the clients are closed.
        async with asyncio.TaskGroup() as group:
            group.create_task(waker.run(), name="wake")
            sweep = OrphanSweep(connections.fleet, connections.fleet.reader, settings.resync)
            group.create_task(sweep.run(), name="orphans")
            group.create_task(run_controllers(controllers, connections, told), name="controllers")
            log.info("distributor_started", hub=shared.hub_cluster)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `fleetbus-distributor`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-distributor",
        description="Applies MultiClusterResources; settings are environment variables "
        "FLEETBUS_… and FLEETBUS_DISTRIBUTOR_….",
    )
    parser.parse_args(argv)
    return run_service("fleetbus-distributor", _main)


async def _main() -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(DistributorSettings)
    import_light()  # no user code runs here, so the typed models need not be loaded
    set_up_logs(shared.log_format, shared.log_level)
    tell_unknown_settings(DistributorSettings)
    await run_until_stopped(distributor=run(shared, settings))
