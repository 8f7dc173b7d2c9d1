"""StatefulSets: pods with names, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.children import ENDED, is_ready, new_pod, phase_of, ready_in
from fleetbus_devfleet.sim.owners import claim, labels_of, managers_concerned
from fleetbus_devfleet.sim.rollout import template_hash, with_label, without_hash
from fleetbus_devfleet.sim.view import Ref, is_deleting
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
APPS = "apps"
REVISION_LABEL = "controller-revision-hash"
NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


def ordinal_of(owner: str, pod: str) -> int | None:
    """The number of a StatefulSet's pod; None if the name is not of that form."""
    prefix, _, number = pod.rpartition("-")
    return int(number) if prefix == owner and number.isdecimal() else None


def revision_of_template(name: str, template: JsonObject) -> str:
    """The name of the revision that a template makes."""
    return f"{name}-{template_hash(without_hash(template))}"


class StatefulSetController:
    """Keeps the pods of StatefulSets, in order unless they are Parallel.

    Claims are not created, and the templates of earlier revisions are not kept: a pod below the
    partition of a rolling update keeps its revision until it is deleted.
    """

    name = "statefulset"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """StatefulSets by themselves and by their pods."""
        if (ref.group, ref.resource) == (APPS, "statefulsets"):
            return [ref]
        if (ref.group, ref.resource) == ("", "pods"):
            return [
                *managers_concerned(self._view, change.new, APPS, "statefulsets"),
                *managers_concerned(self._view, change.old, APPS, "statefulsets"),
            ]
        return []

    def reconcile(self, ref: Ref) -> None:
        """Take the next step: create, replace or delete pods, then count them."""
        claim(self._world, ref, "", "pods")
        if not is_deleting(self._view[ref]):
            self._step(ref)
        self._write_status(ref)

    def _pods(self, ref: Ref) -> dict[int, Ref]:
        uid = self._view[ref]["metadata"]["uid"]
        numbered = (
            (ordinal_of(ref.name, p.name), p) for p in self._view.controlled(uid, "", "pods")
        )
        return dict(sorted((number, p) for number, p in numbered if number is not None))

    # steps --------------------------------------------------------------------------------------

    def _step(self, ref: Ref) -> None:
        spec = self._view[ref]["spec"]
        in_order = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        size: int = spec.get("replicas", 1)
        for number in range(size):
            settled = self._keep(ref, number)
            if in_order and not settled:
                return
        surplus = [pod for number, pod in self._pods(ref).items() if number >= size]
        if surplus:
            self._shrink(surplus, in_order=in_order)
        elif mapping(spec, "updateStrategy").get("type") != "OnDelete":
            self._update(ref)

    def _keep(self, ref: Ref, number: int) -> bool:
        """Have the pod of a number there; whether it is ready."""
        pod = ref._replace(group="", resource="pods", name=f"{ref.name}-{number}")
        obj = self._view.get(pod)
        if obj is None:
            self._create(ref, number)
            return False
        if number in self._pods(ref) and phase_of(obj) in ENDED and not is_deleting(obj):
            self._world.delete(pod, policy="Background")
        return is_ready(obj) and not is_deleting(obj)

    def _create(self, ref: Ref, number: int) -> None:
        stateful_set = self._view[ref]
        name = f"{ref.name}-{number}"
        template = stateful_set["spec"]["template"]
        labels = {
            REVISION_LABEL: revision_of_template(ref.name, template),
            NAME_LABEL: name,
            INDEX_LABEL: str(number),
        }
        labelled = template
        for label, value in labels.items():
            labelled = with_label(labelled, label, value)
        body = new_pod(stateful_set, labelled, name=name)
        body["spec"] = {**body["spec"], "hostname": name}
        self._world.create("v1/pods", body)

    def _shrink(self, surplus: list[Ref], *, in_order: bool) -> None:
        for pod in reversed(surplus):
            if not is_deleting(self._view[pod]):
                self._world.delete(pod, policy="Background")
            if in_order:
                return

    def _update(self, ref: Ref) -> None:
        """Replace the last pod of an old revision, once all the others are ready."""
        spec = self._view[ref]["spec"]
        wanted = revision_of_template(ref.name, spec["template"])
        first: int = mapping(spec, "updateStrategy", "rollingUpdate").get("partition", 0)
        for number, pod in sorted(self._pods(ref).items(), reverse=True):
            obj = self._view[pod]
            if number >= first and labels_of(obj).get(REVISION_LABEL) != wanted:
                if not is_deleting(obj):
                    self._world.delete(pod, policy="Background")
                return
            if not is_ready(obj):
                return

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref) -> None:
        stateful_set = self._view[ref]
        pods = [self._view[pod] for pod in self._pods(ref).values()]
        seconds = stateful_set["spec"].get("minReadySeconds", 0)
        waits = [ready_in(pod, seconds, self._world.seconds_since) for pod in pods]
        status = stateful_set_status(stateful_set, pods, available=waits.count(0))
        self._world.write_status(ref, status)
        pending = [wait for wait in waits if wait]
        if pending:
            self._world.pace.alarm(Item(self.name, ref), min(pending))


def stateful_set_status(
    stateful_set: JsonObject, pods: list[JsonObject], *, available: int
) -> JsonObject:
    """The status of a StatefulSet with these pods."""
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    wanted = revision_of_template(name, spec["template"])
    revisions = [labels_of(pod).get(REVISION_LABEL) for pod in pods]
    updated = revisions.count(wanted)
    current = mapping(stateful_set, "status").get("currentRevision", wanted)
    if updated == len(pods) == spec.get("replicas", 1) and all(map(is_ready, pods)):
        current = wanted
    numbers = {
        "readyReplicas": sum(map(is_ready, pods)),
        "currentReplicas": revisions.count(current),
        "updatedReplicas": updated,
    }
    return {
        "observedGeneration": stateful_set["metadata"].get("generation", 0),
        "replicas": len(pods),
        "availableReplicas": available,
        "currentRevision": current,
        "updateRevision": wanted,
        "collisionCount": 0,
        **{name: number for name, number in numbers.items() if number},
    }
