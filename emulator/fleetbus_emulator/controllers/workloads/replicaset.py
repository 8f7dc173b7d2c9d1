"""ReplicaSets: as many pods as asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import ApiError, Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import (
    Condition,
    is_true,
    with_condition,
    without_condition,
)
from fleetbus_emulator.controllers.owners import labels_of, managers_concerned, selects_own
from fleetbus_emulator.controllers.pod_groups import PodGroups
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import (
    GATHERED,
    Item,
    Kinds,
    World,
    is_of_ending_namespace,
)
from fleetbus_emulator.controllers.workloads.new_pods import count_available, new_pod

JsonObject = dict[str, Any]
APPS = "apps"
BURST = 50  # pods created or deleted in one turn; their events bring the next


class ReplicaSetController:
    """Creates and deletes the pods of ReplicaSets."""

    name = "replicaset"
    watches: Kinds = frozenset({(APPS, "replicasets"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """ReplicaSets by themselves and by their pods."""
        if ref.resource == "replicasets":
            return [ref]
        return managers_concerned(self._view, change, APPS, "replicasets")

    def reconcile(self, ref: Ref) -> None:
        """Create or delete pods, then count them."""
        failure: ApiError | None = None
        if not is_deleting(self._view[ref]):
            try:
                self._fit(ref)
            except ApiError as error:
                failure = None if is_of_ending_namespace(error) else error
        if ref in self._view:
            self._write_status(ref, failure)
        if failure is not None:
            raise failure

    def _pods(self, ref: Ref) -> PodGroups:
        return self._view.pods_of(uid_of(self._view[ref]))

    def _fit(self, ref: Ref) -> None:
        replica_set = self._view[ref]
        if not selects_own(replica_set):
            return
        active = self._pods(ref).count(lambda state: state.active)
        missing = replica_set["spec"].get("replicas", 1) - active
        for _ in range(min(missing, BURST)):
            template = replica_set["spec"]["template"]
            prefix = f"{ref.name}-"
            pod = new_pod(replica_set, template, generateName=prefix)
            name = self._world.create("v1/pods", pod)["metadata"]["name"]
            self._world.note(ref, "SuccessfulCreate", f"Created pod: {name}")
        if missing < 0:
            for pod in self._pods(ref).victims(min(-missing, BURST)):
                self._world.delete(pod, policy="Background")
                self._world.note(ref, "SuccessfulDelete", f"Deleted pod: {pod.name}")

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref, failure: ApiError | None) -> None:
        replica_set = self._view[ref]
        groups = self._pods(ref)
        seconds = replica_set["spec"].get("minReadySeconds", 0)
        available, pending = count_available(groups.sizes(), seconds, self._world.seconds_since)
        if failure is not None and not is_true(replica_set, "ReplicaFailure"):
            self._world.warn(ref, "FailedCreate", f"Error creating: {failure.message}")
        status = replica_set_status(
            replica_set, groups, available=available, failure=failure, now=self._world.now()
        )
        self._world.write_status(ref, status)
        if pending is not None:
            self._world.stage_timers.alarm(Item(self.name, ref), pending)


def replica_set_status(
    replica_set: JsonObject,
    groups: PodGroups,
    *,
    available: int,
    failure: ApiError | None,
    now: str,
) -> JsonObject:
    """The status of a ReplicaSet with these pods; zeros but for replicas are left out."""
    template_labels = labels_of(mapping(replica_set, "spec", "template")).items()
    numbers = {
        "fullyLabeledReplicas": groups.count(
            lambda s: s.active and template_labels <= set(s.labels)
        ),
        "readyReplicas": groups.count(lambda s: s.active and s.ready),
        "availableReplicas": available,
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    replicas = groups.count(lambda state: state.active)
    status: JsonObject = {"replicas": replicas, **{k: n for k, n in numbers.items() if n}}
    conditions = listing(replica_set, "status", "conditions")
    if failure is None:
        conditions = without_condition(conditions, "ReplicaFailure")
    elif not is_true(replica_set, "ReplicaFailure"):
        # Said once: each refusal names another pod, and news would call for the next attempt.
        condition = Condition("ReplicaFailure", "True", "FailedCreate", failure.message)
        conditions = with_condition(conditions, condition, now)
    if conditions:
        status["conditions"] = conditions
    return status
