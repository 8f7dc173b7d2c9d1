"""The reconciler service: composition root."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Sequence

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus.worker.connections import connect
from fleetbus.worker.host import run_controllers
from fleetbus_reconciler.load import load_usable
from fleetbus_reconciler.projector.projector import run_projector
from fleetbus_reconciler.settings import ReconcilerSettings

log = structlog.get_logger()


async def run(
    settings: ReconcilerSettings,
    shared: SharedSettings,
    controllers: Sequence[Controller] = (),
    *,
    health: Health | None = None,
) -> None:
    """Run the projector and the controllers of the modules until cancelled.

    Args:
        settings: what to run.
        shared: where hub, NATS and Redis are.
        controllers: controllers in addition to those of the modules.
        health: what the process knows of itself; made here if it is not given.

    Raises:
        ConfigError: there is nothing to run, because all modules are wrong or none is named.
    """
    told = health or Health()
    hosted = load_usable(settings.modules, controllers, told)
    if not hosted and not settings.projector:
        raise ConfigError("nothing to run: no module is named and the projector is off")
    async with (
        connect(shared, name="reconciler") as connections,
        told.serve(shared.health_host, shared.health_port, shared.health_port_file),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(connections.clusters.run(), name="clusters")
        if settings.projector:
            group.create_task(run_projector(connections, settings, told), name="projector")
        if hosted:
            group.create_task(run_controllers(hosted, connections, told), name="controllers")
        log.info("reconciler_started", controllers=[c.name for c in hosted])


def main(argv: Sequence[str] | None = None) -> int:
    """The command `fleetbus-reconciler`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-reconciler",
        description="Runs reconcilers and the projector; settings are environment variables "
        "FLEETBUS_… and FLEETBUS_RECONCILER_….",
    )
    parser.add_argument("modules", nargs="*", help="Python files or modules with controllers")
    arguments = parser.parse_args(argv)
    return run_service("fleetbus-reconciler", functools.partial(_main, arguments.modules))


async def _main(modules: Sequence[str]) -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(ReconcilerSettings, modules=list(modules) or None)
    set_up_logs(shared.log_format, shared.log_level)
    tell_unknown_settings(ReconcilerSettings)
    await run_until_stopped(reconciler=run(settings, shared))
