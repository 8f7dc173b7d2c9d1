"""Objects for the simulated controllers, and what tests ask of them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Cluster

JsonObject = dict[str, Any]
DEPLOYMENTS = "apps/v1/deployments"
REPLICA_SETS = "apps/v1/replicasets"
STATEFUL_SETS = "apps/v1/statefulsets"
DAEMON_SETS = "apps/v1/daemonsets"
JOBS = "batch/v1/jobs"
PODS = "v1/pods"
NAMESPACES = "v1/namespaces"
CONFIG_MAPS = "v1/configmaps"
EVENTS = "v1/events"
NODES = "v1/nodes"


def pod_spec(image: str = "nginx:1", **spec: Any) -> JsonObject:
    return {"containers": [{"name": "main", "image": image}], **spec}


def pod(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    meta: JsonObject = {"name": name, "annotations": annotations or {}}
    return {"metadata": meta, "spec": pod_spec(**spec)}


def workload(
    name: str, *, image: str = "nginx:1", annotations: dict[str, str] | None = None, **spec: Any
) -> JsonObject:
    """A Deployment, ReplicaSet, StatefulSet or DaemonSet."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(image)}
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def job(
    name: str, *, annotations: dict[str, str] | None = None, restart: str = "Never", **spec: Any
) -> JsonObject:
    template = {"spec": pod_spec("busybox:1", restartPolicy=restart)}
    meta: JsonObject = {"name": name, "annotations": annotations or {}}
    return {"metadata": meta, "spec": {"template": template, **spec}}


def owned(name: str, *owners: JsonObject, blocking: bool = False) -> JsonObject:
    """A ConfigMap with these owners."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocking,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}, "data": {}}


def live(cluster: Cluster, gvr: str, name: str, namespace: str = "default") -> JsonObject:
    """The object, which must exist."""
    obj = cluster.get(gvr, namespace, name)
    assert obj is not None, f"{gvr} {namespace}/{name} does not exist"
    return obj


def names(cluster: Cluster, gvr: str, namespace: str = "default") -> list[str]:
    return [obj["metadata"]["name"] for obj in cluster.list(gvr, namespace)]


def conditions(obj: JsonObject) -> dict[str, tuple[str, str]]:
    """Status and reason by type."""
    listed = obj.get("status", {}).get("conditions", [])
    return {c["type"]: (c["status"], c.get("reason", "")) for c in listed}


def replicas(cluster: Cluster, name: str) -> dict[str, int]:
    """The counters in a Deployment's status."""
    status = live(cluster, DEPLOYMENTS, name)["status"]
    return {key: n for key, n in status.items() if key.endswith("eplicas")}


def reasons(cluster: Cluster, name: str, namespace: str = "default") -> list[str]:
    """The reasons of an object's Events, sorted."""
    events = (e for e in cluster.list(EVENTS, namespace) if e["involvedObject"]["name"] == name)
    return sorted(event["reason"] for event in events)
