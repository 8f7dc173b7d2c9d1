"""What the commands do that write on the hub."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import RedisError

from fleetbus.cli.target import resolve_target
from fleetbus.cli.unknown import unknown_cluster
from fleetbus.clusters.membership import NotJoined, join, unjoin
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import ConfigError, KubeError, StoreError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.process.settings import allow_loopback

Hub = tuple[pathlib.Path | None, str]
"""Kubeconfig of the hub and context, as flags gave them."""


def join_cluster(
    name: str,
    file: pathlib.Path,
    *,
    context: str,
    labels: Sequence[str],
    insecure: bool,
    http: bool,
    check: bool,
    hub: Hub,
    namespace: str,
) -> int:
    """Join a cluster; answers the exit status.

    Raises:
        ConfigError: an option cannot be used, or the join is not possible.
    """
    config = read_kube_config(file, context)
    pairs = dict(_pair(label) for label in labels)

    async def work(client: KubeClient) -> None:
        await join(
            client,
            name,
            config,
            namespace=namespace,
            labels=pairs,
            insecure=insecure,
            http=http,
            check=check,
        )

    next_ = (
        f"  fleetbus clusters               whether its watcher answers\n"
        f"  fleetbus get pods -c {name:<10} what runs there\n"
        f"  fleetbus unjoin {name:<15} let it leave; its objects stay"
    )
    return _on_hub(hub, work, f"cluster {name} joined the fleet\n{next_}")


def unjoin_cluster(name: str, *, hub: Hub, namespace: str) -> int:
    """Unjoin a cluster; answers the exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: an option cannot be used, or the unjoin is not possible.
    """

    async def work(client: KubeClient) -> None:
        try:
            await unjoin(client, name, namespace=namespace)
        except NotJoined as e:
            names = [cluster["metadata"]["name"] for cluster in await client.list(CLUSTERS)]
            raise unknown_cluster(name, names) from e

    return _on_hub(hub, work, f"cluster {name} left the fleet; its objects stay there")


def hub_of(given: Hub) -> KubeConfig:
    """Access data of the hub: flags, FLEETBUS_HUB_KUBECONFIG, the dev stack, KUBECONFIG.

    Raises:
        ConfigError: none of them names one, or it cannot be read.
    """
    path, context = given
    if path is not None:
        return read_kube_config(path, context)
    if found := os.environ.get("FLEETBUS_HUB_KUBECONFIG"):
        return read_kube_config(found, context or os.environ.get("FLEETBUS_HUB_CONTEXT", ""))
    target = resolve_target()
    if target.hub:
        allow_loopback()
        return read_kube_config(target.kubeconfig, context or target.hub)
    if found := os.environ.get("KUBECONFIG"):
        return read_kube_config(found, context)
    raise ConfigError("no hub is known: give --hub-kubeconfig FILE, or set FLEETBUS_HUB_KUBECONFIG")


def _on_hub(given: Hub, work: Callable[[KubeClient], Awaitable[None]], done: str) -> int:
    config = hub_of(given)

    async def main() -> int:
        async with KubeClient(config) as client:
            await work(client)
        print(done)
        return 0

    return run_on_hub(main())


def run_on_hub(main: Coroutine[Any, Any, int]) -> int:
    """Run a command; what the hub or the store refuses is one line and exit status 1."""
    try:
        return asyncio.run(main)
    except KubeError as e:
        print(f"fleetbus: the hub refused: {e}", file=sys.stderr)
    except (StoreError, RedisError) as e:
        print(f"fleetbus: {e}", file=sys.stderr)
    return 1


def _pair(label: str) -> tuple[str, str]:
    key, found, value = label.partition("=")
    if not key or not found:
        raise ConfigError(f"--label {label!r} is not key=value")
    return key, value
