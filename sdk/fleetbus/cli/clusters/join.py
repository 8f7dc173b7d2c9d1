"""Runs `fleetbus join` and `unjoin`, which write to the hub."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Sequence

from fleetbus.cli.hub import Hub, resolve_hub, run_on_hub
from fleetbus.cli.unknown import unknown_cluster
from fleetbus.clusters.membership import NotJoined, join, unjoin
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config


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

    watcher = f"fleetbus-watcher --cluster {name} --kubeconfig {file}"
    watcher += f" --context {context}" if context else ""
    return _on_hub(hub, work, f"cluster {name} joined the fleet\n{_next_steps(name, watcher)}")


def _next_steps(name: str, watcher: str) -> str:
    return (
        f"  {watcher}\n"
        f"                                  watches it, with FLEETBUS_NATS_URL set\n"
        f"  fleetbus clusters               shows whether its watcher is connected\n"
        f"  fleetbus get pods -c {name:<10} shows what runs there\n"
        f"  fleetbus unjoin {name:<15} removes it again; its objects stay"
    )


def unjoin_cluster(name: str, *, hub: Hub, namespace: str) -> int:
    """Unjoin a cluster; return the exit status.

    Raises:
        UnknownName: it is not in the fleet.
        ConfigError: an option is invalid, or the cluster cannot be removed.
    """

    async def work(client: KubeClient) -> None:
        try:
            await unjoin(client, name, namespace=namespace)
        except NotJoined as e:
            names = [cluster["metadata"]["name"] for cluster in await client.list(CLUSTERS)]
            raise unknown_cluster(name, names) from e

    return _on_hub(hub, work, f"cluster {name} left the fleet; its objects stay there")


def _on_hub(given: Hub, work: Callable[[KubeClient], Awaitable[None]], done: str) -> int:
    config = resolve_hub(given)

    async def main() -> int:
        async with KubeClient(config) as client:
            await work(client)
        print(done)
        return 0

    return run_on_hub(main())


def _pair(label: str) -> tuple[str, str]:
    key, found, value = label.partition("=")
    if not key or not found:
        raise ConfigError(f"--label {label!r} is not key=value")
    return key, value
