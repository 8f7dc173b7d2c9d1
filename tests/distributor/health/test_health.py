"""The health of one object, from its status (rule D21)."""

from __future__ import annotations

from typing import Any

from fleetbus_distributor.health.health import health_of
from fleetbus_distributor.health.result import HealthState
from support.rows import each_row

H, P, D = HealthState.HEALTHY, HealthState.PROGRESSING, HealthState.DEGRADED
GROUPS = {
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "Namespace": "v1",
    "PersistentVolumeClaim": "v1",
    "Ingress": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "Database": "example.org/v1",
}


def made(kind: str, status: Any, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GROUPS.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": {"name": "x", "generation": 2},
        "spec": spec,
        "status": status,
    }


def having(*conditions: str, **more: Any) -> dict[str, Any]:
    """A status with conditions like `Ready=False:Reason`."""
    parts = [condition.replace(":", "=").split("=") for condition in conditions]
    return {
        "conditions": [
            {"type": kind, "status": status, **({"reason": reason[0]} if reason else {})}
            for kind, status, *reason in parts
        ],
        **more,
    }


DONE = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
READY = {"observedGeneration": 2, "readyReplicas": 1}
ROLLED = {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2}
NEXT = {"currentRevision": "a", "updateRevision": "b"}
ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
PARTITION = {"updateStrategy": {"rollingUpdate": {"partition": 1}}, "replicas": 2}


def waiting(reason: str, of: str = "containerStatuses") -> dict[str, Any]:
    return {of: [{"state": {"waiting": {"reason": reason}}}]}


