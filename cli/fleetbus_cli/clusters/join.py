"""Runs `fleetbus join` and `unjoin`, which write to the hub."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Sequence

from fleetbus.clusters.member_rights import NAMESPACE
from fleetbus.clusters.membership import NotJoined, join, unjoin
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process import printer
from fleetbus_cli.bootstrap.remove import (
    Removed,
    is_bootstrapped,
    removal_commands,
    unjoin_and_remove,
)
from fleetbus_cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus_cli.unknown import unknown_cluster

Admin = tuple[pathlib.Path, str]
"""The values of --file and --context."""


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
    """Join a cluster; return the exit status.

    Raises:
        ConfigError: an option is invalid, or the cluster cannot join.
    """
    config = read_kube_config(file, context)
    pairs = dict(map(label_pair, labels))

    async def work(client: KubeClient) -> str:
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
        return f"cluster {name} joined the fleet\n{_next_steps(name, watcher)}"

    watcher = f"fleetbus-watcher --cluster {name} --kubeconfig {file}"
    watcher += f" --context {context}" if context else ""
    return _on_hub(hub, work)


def _next_steps(name: str, watcher: str) -> str:
    steps = (
        ("fleetbus clusters", "shows whether its watcher is connected"),
        (f"fleetbus get pods --cluster {name}", "shows what runs there"),
        (f"fleetbus unjoin {name}", "removes it again; its objects stay"),
    )
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:<{width}}   {effect}" for command, effect in steps]
    return "\n".join(
        [f"  {watcher}", f"  {'':<{width}}   watches it, with FLEETBUS_NATS_URL set", *lines]
    )


def unjoin_cluster(name: str, *, hub: Hub, namespace: str, admin: Admin | None) -> int:
    """Unjoin a cluster; return the exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: an option is invalid, or the cluster cannot be removed.
    """
    config = read_kube_config(*admin) if admin else None

    async def work(client: KubeClient) -> str:
        try:
            if config is not None:
                return _removed(
                    name, await unjoin_and_remove(client, name, config, namespace=namespace)
                )
            has_accounts = await is_bootstrapped(client, name)
            await unjoin(client, name, namespace=namespace)
        except NotJoined as e:
            names = [cluster["metadata"]["name"] for cluster in await client.list(CLUSTERS)]
            raise unknown_cluster(name, names) from e
        return f"{_left(name)}{_how_to_remove(name) if has_accounts else ''}"

    return _on_hub(hub, work)


def _left(name: str) -> str:
    return f"cluster {name} left the fleet; its objects stay there"


def _removed(name: str, removed: Removed) -> str:
    lines = [_left(name), *(f"  deleted on it: {place}" for place in removed.on_member)]
    if removed.kept:
        lines.append(f"  kept: namespace {NAMESPACE}, because {removed.kept}")
    return "\n".join(lines)


def _how_to_remove(name: str) -> str:
    """The accounts keep their tokens until these expire."""
    lines = [f"  {command}" for command in removal_commands()]
    return (
        f"\nthe accounts of fleetbus are still on {name}; remove them with an administrator's"
        f" kubeconfig:\n  fleetbus unjoin {name} --file FILE\nor, with kubectl:\n"
        + "\n".join(lines)
    )


def _on_hub(hub: Hub, work: Callable[[KubeClient], Awaitable[str]]) -> int:
    config = resolve_hub(hub)

    async def main() -> int:
        async with KubeClient(config) as client:
            printer.block(await work(client))
        return 0

    return run_on_hub(main())


def label_pair(label: str) -> tuple[str, str]:
    """Parse a label.

    Raises:
        ConfigError: it is not key=value.
    """
    key, separator, value = label.partition("=")
    if not key or not separator:
        raise ConfigError(f"--label {label!r} is not key=value")
    return key, value
