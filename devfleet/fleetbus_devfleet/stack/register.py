"""Make emulated clusters members of a fleet: what `fleetbus join` would write on the hub."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.clusters.membership import JOINED_LABEL, KUBECONFIG_LABELS
from fleetbus.errors import NotFound
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_cli.bootstrap.options import RELEASE
from fleetbus_devfleet.stack.plan import PlanError

if TYPE_CHECKING:
    from fleetbus_devfleet.stack.plan import ClusterPlan, StackPlan

_FIELD_MANAGER = "fleetbus-devfleet"
_ESTABLISH_PATIENCE = timedelta(seconds=10)
_POLL = 0.05
_CRDS = Path(__file__).parents[1] / "crds"
# A link to those of the chart, whose content is in the wheel.


async def register_clusters(plan: StackPlan) -> None:
    """Install the CRDs on the hub and write a Cluster, and what it takes to reach it, for each.

    The hub's services get a kubeconfig of their own; of clusters behind agents they get none.

    Raises:
        PlanError: the CRDs of fleetbus are not beside this package.
        KubeError: the hub refused something.
    """
    kubeconfig = _document(plan.layout.kubeconfig)
    crds = read_crds()
    async with KubeClient(read_kube_config(plan.layout.kubeconfig, plan.hub)) as hub:
        for crd in crds:
            await _apply(hub, "apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        for namespace in (
            NAMESPACE,
            RELEASE,
        ):  # the second so that `fleetbus join --bootstrap` works
            await _apply(hub, "v1/namespaces", _namespace(namespace))
        for cluster in plan.clusters:
            if not cluster.behind_agent:
                await _apply(hub, "v1/secrets", _secret(cluster, kubeconfig))
            await _apply(hub, "fleetbus.dev/v1alpha1/clusters", _cluster(cluster))
    _write(plan.layout.hub_kubeconfig, only_context(kubeconfig, plan.hub))


def read_crds() -> list[dict[str, Any]]:
    """The custom resources of fleetbus, from the chart.

    Raises:
        PlanError: there are none.
    """
    documents = [
        document
        for path in sorted(_CRDS.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document
    ]
    if not documents:
        raise PlanError(f"{_CRDS}: no CRDs here; this installation is not whole")
    return cast("list[dict[str, Any]]", documents)


async def _apply(hub: KubeClient, resource: str, obj: dict[str, Any]) -> None:
    """Apply an object; a type whose CRD was written a moment ago may not be served yet."""
    deadline = time.monotonic() + _ESTABLISH_PATIENCE.total_seconds()
    while True:
        try:
            await hub.apply(resource, obj, field_manager=_FIELD_MANAGER, force=True)
        except NotFound:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_POLL)
        else:
            return


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _secret(cluster: ClusterPlan, kubeconfig: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": _secret_name(cluster),
            "namespace": NAMESPACE,
            "labels": {**KUBECONFIG_LABELS, JOINED_LABEL: cluster.name},
        },
        "stringData": {"kubeconfig": yaml.safe_dump(only_context(kubeconfig, cluster.name))},
    }


def _cluster(cluster: ClusterPlan) -> dict[str, Any]:
    reference = {"namespace": NAMESPACE, "name": _secret_name(cluster)}
    spec = {"access": "Agent"} if cluster.behind_agent else {"kubeconfigSecretRef": reference}
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": cluster.name, "labels": dict(cluster.labels)},
        "spec": spec,
    }


def _secret_name(cluster: ClusterPlan) -> str:
    return f"{cluster.name}-kubeconfig"


def only_context(kubeconfig: dict[str, Any], context: str) -> dict[str, Any]:
    """The part of a kubeconfig that one context needs."""
    chosen = next(entry for entry in kubeconfig["contexts"] if entry["name"] == context)
    keep = {
        "contexts": context,
        "clusters": chosen["context"]["cluster"],
        "users": chosen["context"].get("user"),
    }
    entries = cast("dict[str, list[dict[str, Any]]]", kubeconfig)
    sections = {
        section: [entry for entry in entries.get(section) or [] if entry["name"] == name]
        for section, name in keep.items()
    }
    return {"apiVersion": "v1", "kind": "Config", "current-context": context, **sections}


def _document(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", yaml.safe_load(path.read_text(encoding="utf-8")))


def _write(path: Path, kubeconfig: dict[str, Any]) -> None:
    """Write a kubeconfig, whole or not at all, for its owner only: services wait for it."""
    temporary = path.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(kubeconfig), encoding="utf-8")
    temporary.replace(path)
