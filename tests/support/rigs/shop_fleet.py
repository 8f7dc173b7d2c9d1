"""A development fleet of real processes with a small shop in every cluster, for pictures and walks.

One cluster lags behind with an image, one has a setting of its own, one does not answer; a rollout
waits for a vote. Everything is what `make up` starts: watchers, NATS, the store and the services.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from support.processes.programs import installed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

MEMBERS = ("eu1", "us1", "ap1", "eu2", "us2", "ap2", "eu3")
APPS = {"web": "nginx:1.27", "checkout": "checkout:1.8.1", "search": "search:4.2", "cart": "cart:3"}
DEPLOYMENTS = "apps/v1/deployments"
MCRS = "fleetbus.dev/v1alpha1/multiclusterresources"
NAMESPACE = "shop"
IMAGE = "/spec/template/spec/containers/0/image"


@dataclass
class ShopFleet:
    """A fleet that runs.

    Attributes:
        url: of the page.
        clients: by cluster.
    """

    folder: Path
    url: str
    clients: dict[str, KubeClient]

    async def fleetbus(self, *words: str) -> str:
        """Run a command in the folder of the fleet; its output.

        Raises:
            AssertionError: it failed.
        """
        process = await asyncio.create_subprocess_exec(
            *installed("fleetbus", *words),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, (words, out.decode(), err.decode())
        return out.decode()

    async def fill(self) -> None:
        """Put the shop into every member, and a rollout onto the hub."""
        for cluster in MEMBERS:
            client = self.clients[cluster]
            space = {"metadata": {"name": NAMESPACE, "labels": {"team": "shop"}}}
            await client.create("v1/namespaces", space)
            for name, image in APPS.items():
                await client.create(DEPLOYMENTS, deployment(name, image))
            settings = {"colour": "blue", "currency": "EUR", "timeout": "5s"}
            if cluster == "ap1":
                settings["timeout"] = "30s"
            tree = {"metadata": {"name": "settings", "namespace": NAMESPACE}, "data": settings}
            await client.create("v1/configmaps", tree)
        await self.clients["hub"].create(MCRS, rollout())

    async def change(self) -> None:
        """Deploy a new version everywhere but in two clusters, and delete something in one."""
        new = [{"op": "replace", "path": IMAGE, "value": "checkout:1.8.2"}]
        for cluster in MEMBERS:
            if cluster not in {"us2", "eu3"}:
                await self.clients[cluster].patch(DEPLOYMENTS, NAMESPACE, "checkout", new)
        await self.clients["us1"].delete("v1/configmaps", NAMESPACE, "settings")

    async def cut_off(self, cluster: str) -> None:
        """Let a cluster not answer any more."""
        await self.fleetbus("dev", "fault", "partition", cluster)


def deployment(name: str, image: str) -> dict[str, Any]:
    """A Deployment of the shop."""
    labels = {"app": name, "team": "shop"}
    containers = [{"name": name, "image": image, "ports": [{"containerPort": 8080}]}]
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def rollout() -> dict[str, Any]:
    """A MultiClusterResource whose last wave waits for a vote."""
    template = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment("banner", "banner:2.1")}
    waves = [
        {"name": "canary", "clusters": [{"name": "eu1"}]},
        {"name": "europe", "clusterSelector": {"matchLabels": {"region": "eu"}}},
        {"name": "rest", "percent": 100, "gates": [{"name": "approval"}]},
    ]
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": "banner", "namespace": "default"},
        "spec": {
            "placement": {"clusterSelector": {"matchLabels": {"role": "member"}}},
            "rollout": {"waves": waves},
            "templates": [template],
        },
    }


@asynccontextmanager
async def shop_fleet(folder: Path) -> AsyncGenerator[ShopFleet]:
    """Start the fleet in a folder; it is stopped at the end."""
    fleet = ShopFleet(folder, "", {})
    await fleet.fleetbus("dev", "up", "--clusters", str(len(MEMBERS) + 1))
    try:
        environment = json.loads(await fleet.fleetbus("dev", "env", "-o", "json"))
        fleet.url = environment["FLEETBUS_API_URL"]
        async with AsyncExitStack() as exits:
            for name in ("hub", *MEMBERS):
                config = read_kube_config(environment["KUBECONFIG"], name)
                fleet.clients[name] = await exits.enter_async_context(KubeClient(config))
            yield fleet
    finally:
        await fleet.fleetbus("dev", "down")
