"""The distributor service: composition root."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence

import structlog

from fleetbus.controller import Controller
from fleetbus.deletions.budget import DeletionBudget
from fleetbus.fleet import Fleet
from fleetbus.health import Health
from fleetbus.kube.client import Object
from fleetbus.kube.config import import_light
from fleetbus.logs import set_up_logs
from fleetbus.process import run_service, run_until_stopped
from fleetbus.reconcile import Request, Result
from fleetbus.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus.worker.host import run_controllers
from fleetbus.worker.links import linked
from fleetbus_distributor.model import CLUSTER_RESOURCE, KIND, RESOURCE
from fleetbus_distributor.reconcile import Distributor
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.wake import Waker, all_requests

log = structlog.get_logger()

NAME = "distributor"


def build_controller(settings: DistributorSettings, budget: DeletionBudget) -> Controller:
    """The controller: what wakes a MultiClusterResource, and what then happens."""
    controller = Controller(
        NAME,
        concurrency=settings.concurrency,
        timeout=settings.timeout,
        # Every request is of the hub; there is no other cluster to leave slots to.
        max_per_cluster=settings.concurrency,
    )
    distributor = Distributor(settings, budget)

    async def wake_all(_event: Object | None, request: Request, fleet: Fleet) -> Iterable[Request]:
        # Clusters of the fleet are told by objects on the hub only.
        return await all_requests(NAME, fleet) if request.cluster == fleet.hub else []

    controller.watch(RESOURCE, clusters=lambda info: info.hub)
    controller.watch(CLUSTER_RESOURCE, clusters=lambda info: info.hub, map=wake_all)
    # Drift: a change of one of our objects anywhere is a change of its MultiClusterResource.
    controller.watch_owned("*", owner_kind=KIND)

    @controller.reconcile
    async def reconcile(request: Request, fleet: Fleet) -> Result | None:
        return await distributor.reconcile(request, fleet)

    return controller


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
        linked(shared, name=NAME) as links,
        told.serve(shared.health_host, shared.health_port, shared.health_port_file),
        asyncio.TaskGroup() as outer,
    ):
        controller = build_controller(settings, DeletionBudget(links.redis))
        waker = Waker(NAME, links)
        outer.create_task(links.clusters.run(), name="clusters")
        # In a group of their own, so that they have ended before the clients are closed.
        async with asyncio.TaskGroup() as group:
            group.create_task(waker.run(), name="wake")
            group.create_task(run_controllers([controller], links, told), name="controllers")
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
