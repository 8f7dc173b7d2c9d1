"""The status of a Deployment: pure computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import (
    Condition,
    find_condition,
    is_true,
    with_condition,
    without_condition,
)
from fleetbus_emulator.controllers.workloads.rollout import Limits

JsonObject = dict[str, Any]
COMPLETE = "NewReplicaSetAvailable"
COUNTERS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")


@dataclass(frozen=True, slots=True)
class Rollout:
    """The inputs of a Deployment's status.

    Attributes:
        new: The ReplicaSet of the present template; None before it is created.
        old: The others.
        now: The time.
        stalled_seconds: How long ago the last progress was; None if there was none yet.
    """

    deployment: JsonObject
    limits: Limits
    new: JsonObject | None
    old: Sequence[JsonObject]
    now: str
    stalled_seconds: float | None = None

    @property
    def all(self) -> list[JsonObject]:
        """All ReplicaSets."""
        return [*self.old, *([self.new] if self.new is not None else [])]


def counters(rollout: Rollout) -> JsonObject:
    """The numbers, zeros left out as Kubernetes does."""
    statuses = [mapping(replica_set, "status") for replica_set in rollout.all]
    desired = sum(mapping(rs, "spec").get("replicas", 0) for rs in rollout.all)
    available = sum(status.get("availableReplicas", 0) for status in statuses)
    numbers = {
        "replicas": sum(status.get("replicas", 0) for status in statuses),
        "updatedReplicas": mapping(rollout.new, "status").get("replicas", 0),
        "readyReplicas": sum(status.get("readyReplicas", 0) for status in statuses),
        "availableReplicas": available,
        "unavailableReplicas": max(0, desired - available),
    }
    return {name: number for name, number in numbers.items() if number}


def is_complete(rollout: Rollout, numbers: JsonObject) -> bool:
    """Whether all pods are of the present template, available, and no other is left."""
    desired = rollout.limits.desired
    return rollout.new is not None and all(
        numbers.get(name, 0) == desired
        for name in ("replicas", "updatedReplicas", "availableReplicas")
    )


def is_failed(deployment: JsonObject) -> bool:
    """Whether the progress deadline was exceeded."""
    return find_condition(deployment, "Progressing").get("reason") == "ProgressDeadlineExceeded"


def deployment_status(rollout: Rollout) -> JsonObject:
    """The whole status."""
    numbers = counters(rollout)
    deployment = rollout.deployment
    status: JsonObject = {
        "observedGeneration": deployment["metadata"].get("generation", 0),
        **numbers,
    }
    conditions = listing(deployment, "status", "conditions")
    conditions = _with(conditions, _available(rollout, numbers), rollout.now)
    conditions = _progressing(rollout, numbers, conditions)
    conditions = _replica_failure(rollout, conditions)
    if conditions:
        status["conditions"] = conditions
    collisions = mapping(deployment, "status").get("collisionCount")
    if collisions:
        status["collisionCount"] = collisions
    return status


def _with(conditions: list[JsonObject], condition: Condition, now: str) -> list[JsonObject]:
    return with_condition(conditions, condition, now, has_update_time=True)


def _available(rollout: Rollout, numbers: JsonObject) -> Condition:
    if numbers.get("availableReplicas", 0) >= rollout.limits.least_available:
        message = "Deployment has minimum availability."
        return Condition("Available", "True", "MinimumReplicasAvailable", message)
    message = "Deployment does not have minimum availability."
    return Condition("Available", "False", "MinimumReplicasUnavailable", message)


def _progressing(
    rollout: Rollout, numbers: JsonObject, conditions: list[JsonObject]
) -> list[JsonObject]:
    deployment, now = rollout.deployment, rollout.now
    present = find_condition(deployment, "Progressing")
    if mapping(deployment, "spec").get("paused"):
        paused = Condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        return _with(conditions, paused, now)
    name = _shown_name(rollout)
    if is_complete(rollout, numbers):
        done = Condition("Progressing", "True", COMPLETE, f"{name} has successfully progressed.")
        return _with(conditions, done, now)
    if present.get("reason") == COMPLETE and _is_only_scaled(rollout, numbers, present):
        return conditions
    moved = _has_moved(rollout, numbers) or not _speaks_of(present, name)
    if not moved and _is_late(rollout):
        late = f"{name} has timed out progressing."
        late_condition = Condition("Progressing", "False", "ProgressDeadlineExceeded", late)
        return _with(conditions, late_condition, now)
    if not moved and present.get("status") == "False":
        return conditions
    going = Condition("Progressing", "True", "ReplicaSetUpdated", f"{name} is progressing.")
    return with_condition(conditions, going, now, has_update_time=True, renewed=moved)


def _shown_name(rollout: Rollout) -> str:
    if rollout.new is None:
        return f'Deployment "{rollout.deployment["metadata"]["name"]}"'
    return f'ReplicaSet "{rollout.new["metadata"]["name"]}"'


def _is_only_scaled(rollout: Rollout, numbers: JsonObject, present: JsonObject) -> bool:
    """A change of the size, or a pod that is replaced, is no rollout."""
    same = _speaks_of(present, _shown_name(rollout))
    return same and numbers.get("replicas", 0) == numbers.get("updatedReplicas", 0)


def _speaks_of(condition: JsonObject, name: str) -> bool:
    return str(condition.get("message", "")).startswith(f"{name} ")


def _has_moved(rollout: Rollout, numbers: JsonObject) -> bool:
    before = mapping(rollout.deployment, "status")
    old_before = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    old_now = numbers.get("replicas", 0) - numbers.get("updatedReplicas", 0)
    more = any(
        numbers.get(name, 0) > before.get(name, 0)
        for name in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    return more or old_now < old_before


def _is_late(rollout: Rollout) -> bool:
    deadline = mapping(rollout.deployment, "spec").get("progressDeadlineSeconds")
    stalled = rollout.stalled_seconds
    return deadline is not None and stalled is not None and stalled >= deadline


def _replica_failure(rollout: Rollout, conditions: list[JsonObject]) -> list[JsonObject]:
    failing = [rs for rs in rollout.all if is_true(rs, "ReplicaFailure")]
    if not failing:
        return without_condition(conditions, "ReplicaFailure")
    newest = failing[-1]
    condition = find_condition(newest, "ReplicaFailure")
    reason, message = condition.get("reason", ""), condition.get("message", "")
    return _with(conditions, Condition("ReplicaFailure", "True", reason, message), rollout.now)
