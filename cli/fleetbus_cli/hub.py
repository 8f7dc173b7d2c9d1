"""Connects to the hub for a command."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from collections.abc import Coroutine
from typing import Any

from fleetbus.errors import ConfigError, KubeError, StoreError, Unreachable
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.process import printer
from fleetbus.process.loopback import allow_loopback
from fleetbus_cli.target import resolve_target

Hub = tuple[pathlib.Path | None, str]
"""The values of --hub-kubeconfig and --hub-context."""


def resolve_hub(flags: Hub) -> KubeConfig:
    """Find the hub: flags, FLEETBUS_HUB_KUBECONFIG, the dev stack, KUBECONFIG.

    Raises:
        ConfigError: none of them names a hub, or the kubeconfig cannot be read.
    """
    path, context = flags
    if path is not None:
        return read_kube_config(path, context)
    if file := os.environ.get("FLEETBUS_HUB_KUBECONFIG"):
        return read_kube_config(file, context or os.environ.get("FLEETBUS_HUB_CONTEXT", ""))
    target = resolve_target()
    if target.hub:
        allow_loopback()
        return read_kube_config(target.kubeconfig, context or target.hub)
    if file := os.environ.get("KUBECONFIG"):
        return read_kube_config(file, context)
    raise ConfigError(
        f"no hub is set: no dev fleet runs in {pathlib.Path.cwd()} or a parent folder;"
        " start one with `fleetbus dev up`, give --hub-kubeconfig FILE, or set"
        " FLEETBUS_HUB_KUBECONFIG"
    )


def find_hub(flags: Hub) -> KubeConfig | None:
    """Find the hub as `resolve_hub` does; in a pod without any of them it is the pod's own cluster.

    Returns:
        Access data; None means the service account of the pod.

    Raises:
        ConfigError: none of them names a hub, or the kubeconfig cannot be read.
    """
    try:
        return resolve_hub(flags)
    except ConfigError:
        if flags[0] is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return None
        raise


def run_on_hub(main: Coroutine[Any, Any, int]) -> int:
    """Run a command; an error of the hub or the store prints one line and returns 1."""
    try:
        return asyncio.run(main)
    except KubeError as e:
        prefix = "hub" if isinstance(e, Unreachable) else "the hub refused"
        printer.note(f"fleetbus: {prefix}: {e}")
    except (StoreError, *_errors_of_redis()) as e:
        printer.note(f"fleetbus: {e}")
    return 1


def _errors_of_redis() -> tuple[type[Exception], ...]:
    """The errors of the client, if the command has loaded it: most ask the hub alone."""
    if "redis" not in sys.modules:
        return ()
    from redis.exceptions import RedisError  # noqa: PLC0415 -- see above

    return (RedisError,)
