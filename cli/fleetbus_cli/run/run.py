"""Runs `fleetbus run`: builds the settings of this machine and hosts the controllers."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Sequence
from typing import Final

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.controller.load import load_controllers, local_files
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import contexts as contexts_of
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.loopback import allow_loopback
from fleetbus.process.settings import (
    ProviderSettings,
    SharedSettings,
    load_settings,
    tell_unknown_settings,
)
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.worker.connections import Connections, connect
from fleetbus.worker.host import check_controllers, run_controllers
from fleetbus_cli.nats import PATIENCE
from fleetbus_cli.run.projector import find_projector, lacks_projector, projector_gone
from fleetbus_cli.run.reload import ParentPipe, is_child
from fleetbus_cli.target import Target, resolve_target

log = structlog.get_logger()

_NAME: Final = "fleetbus-run"
"""Name of the connections to NATS."""


def run_modules(
    modules: Sequence[str],
    *,
    kubeconfigs: Sequence[pathlib.Path],
    contexts: Sequence[str],
    folder: pathlib.Path | None = None,
    nats_url: str | None,
    redis_url: str | None,
    may_project: bool,
    log_level: str,
) -> int:
    """Run controllers until interrupted, or until the parent process is gone.

    The projector runs in the same process if no other process of the fleet has it, also later, and
    `may_project` is set; a fleet of `fleetbus dev` starts its own again.

    Returns:
        The exit status.
    """
    parent = ParentPipe() if is_child() else None

    async def main() -> None:
        set_up_logs("text", log_level)
        tell_unknown_settings()
        target = resolve_target(nats_url=nats_url, redis_url=redis_url, folder=folder)
        settings = run_settings(target, kubeconfigs, contexts, is_fleet_named=folder is not None)
        controllers = load_and_report(modules, parent, target)
        loops = {"parent": parent.wait_parent_gone()} if parent else {}
        may_host = may_project and not target.state_file
        await run_until_stopped(run=_host(controllers, settings, may_host), **loops)

    return run_service("fleetbus run", main, is_command=True)


def load_and_report(
    modules: Sequence[str], parent: ParentPipe | None, target: Target
) -> list[Controller]:
    """Load the controllers, and report to the parent the files whose change needs a restart.

    Raises:
        ConfigError: a module cannot be imported, or a controller is incomplete.
    """
    # A restarted `fleetbus dev` fleet has new addresses.
    fleet = [target.state_file] if target.state_file else []
    try:
        controllers = load_controllers(list(modules))
        check_controllers(controllers)
    except ConfigError as e:
        if parent:
            named = [str(pathlib.Path(name)) for name in modules if name.endswith(".py")]
            parent.report([*local_files(e), *named, *fleet], is_loaded=False)
        raise
    if parent:
        parent.report([*local_files(), *fleet], is_loaded=True)
    return controllers


def run_settings(
    target: Target,
    kubeconfigs: Sequence[pathlib.Path],
    contexts: Sequence[str],
    *,
    needs_bus: bool = True,
    is_fleet_named: bool = False,
) -> SharedSettings:
    """Build the settings of this machine.

    Args:
        target: the addresses, and the dev fleet if one was found.
        kubeconfigs: the values of --kubeconfig.
        contexts: use only these contexts.
        needs_bus: whether NATS and Redis are needed.
        is_fleet_named: whether --dir names the dev fleet; it then wins over FLEETBUS_PROVIDERS.

    Raises:
        ConfigError: a setting is missing, or a kubeconfig has no cluster.
    """
    options: dict[str, object] = {}
    if kubeconfigs or contexts or not target.hub:
        options["providers"] = _providers(target, kubeconfigs, contexts)
    elif is_fleet_named or not os.environ.get("FLEETBUS_PROVIDERS"):
        # A dev fleet: its Cluster objects have the labels and name the hub.
        allow_loopback()
        options = {
            "providers": [ProviderSettings(type="cluster")],
            "hub_kubeconfig": pathlib.Path(target.kubeconfig),
            "hub_context": target.hub,
            "hub_cluster": target.hub,
        }
    if needs_bus:
        options |= {
            "nats_url": target.require("nats_url"),
            "redis_url": target.require("redis_url"),
        }
        # Empty where the address comes without: the environment's belong to another server.
        options |= {f"nats_{name}": value or "" for name, value in target.nats_values.items()}
        options |= {f"redis_{name}": value or "" for name, value in target.redis_values.items()}
    return load_settings(SharedSettings, **options)


def _providers(
    target: Target, kubeconfigs: Sequence[pathlib.Path], contexts: Sequence[str]
) -> list[ProviderSettings] | None:
    """Make a provider of the kubeconfigs; None leaves it to FLEETBUS_PROVIDERS."""
    if not kubeconfigs and os.environ.get("FLEETBUS_PROVIDERS"):
        if contexts:
            raise ConfigError("--contexts needs --kubeconfig FILE: FLEETBUS_PROVIDERS is set")
        return None
    if not kubeconfigs:
        file = target.kubeconfig or os.environ.get("KUBECONFIG")
        if not file:
            raise ConfigError(
                f"no clusters: no dev fleet runs in {pathlib.Path.cwd()} or a parent folder;"
                " start one with `fleetbus dev up`, give --kubeconfig FILE, or set KUBECONFIG"
            )
        kubeconfigs = [pathlib.Path(file)]
    _check_kubeconfigs(kubeconfigs, contexts)
    options: dict[str, object] = {"paths": [str(path) for path in kubeconfigs]}
    if contexts:
        options["contexts"] = list(contexts)
    return [ProviderSettings.model_validate({"type": "kubeconfig", **options})]


def _check_kubeconfigs(paths: Sequence[pathlib.Path], contexts: Sequence[str]) -> None:
    """Require a cluster: without one, a process would take requests it cannot handle."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file; `fleetbus dev up` starts a fleet here")
    if any(path.is_dir() for path in paths):
        return  # the provider watches a folder: files may be added later
    available = {name for path in paths for name in contexts_of(read_kube_config(path))}
    if missing := sorted(set(contexts) - available):
        names = ", ".join(sorted(available)) or "none"
        raise ConfigError(f"no kubeconfig has the context {missing[0]!r}; known: {names}")
    if not available:
        raise ConfigError(f"{paths[0]}: the kubeconfig has no contexts")