CRASHED = {"containerStatuses": [{"lastState": {"terminated": {"exitCode": 1, "reason": "OOM"}}}]}
ADDRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
CASES: list[tuple[dict[str, Any], HealthState, str]] = [
    (made("ConfigMap", {}), H, ""),
    (made("CronJob", {}, suspend=True), H, ""),
    (made("Ingress", {"loadBalancer": {}}), H, ""),
    (made("Deployment", DONE), H, ""),
    (made("Deployment", DONE, replicas=0), H, ""),
    (made("Deployment", {}), P, "NotObserved"),
    (made("Deployment", DONE | {"observedGeneration": 1}), P, "NotObserved"),
    (made("Deployment", DONE | {"availableReplicas": 0}), P, "Replicas"),
    (made("Deployment", DONE | {"replicas": 2}), P, "Replicas"),
    (made("Deployment", DONE, replicas=3), P, "Replicas"),
    (made("Deployment", DONE, replicas=3, paused=True), P, "Paused"),
    (made("Deployment", DONE, paused=True), H, ""),
    (
        made("Deployment", DONE | having("Progressing=False:ProgressDeadlineExceeded")),
        D,
        "ProgressDeadlineExceeded",
    ),
    (
        made("Deployment", DONE | having("ReplicaFailure=True:FailedCreate"), replicas=2),
        P,
        "FailedCreate",
    ),
    (made("ReplicaSet", DONE), H, ""),
    (made("ReplicaSet", DONE, replicas=2), P, "Replicas"),
    (made("ReplicaSet", DONE | having("ReplicaFailure=True:FailedCreate")), D, "FailedCreate"),
    (made("StatefulSet", READY), H, ""),
    (made("StatefulSet", READY | {"readyReplicas": 0}), P, "Replicas"),
    (made("StatefulSet", READY, minReadySeconds=5), P, "Replicas"),
    (made("StatefulSet", READY | NEXT), P, "Replicas"),
    (made("StatefulSet", READY | NEXT | {"updatedReplicas": 1}), P, "Replicas"),
    (made("StatefulSet", READY | NEXT, **ON_DELETE), H, ""),
    (
        made("StatefulSet", READY | NEXT | {"readyReplicas": 2, "updatedReplicas": 1}, **PARTITION),
        H,
        "",
    ),
    (made("StatefulSet", READY | NEXT | {"readyReplicas": 2}, **PARTITION), P, "Replicas"),
    (made("DaemonSet", ROLLED | {"numberAvailable": 2}), H, ""),
    (made("DaemonSet", ROLLED | {"numberAvailable": 1}), P, "Replicas"),
    (
        made("DaemonSet", ROLLED | {"updatedNumberScheduled": 1, "numberAvailable": 2}),
        P,
        "Replicas",
    ),
    (
        made(
            "DaemonSet", ROLLED | {"updatedNumberScheduled": 1, "numberAvailable": 2}, **ON_DELETE
        ),
        H,
        "",
    ),
    (made("Job", having("Complete=True")), H, ""),
    (made("Job", having("Failed=True:BackoffLimitExceeded")), D, "BackoffLimitExceeded"),
    (made("Job", having("FailureTarget=True")), D, "FailureTarget"),
    (made("Job", {}), P, "Running"),
    (made("Job", {}, suspend=True), P, "Suspended"),
    (made("Pod", having("Ready=True", phase="Running")), H, ""),
    (made("Pod", {"phase": "Running"}), P, "NotReady"),
    (made("Pod", {"phase": "Running"} | CRASHED), D, "OOM"),
    (made("Pod", having("Ready=True", phase="Running") | CRASHED), H, ""),
    (made("Pod", {"phase": "Succeeded"}), H, ""),
    (made("Pod", {"phase": "Failed", "reason": "Evicted"}), D, "Evicted"),
    (made("Pod", {"phase": "Pending"} | waiting("ImagePullBackOff")), D, "ImagePullBackOff"),
    (
        made("Pod", {"phase": "Pending"} | waiting("CreateContainerConfigError")),
        D,
        "CreateContainerConfigError",
    ),
    (
        made("Pod", {"phase": "Pending"} | waiting("ErrImagePull", "initContainerStatuses")),
        D,
        "ErrImagePull",
    ),
    (made("Pod", {"phase": "Pending"} | waiting("ContainerCreating")), P, "NotReady"),
    (
        made("Pod", having("PodScheduled=False:Unschedulable", phase="Pending")),
        P,
        "Unschedulable",
    ),
    (made("PersistentVolumeClaim", {"phase": "Bound"}), H, ""),
    (made("PersistentVolumeClaim", {"phase": "Pending"}), P, "Pending"),
    (made("PersistentVolumeClaim", {"phase": "Lost"}), D, "Lost"),
    (made("Service", {"loadBalancer": {}}), H, ""),
    (made("Service", {"loadBalancer": {}}, type="LoadBalancer"), P, "NoAddress"),
    (made("Service", ADDRESS, type="LoadBalancer"), H, ""),
    (made("Namespace", {"phase": "Active"}), H, ""),
    (made("Namespace", {"phase": "Terminating"}), P, "Terminating"),
    (made("PodDisruptionBudget", {"observedGeneration": 2, "desiredHealthy": 1}), P, "Pods"),
    (made("CustomResourceDefinition", {}), P, "NotEstablished"),
    (made("CustomResourceDefinition", having("Established=True")), H, ""),
    (
        made("CustomResourceDefinition", having("NamesAccepted=False:PluralConflict")),
        D,
        "PluralConflict",
    ),
    # Custom resources, by the conditions that controllers have in common.
    (made("Database", {}), H, ""),
    (made("Database", {"observedGeneration": 1}), P, "NotObserved"),
    (made("Database", having("Ready=False:Restoring")), P, "Restoring"),
    (made("Database", having("Ready=Unknown")), P, "NotReady"),
    (made("Database", having("Ready=True")), H, ""),
    (made("Database", having("Available=False")), P, "NotAvailable"),
    (made("Database", having("Ready=True", "Reconciling=True:Upgrade")), P, "Upgrade"),
    (made("Database", having("Reconciling=True", "Stalled=True:NoQuota")), D, "NoQuota"),
    (
        made(
            "Database",
            {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]},
        ),
        P,
        "NotObserved",
    ),
]


@each_row(("obj", "state", "reason"), CASES)
def test_the_health_of_a_kind_is_that_of_kubectl_and_argo_cd(
    obj: dict[str, Any], state: HealthState, reason: str
):
    health = health_of(obj)
    assert (health.state, health.reason) == (state, reason)
    assert bool(health.message) == (state is not H)


def test_what_is_being_deleted_is_not_healthy():
    obj = made("ConfigMap", {})
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert health_of(obj).reason == "Terminating"


@each_row("kind", [*GROUPS, "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"])
@each_row(
    "status",
    [
        None,
        "broken",
        ["a"],
        {"conditions": "none"},
        {"conditions": [None, 3, {"type": 1}], "observedGeneration": "x", "replicas": []},
        {"containerStatuses": [{"state": {"waiting": 3}}, 4], "loadBalancer": [1], "phase": {}},
    ],
)
def test_a_malformed_status_is_no_error(kind: str, status: Any):
    """A custom resource that keeps unknown fields may have anything there."""
    assert health_of(made(kind, status)).state in (H, P)
    assert health_of({"kind": kind, "apiVersion": GROUPS.get(kind, 3), "spec": "x"})
