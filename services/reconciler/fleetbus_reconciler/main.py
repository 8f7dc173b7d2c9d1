"""The reconciler service: composition root."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Sequence

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.controller.load import distinct, load_controllers
from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.worker.connections import connect
from fleetbus.worker.host import check_controllers, run_controllers
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_reconciler.timing import USUAL, ReconcilerTiming
from fleetbus_reconciler.wiring import run_projector

log = structlog.get_logger()


async def run(
    settings: ReconcilerSettings,
    shared: SharedSettings,
    controllers: Sequence[Controller] = (),
    *,
    health: Health | None = None,
    timing: ReconcilerTiming = USUAL,
) -> None:
    """Run the projector and the controllers of the modules until cancelled.

    Args:
        settings: what to run.
        shared: how to reach the hub, NATS and Redis.
        controllers: controllers in addition to those of the modules.
        health: checks of the process; made here if it is not given.
        timing: the times of the projector that no setting changes.

    Raises:
        ConfigError: there is nothing to run, because no module is usable or none is named.
    """
    checks = health or Health()
    hosted = load_usable(settings.modules, controllers, checks)
    if not hosted and not settings.projector:
        raise ConfigError("nothing to run: no module is named and the projector is off")
    started = checks.starting()
    async with (
        checks.serve(shared.health_host, shared.health_port, shared.health_port_file),
        connect(
            shared, name=settings.name, health=checks, hub_namespace=settings.namespace
        ) as connections,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(connections.clusters.run(), name="clusters")
        applied: AppliedHere | None = None
        if settings.projector:
            applied = AppliedHere(connections.writer) if hosted else None
            projector = run_projector(connections, settings, checks, timing, applied=applied)
            group.create_task(projector, name="projector")
        if hosted:
            controllers_run = run_controllers(hosted, connections, checks, applied=applied)
            group.create_task(controllers_run, name="controllers")
        started()
        log.info("reconciler_started", controllers=[c.name for c in hosted])


def load_usable(
    modules: Sequence[str], others: Sequence[Controller], health: Health
) -> list[Controller]:
    """Load the controllers of all usable modules, after the others.

    A module that cannot be used keeps no other controller from its work: the log and /readyz name
    it, so that a rollout stops there.

    Args:
        modules: Python files or modules.
        others: controllers that run beside them.
        health: becomes not ready for each module that cannot be used.

    Raises:
        ConfigError: nothing is left to run; the first problem.
    """
    hosted = list(others)
    problems: dict[str, ConfigError] = {}
    for name in distinct(modules):
        try:
            controllers = [c for c in load_controllers([name]) if c not in hosted]
            check_controllers([*hosted, *controllers])
        except ConfigError as e:
            problems[name] = e
        else:
            hosted += controllers
    if problems and not hosted:
        raise next(iter(problems.values()))
    for name, problem in problems.items():
        log.error("module_unusable", module=name, error=str(problem))
        health.ready_when(f"module {name}", lambda reason=str(problem): reason)
    return hosted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-reconciler`."""
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
    levels = shared.log_levels_file
    tell_unknown_settings(ReconcilerSettings)
    await run_until_stopped(reconciler=run(settings, shared), levels=follow_levels(levels))
