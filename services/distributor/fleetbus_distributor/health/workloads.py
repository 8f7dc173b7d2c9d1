"""Tells the health of workloads, as `kubectl rollout status` and Argo CD do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fleetbus.kube.json_fields import condition, first_maps, mapping, number, string
from fleetbus_distributor.health.fields import Tree, is_observed, is_true
from fleetbus_distributor.health.pod_failures import is_stuck
from fleetbus_distributor.health.result import (
    HEALTHY,
    NOT_OBSERVED,
    Health,
    HealthState,
    degraded,
    from_condition,
    progressing,
)

_FAILED: Final = HealthState.DEGRADED


def deployment(obj: Tree, status: Tree) -> Health:
    """All replicas are of the newest template, and available."""
    if not is_observed(obj):
        return NOT_OBSERVED
    late = condition(status, "Progressing")
    if late.get("reason") == "ProgressDeadlineExceeded":
        return degraded("ProgressDeadlineExceeded", "its rollout has made no progress for too long")
    replicas = _replicas(obj)
    surplus = number(status, "replicas") - number(status, "updatedReplicas")
    old = progressing("Replicas", f"{surplus} old replicas remain") if surplus > 0 else None
    late_replicas = (
        _few(status, "updatedReplicas", replicas, "replicas are updated")
        or old
        or _few(status, "availableReplicas", replicas, "replicas are available")
    )
    if late_replicas is None:
        return HEALTHY
    if mapping(obj, "spec").get("paused") is True:
        return progressing("Paused", "it is paused (spec.paused)")
    return _not_created(status) or late_replicas


def replica_set(obj: Tree, status: Tree) -> Health:
    """All replicas are available."""
    if not is_observed(obj):
        return NOT_OBSERVED
    if is_true(status, "ReplicaFailure"):
        failure = condition(status, "ReplicaFailure")
        return from_condition(_FAILED, failure, "ReplicaFailure", "its pods cannot be created")
    few = _few(status, "availableReplicas", _replicas(obj), "replicas are available")
    return few or HEALTHY


def stateful_set(obj: Tree, status: Tree) -> Health:
    """All replicas are ready, and as many as its strategy replaces are of the newest template."""
    if not is_observed(obj):
        return NOT_OBSERVED
    replicas = _replicas(obj)
    spec = mapping(obj, "spec")
    ready = "availableReplicas" if number(spec, "minReadySeconds") else "readyReplicas"
    return (
        _few(status, ready, replicas, "replicas are ready")
        or _old_revision(mapping(spec, "updateStrategy"), status, replicas)
        or HEALTHY
    )


def _old_revision(strategy: Tree, status: Tree, replicas: int) -> Health | None:
    is_same = status.get("currentRevision") == status.get("updateRevision")
    if strategy.get("type") == "OnDelete" or is_same:
        return None
    partition = number(strategy, "rollingUpdate", "partition")
    if partition:
        return _few(status, "updatedReplicas", max(0, replicas - partition), "replicas are updated")
    updated = number(status, "updatedReplicas")
    return progressing("Replicas", f"{updated} of {replicas} replicas are updated")


def daemon_set(obj: Tree, status: Tree) -> Health:
    """Its pods are of the newest template, and available."""
    if not is_observed(obj):
        return NOT_OBSERVED
    pods = number(status, "desiredNumberScheduled")
    strategy = mapping(obj, "spec", "updateStrategy")
    updated = 0 if strategy.get("type") == "OnDelete" else pods
    return (
        _few(status, "updatedNumberScheduled", updated, "pods are updated")
        or _few(status, "numberAvailable", pods, "pods are available")
        or HEALTHY
    )


def job(obj: Tree, status: Tree) -> Health:
    """It is complete."""
    if is_true(status, "Failed"):
        return from_condition(_FAILED, condition(status, "Failed"), "Failed", "it has failed")
    if is_true(status, "FailureTarget"):
        target = condition(status, "FailureTarget")
        return from_condition(_FAILED, target, "FailureTarget", "it is failing")
    if is_true(status, "Complete"):
        return HEALTHY
    if mapping(obj, "spec").get("suspend") is True:
        return progressing("Suspended", "it is suspended (spec.suspend)")
    return progressing("Running", "it is not complete")


def pod(_obj: Tree, status: Tree) -> Health:
    """It is ready, or has succeeded."""
    phase = string(status, "phase")
    if phase == "Succeeded":
        return HEALTHY
    if phase == "Failed":
        reason = string(status, "reason") or next(_terminated(status, "state"), "") or "Failed"
        return degraded(reason, "it has failed")
    if stuck := next((reason for reason in _waiting(status) if is_stuck(reason)), ""):
        return degraded(stuck, f"a container waits: {stuck}")
    if phase == "Running" and is_true(status, "Ready"):
        return HEALTHY
    return _not_ready(status)


def _not_ready(status: Tree) -> Health:
    crashed = next(_terminated(status, "lastState"), "")
    if status.get("phase") == "Running" and crashed:
        return degraded(crashed, f"a container was restarted: {crashed}")
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        state = HealthState.PROGRESSING
        return from_condition(state, scheduled, "Unschedulable", "it is not scheduled")
    return progressing("NotReady", "it is not ready")


def _containers(status: Tree) -> list[dict[str, Any]]:
    names = ("initContainerStatuses", "containerStatuses")
    return [container for name in names for container in first_maps(status, name)]


def _waiting(status: Tree) -> Iterator[str]:
    for container in _containers(status):
        yield string(container, "state", "waiting", "reason")


def _terminated(status: Tree, state: str) -> Iterator[str]:
    """Reasons why containers have ended, other than by success."""
    for container in first_maps(status, "containerStatuses"):
        terminated = mapping(container, state, "terminated")
        if terminated and number(terminated, "exitCode") != 0:
            yield string(terminated, "reason") or "Error"


def _not_created(status: Tree) -> Health | None:
    """Why a Deployment has too few pods: a quota, or a webhook that refuses them."""
    if not is_true(status, "ReplicaFailure"):
        return None
    failure = condition(status, "ReplicaFailure")
    state = HealthState.PROGRESSING
    return from_condition(state, failure, "ReplicaFailure", "its pods cannot be created")


def _replicas(obj: Tree) -> int:
    return number(obj, "spec", "replicas", default=1)


def _few(status: Tree, field: str, expected: int, noun: str) -> Health | None:
    actual = number(status, field)
    return None if actual >= expected else progressing("Replicas", f"{actual} of {expected} {noun}")