async def _host(
    controllers: Sequence[Controller], settings: SharedSettings, may_host: bool
) -> None:
    health = Health()
    waiting = asyncio.get_running_loop().call_later(
        PATIENCE.total_seconds(), _say_waiting, settings
    )
    is_lacking = await lacks_projector(settings.nats, name=_NAME) if may_host else None
    async with connect(settings, name=_NAME) as connections, asyncio.TaskGroup() as group:
        waiting.cancel()
        group.create_task(connections.clusters.run(), name="clusters")
        applied: AppliedHere | None = None
        if is_lacking and (run_projector := find_projector()):
            applied = AppliedHere(connections.writer)
            projector = run_projector(connections, health, applied)
            group.create_task(projector, name="projector")
        elif is_lacking is False:
            group.create_task(_replace_projector(connections, health), name="projector")
        hosting = run_controllers(controllers, connections, health, applied=applied)
        group.create_task(hosting, name="controllers")
        log.info("controllers_started", controllers=[c.name for c in controllers])


def _say_waiting(settings: SharedSettings) -> None:
    """A person looks on, who may have started it without the fleet."""
    log.warning(
        "waiting_for_nats",
        url=settings.nats.shown,
        hint="does the fleet run? It goes on once NATS answers; Ctrl-C ends it",
    )


async def _replace_projector(connections: Connections, health: Health) -> None:
    """Host the projector, apart from the controllers, once the fleet has lost its own."""
    await projector_gone(connections.settings.nats, name=_NAME)
    if run_projector := find_projector():
        await run_projector(connections, health, None)
