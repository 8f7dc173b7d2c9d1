"""Providers that read Secrets and other objects of a hub: their sets, and Secrets for them."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from fleetbus.kube.connection.config import server_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fleetbus.clusters.info import ClusterInfo, Provider
    from fleetbus.clusters.registry import Clusters

OURS = {"fleetbus.dev/kubeconfig": "true"}
THEIRS = {"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"}
ARGO = {"argocd.argoproj.io/secret-type": "cluster"}


class Sets:
    """The sets of clusters that a provider yields, one after the other."""

    def __init__(self, sets: AsyncGenerator[list[ClusterInfo]]) -> None:
        self._sets = sets

    async def next(self) -> list[ClusterInfo]:
        async with asyncio.timeout(10):
            return await anext(self._sets)


@asynccontextmanager
async def following(clusters: Clusters) -> AsyncGenerator[None]:
    """Run a registry; that it ends by itself is a failure."""
    task = asyncio.create_task(clusters.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def telling(provider: Provider) -> AsyncGenerator[Sets]:
    async with aclosing(provider.cluster_sets()) as sets:
        yield Sets(sets)


def kubeconfig(server: str = "https://one", **user: Any) -> str:
    return json.dumps(
        {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": server}}],
            "users": [{"name": "a", "user": user}],
        }
    )


def secret(
    name: str, labels: dict[str, str], namespace: str = "default", /, **data: str
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def servers_of(infos: list[ClusterInfo]) -> dict[str, str]:
    return {i.name: server_of(i.config) if i.config else f"! {i.problem}" for i in infos}
