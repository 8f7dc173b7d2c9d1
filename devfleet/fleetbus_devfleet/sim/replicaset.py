"""ReplicaSets: as many pods as asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_devfleet.apiserver import ApiError, Change
from fleetbus_devfleet.apiserver.tree import listing, mapping
from fleetbus_devfleet.sim.children import deletion_rank, is_active, is_ready, new_pod, ready_in
from fleetbus_devfleet.sim.conditions import Condition, is_true, with_condition, without_condition
from fleetbus_devfleet.sim.owners import claim, labels_of, managers_concerned
from fleetbus_devfleet.sim.view import Ref, is_deleting
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
APPS = "apps"
BURST = 50  # pods created or deleted in one turn; their events bring the next


class ReplicaSetController:
    """Creates and deletes the pods of ReplicaSets."""

    name = "replicaset"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """ReplicaSets by themselves and by their pods."""
        if (ref.group, ref.resource) == (APPS, "replicasets"):
            return [ref]
        if (ref.group, ref.resource) != ("", "pods"):
            return []
        return [
            *managers_concerned(self._view, change.new, APPS, "replicasets"),
            *managers_concerned(self._view, change.old, APPS, "replicasets"),
        ]

    def reconcile(self, ref: Ref) -> None:
        """Create or delete pods, then count them."""
        claim(self._world, ref, "", "pods")
        failure: ApiError | None = None
        if not is_deleting(self._view[ref]):
            try:
                self._fit(ref)
            except ApiError as error:
                failure = error
        if ref in self._view:
            self._write_status(ref, failure)
        if failure is not None:
            raise failure

    def _pods(self, ref: Ref) -> list[Ref]:
        uid = self._view[ref]["metadata"]["uid"]
        pods = self._view.controlled(uid, "", "pods")
        return [pod for pod in pods if is_active(self._view[pod])]

    def _fit(self, ref: Ref) -> None:
        replica_set = self._view[ref]
        pods = self._pods(ref)
        missing = replica_set["spec"].get("replicas", 1) - len(pods)
        for _ in range(min(missing, BURST)):
            template = replica_set["spec"]["template"]
            prefix = f"{ref.name}-"
            self._world.create("v1/pods", new_pod(replica_set, template, generateName=prefix))
        if missing < 0:
            pods.reverse()  # of equals, the newest goes first
            pods.sort(key=lambda pod: deletion_rank(self._view[pod]))
            for pod in pods[: min(-missing, BURST)]:
                self._world.delete(pod, policy="Background")

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref, failure: ApiError | None) -> None:
        replica_set = self._view[ref]
        pods = [self._view[pod] for pod in self._pods(ref)]
        waits = [self._ready_in(replica_set, pod) for pod in pods]
        status = replica_set_status(
            replica_set, pods, available=waits.count(0), failure=failure, now=self._world.now()
        )
        self._world.write_status(ref, status)
        pending = [seconds for seconds in waits if seconds]
        if pending:
            self._world.pace.alarm(Item(self.name, ref), min(pending))

    def _ready_in(self, replica_set: JsonObject, pod: JsonObject) -> float | None:
        seconds = replica_set["spec"].get("minReadySeconds", 0)
        return ready_in(pod, seconds, self._world.seconds_since)


def replica_set_status(
    replica_set: JsonObject,
    pods: list[JsonObject],
    *,
    available: int,
    failure: ApiError | None,
    now: str,
) -> JsonObject:
    """The status of a ReplicaSet with these active pods; zeros but for replicas are left out."""
    wanted = labels_of(mapping(replica_set, "spec", "template")).items()
    numbers = {
        "fullyLabeledReplicas": sum(wanted <= labels_of(pod).items() for pod in pods),
        "readyReplicas": sum(map(is_ready, pods)),
        "availableReplicas": available,
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    status: JsonObject = {"replicas": len(pods), **{k: n for k, n in numbers.items() if n}}
    conditions = listing(replica_set, "status", "conditions")
    if failure is None:
        conditions = without_condition(conditions, "ReplicaFailure")
    elif not is_true(replica_set, "ReplicaFailure"):
        # Said once: each refusal names another pod, and news would call for the next attempt.
        said = Condition("ReplicaFailure", "True", "FailedCreate", failure.message)
        conditions = with_condition(conditions, said, now)
    if conditions:
        status["conditions"] = conditions
    return status
