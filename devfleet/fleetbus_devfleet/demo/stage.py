"""The collaborators of every scene of the demo, and the manifests of its shop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.demo.census import HUB_NAMESPACE, NAME, NAMESPACE
from fleetbus_devfleet.demo.narrator import spell

if TYPE_CHECKING:
    from fleetbus.kube.client import KubeClient
    from fleetbus_devfleet.demo.narrator import Narrator
    from fleetbus_devfleet.demo.witness import Witness
    from fleetbus_devfleet.stack.stack import Stack

MANIFEST = Path(__file__).with_name("web.yaml")
WEB = "web"
MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
DEPLOYMENTS = "apps/v1/deployments"
REPLICASETS = "apps/v1/replicasets"
PODS = "v1/pods"
CONFIGMAPS = "v1/configmaps"

CUSTOMIZED = "us1"
IMAGE, NEXT_IMAGE = "nginx:1.28", "nginx:1.29"
IMAGE_PATH = "/spec/template/spec/containers/0/image"
IMAGE_IN_TEMPLATE = f"/spec/template{IMAGE_PATH}"
"""The image in the MultiClusterResource."""
SOON = timedelta(seconds=20)
"""Time limit of every step; a loaded machine is slow, and a lost event never comes."""

_REPLICAS, _CUSTOMIZED_REPLICAS = 2, 3


@dataclass(frozen=True, slots=True)
class Stage:
    """The running stack, its witness and the narrator."""

    stack: Stack
    witness: Witness
    tell: Narrator

    @property
    def hub(self) -> str:
        """The name of the hub."""
        return self.stack.plan.hub

    @property
    def members(self) -> list[str]:
        """The names of the member clusters."""
        return self.stack.plan.names[1:]

    @property
    def on_hub(self) -> KubeClient:
        """The API server of the hub."""
        return self.witness.cluster(self.hub)

    def region_of(self, cluster: str) -> str:
        """The label `region` of a cluster."""
        return next(
            plan.labels["region"] for plan in self.stack.plan.clusters if plan.name == cluster
        )

    async def deployment(self, cluster: str) -> dict[str, Any] | None:
        """The shop's Deployment in a cluster, live."""
        return await self.witness.cluster(cluster).get(DEPLOYMENTS, NAMESPACE, WEB)

    async def census(self) -> dict[str, str]:
        """The ConfigMap that the reconciler wrote to the hub, read live."""
        config_map = await self.on_hub.get(CONFIGMAPS, HUB_NAMESPACE, NAME)
        return {} if config_map is None else dict(config_map.get("data") or {})

    async def order(self, cluster: str, name: str) -> None:
        """Make an order: a ConfigMap."""
        await self.witness.cluster(cluster).create(
            CONFIGMAPS,
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"namespace": NAMESPACE, "name": name, "labels": {"app": "order"}},
                "data": {"item": "book"},
            },
        )

    async def restart(self, part: str) -> None:
        """Start a part that was killed, and tell how long it took to be ready."""
        began = time.monotonic()
        with self.tell.console.status(f"[dim]{part} starts again[/]"):
            await self.stack.restart(part)
        took = timedelta(seconds=time.monotonic() - began)
        self.tell.say(f"{part} is started again, ready after {spell(took)}")


def wanted_replicas(cluster: str) -> int:
    """The replicas that the manifest asks for in a cluster."""
    return _CUSTOMIZED_REPLICAS if cluster == CUSTOMIZED else _REPLICAS


def image_of(deployment: dict[str, Any]) -> str:
    """The image of a Deployment's first container."""
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def replicas_of(deployment: dict[str, Any] | None) -> str:
    """`ready/wanted` of a Deployment; `absent` for none."""
    if deployment is None:
        return "absent"
    ready = deployment.get("status", {}).get("readyReplicas", 0)
    return f"{ready}/{deployment['spec']['replicas']}"
