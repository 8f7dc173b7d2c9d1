"""A fleet of two emulated clusters behind the query API, and kubectl before both."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from emulator.support.kubectl_rig import Kubectl
from fleetbus_emulator.controllers import simulate
from support.eventually import eventually
from support.full import FULL
from support.processes.kubectls import chosen, kubectls
from support.rigs.fleet import Rig, fleet_rig
from support.rigs.query_api import served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

RESOURCES = (
    "v1/configmaps",
    "v1/events",
    "v1/namespaces",
    "v1/nodes",
    "v1/pods",
    "v1/services",
    "apps/v1/deployments",
    "apps/v1/replicasets",
    "coordination.k8s.io/v1/leases",
    "apiextensions.k8s.io/v1/customresourcedefinitions",
    "example.com/v1/widgets",
)
DEPLOYMENT: dict[str, Any] = {
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
        },
    },
}
WIDGETS: dict[str, Any] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "shortNames": ["wd"],
            "categories": ["all"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Colour", "type": "string", "jsonPath": ".spec.colour", "priority": 1},
                    {
                        "name": "Age",
                        "type": "date",
                        "jsonPath": ".metadata.creationTimestamp",
                    },
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "description": "What is wanted.",
                                "properties": {
                                    "size": {"type": "integer"},
                                    "colour": {"type": "string"},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@dataclass
class KubectlFleet:
    """The clusters `a` and `b`, and one kubectl before each server.

    Attributes:
        rig: the fleet, whose services run in this process.
        real: kubectl before the cluster `a` itself.
        one: kubectl before `/kube/a`.
        every: kubectl before `/kube/-`.
    """

    rig: Rig
    url: str
    real: Kubectl
    one: Kubectl
    every: Kubectl


@pytest.fixture(params=(list(kubectls()) if FULL else chosen()) or ["none"])
async def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, nats_url: str, valkey_url: str
) -> AsyncGenerator[KubectlFleet]:
    """Two clusters with the same Deployment, a Service, ConfigMaps and widgets in `default`."""
    version: str = request.param
    if version not in kubectls():
        pytest.skip("no kubectl is installed")
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(
            fleet_rig(
                "a",
                "b",
                folder=tmp_path,
                nats_url=nats_url,
                valkey_url=valkey_url,
                resources=RESOURCES,
            )
        )
        simulators = await stack.enter_async_context(simulate(list(rig.clusters.values()), seed=1))
        for name, cluster in rig.clusters.items():
            _fill(name, cluster)
        for simulator in simulators:
            await simulator.settled()
        rig.start_reconciler()
        for name in rig.clusters:
            rig.start_watcher(name)
        url = await stack.enter_async_context(served(valkey_url, tmp_path))
        keys = [f"core/{r[3:]}" if r.startswith("v1/") else r.replace("/v1", "") for r in RESOURCES]
        await rig.synced(*keys)
        await eventually(lambda: _knows_widgets(rig))
        real = _kubectl(version, tmp_path / "real", rig, rig.kubeconfig.read_text(), "a")
        single, every = (
            _kubectl(version, tmp_path / f"fleet{place}", rig, _kubeconfig(f"{url}/kube/{place}"))
            for place in ("a", "-")
        )
        yield KubectlFleet(rig, url, real, single, every)


async def _knows_widgets(rig: Rig) -> bool:
    """Whether the names and columns of widgets have come with a heartbeat, of every cluster."""
    for name in rig.clusters:
        records = await rig.reader.resources(name, group="example.com")
        if not all(record.definition for record in records):
            return False
    return True


def _fill(name: str, cluster: Any) -> None:
    cluster.create("apps/v1/deployments", DEPLOYMENT, "default")
    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
    cluster.create("v1/services", service, "default")
    for number in range(5):
        settings = {"metadata": {"name": f"c{number}", "labels": {"n": str(number)}}}
        cluster.create("v1/configmaps", {**settings, "data": {"of": name}}, "default")
    cluster.create("v1/configmaps", {"metadata": {"name": f"only-{name}"}}, "default")
    cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS)
    for number, colour in ((1, "red"), (2, "blue")):
        widget = {"metadata": {"name": f"w{number}"}, "spec": {"size": number, "colour": colour}}
        cluster.create("example.com/v1/widgets", widget, "default")


def _kubectl(version: str, folder: Path, rig: Rig, kubeconfig: str, context: str = "") -> Kubectl:
    folder.mkdir()
    document = yaml.safe_load(kubeconfig)
    (folder / "kubeconfig").write_text(
        yaml.safe_dump({**document, "current-context": context or document["current-context"]})
    )
    return Kubectl(kubectls()[version], version, folder, rig.clusters["a"])


def _kubeconfig(server: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fleet", "cluster": {"server": server}}],
            "contexts": [{"name": "fleet", "context": {"cluster": "fleet"}}],
            "current-context": "fleet",
        }
    )
