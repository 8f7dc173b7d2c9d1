"""Tells the health of one object from its status, as `kubectl rollout status` does for workloads.

A kind without a rule is healthy as soon as it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

_STUCK: Final = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"}
)


class HealthState(StrEnum):
    """The health of an object."""

    HEALTHY = "Healthy"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    UNKNOWN = "Unknown"
    MISSING = "Missing"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an object, with the reason for people."""

    state: HealthState
    reason: str = ""
    message: str = ""


HEALTHY: Final = Health(HealthState.HEALTHY)


def health_of(obj: Mapping[str, Any]) -> Health:
    """Tell the health of an object as it was read from its cluster."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    rule = _RULES.get((group, str(obj.get("kind", ""))))
    if rule is None:
        return HEALTHY
    status: dict[str, Any] = obj.get("status") or {}
    return rule(obj, status)


def _progressing(reason: str, message: str) -> Health:
    return Health(HealthState.PROGRESSING, reason, message)


def _is_observed(obj: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    generation = int(obj.get("metadata", {}).get("generation", 0))
    return int(status.get("observedGeneration", 0)) >= generation


def _replicas(obj: Mapping[str, Any]) -> int:
    found: Any = obj.get("spec", {}).get("replicas")
    return 1 if found is None else int(found)


def _count(status: Mapping[str, Any], field: str, wanted: int, what: str) -> Health | None:
    found = int(status.get(field, 0))
    if found >= wanted:
        return None
    return _progressing("Replicas", f"{found} of {wanted} {what}")


_NOT_OBSERVED: Final = _progressing("NotObserved", "its controller has not seen the change yet")


def _deployment(obj: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    if not _is_observed(obj, status):
        return _NOT_OBSERVED
    late = _condition(status, "Progressing")
    if late and late.get("reason") == "ProgressDeadlineExceeded":
        message = "its rollout has made no progress for too long"
        return Health(HealthState.DEGRADED, "ProgressDeadlineExceeded", message)
    wanted = _replicas(obj)
    surplus = int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))
    return (
        _count(status, "updatedReplicas", wanted, "replicas are updated")
        or (_progressing("Replicas", f"{surplus} old replicas remain") if surplus > 0 else None)
        or _count(status, "availableReplicas", wanted, "replicas are available")
        or HEALTHY
    )


def _stateful_set(obj: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    if not _is_observed(obj, status):
        return _NOT_OBSERVED
    wanted = _replicas(obj)
    strategy: dict[str, Any] = obj.get("spec", {}).get("updateStrategy") or {}
    rolling: dict[str, Any] = strategy.get("rollingUpdate") or {}
    partition = int(rolling.get("partition") or 0)
    is_manual = strategy.get("type") == "OnDelete"
    is_same = status.get("currentRevision") == status.get("updateRevision")
    updated = 0 if is_manual or is_same else max(0, wanted - partition)
    return (
        _count(status, "updatedReplicas", updated, "replicas are updated")
        or _count(status, "readyReplicas", wanted, "replicas are ready")
        or HEALTHY
    )


def _daemon_set(obj: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    if not _is_observed(obj, status):
        return _NOT_OBSERVED
    wanted = int(status.get("desiredNumberScheduled", 0))
    strategy: dict[str, Any] = obj.get("spec", {}).get("updateStrategy") or {}
    updated = 0 if strategy.get("type") == "OnDelete" else wanted
    return (
        _count(status, "updatedNumberScheduled", updated, "pods are updated")
        or _count(status, "numberAvailable", wanted, "pods are available")
        or HEALTHY
    )


def _job(_obj: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    failed = _condition(status, "Failed")
    if failed and failed.get("status") == "True":
        return Health(HealthState.DEGRADED, str(failed.get("reason", "Failed")), "it has failed")
    complete = _condition(status, "Complete")
    if complete and complete.get("status") == "True":
        return HEALTHY
    return _progressing("Running", "it is not complete")


def _pod(_obj: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    phase = status.get("phase")
    if phase == "Succeeded":
        return HEALTHY
    if phase == "Failed":
        return Health(HealthState.DEGRADED, str(status.get("reason") or "Failed"), "it has failed")
    for reason in _waiting_reasons(status):
        if reason in _STUCK:
            return Health(HealthState.DEGRADED, reason, f"a container waits: {reason}")
    ready = _condition(status, "Ready")
    if phase == "Running" and ready and ready.get("status") == "True":
        return HEALTHY
    return _progressing("NotReady", "it is not ready")


def _waiting_reasons(status: Mapping[str, Any]) -> list[str]:
    containers = [
        *cast("Sequence[dict[str, Any]]", status.get("initContainerStatuses") or ()),
        *cast("Sequence[dict[str, Any]]", status.get("containerStatuses") or ()),
    ]
    states = cast("list[dict[str, Any]]", [one.get("state") or {} for one in containers])
    waits = cast("list[dict[str, Any]]", [one.get("waiting") or {} for one in states])
    return [str(one.get("reason", "")) for one in waits]


def _condition(status: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = cast("Sequence[dict[str, Any]]", status.get("conditions") or ())
    return next((one for one in conditions if one.get("type") == kind), None)


_RULES: Final[dict[tuple[str, str], Callable[[Mapping[str, Any], Mapping[str, Any]], Health]]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("", "Pod"): _pod,
}
