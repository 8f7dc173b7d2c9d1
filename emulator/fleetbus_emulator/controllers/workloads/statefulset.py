"""StatefulSets: pods with names, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.owners import labels_of, managers_concerned, selects_own
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import controller_uid, is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_ready, new_pod, ready_in
from fleetbus_emulator.controllers.workloads.revisions import REVISION_LABEL, Revisions, template_of
from fleetbus_emulator.controllers.workloads.rollout import with_label

JsonObject = dict[str, Any]
APPS = "apps"
CLAIMS = "persistentvolumeclaims"
NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
BURST = 50  # pods created in one turn; their events bring the next


def ordinal_of(owner: str, pod: str) -> int | None:
    """The number of a StatefulSet's pod; None if the name is not of that form."""
    prefix, _, number = pod.rpartition("-")
    return int(number) if prefix == owner and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The template and revision of a StatefulSet's pods.

    Attributes:
        current: The revision from which it comes.
        update: The revision of its present template.
        first: The lowest ordinal.
        partition: Pods below this ordinal keep the current revision.
    """

    current: JsonObject
    update: JsonObject
    first: int
    partition: int

    def revision_for(self, ordinal: int) -> JsonObject:
        """The revision that a new pod of this ordinal gets."""
        return self.current if ordinal < self.partition else self.update


class StatefulSetController:
    """Keeps the pods of StatefulSets, in order unless they are Parallel."""

    name = "statefulset"
    watches: Kinds = frozenset({(APPS, "statefulsets"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        self._revisions = Revisions(world)

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """StatefulSets by themselves, by their pods, and by one that took a name from them."""
        if ref.resource == "statefulsets":
            return [ref]
        owners = managers_concerned(self._view, change, APPS, "statefulsets")
        if change.type == "DELETED" and not owners and not controller_uid(change.new):
            prefix = ref.name.rpartition("-")[0]
            namesake = Ref(APPS, "statefulsets", ref.namespace, prefix)
            return [namesake] if namesake in self._view else []
        return owners

    def reconcile(self, ref: Ref) -> None:
        """Take the next step: create, replace or delete pods, then count them."""
        if is_deleting(self._view[ref]) or not selects_own(self._view[ref]):
            return
        plan = self._plan(ref)
        self._step(ref, plan)
        self._write_status(ref, plan)
        self._trim(ref, plan)

    def _plan(self, ref: Ref) -> Plan:
        update = self._revisions.present(ref)
        stateful_set = self._view[ref]
        name = str(mapping(stateful_set, "status").get("currentRevision") or "")
        spec = stateful_set["spec"]
        first: int = mapping(spec, "ordinals").get("start") or 0
        partition: int = mapping(spec, "updateStrategy", "rollingUpdate").get("partition") or 0
        current = self._revisions.find(ref, name) or update
        return Plan(current, update, first, first + partition)

    def _pods(self, ref: Ref) -> dict[int, Ref]:
        groups = self._view.pods_of(uid_of(self._view[ref]))
        pods = ((ordinal_of(ref.name, p.name), p) for p in groups.refs(lambda _: True))
        return dict(sorted((number, p) for number, p in pods if number is not None))

    # steps --------------------------------------------------------------------------------------

    def _step(self, ref: Ref, plan: Plan) -> None:
        spec = self._view[ref]["spec"]
        in_order = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        ordinals = range(plan.first, plan.first + spec.get("replicas", 1))
        pods = self._pods(ref)
        created = 0
        for number in ordinals:
            if number not in pods:
                created += self._create(ref, number, plan)
            if (in_order and not self._is_settled(ref, pods.get(number))) or created == BURST:
                return
        surplus = [pod for number, pod in pods.items() if number not in ordinals]
        if surplus:
            self._shrink(surplus, in_order=in_order)
        elif mapping(spec, "updateStrategy").get("type") != "OnDelete":
            self._update(pods, plan)

    def _is_settled(self, ref: Ref, pod: Ref | None) -> bool:
        """Whether the pod is available, so that the next may be created; deletes ended ones."""
        obj = self._view.get(pod) if pod is not None else None
        if pod is None or obj is None or is_deleting(obj):
            return False
        if has_ended(obj):
            self._world.delete(pod, policy="Background")
            return False
        seconds = self._view[ref]["spec"].get("minReadySeconds", 0)
        return ready_in(obj, seconds, self._world.seconds_since) == 0

    def _create(self, ref: Ref, number: int, plan: Plan) -> bool:
        """Create the pod of a number, unless its name is taken by another; whether it did."""
        stateful_set = self._view[ref]
        name = f"{ref.name}-{number}"
        if Ref("", "pods", ref.namespace, name) in self._view:
            return False
        revision = plan.revision_for(number)
        template = template_of(revision)
        labels = {
            REVISION_LABEL: revision["metadata"]["name"],
            NAME_LABEL: name,
            INDEX_LABEL: str(number),
        }
        for label, value in labels.items():
            template = with_label(template, label, value)
        body = new_pod(stateful_set, template, name=name)
        body["spec"] = {**body["spec"], "hostname": name, **self._storage(ref, name)}
        subdomain = stateful_set["spec"].get("serviceName")
        if subdomain:
            body["spec"]["subdomain"] = subdomain
        self._world.create("v1/pods", body)
        return True

    def _storage(self, ref: Ref, pod: str) -> JsonObject:
        """Create the claims of a pod where they are missing; the volumes that use them."""
        spec = self._view[ref]["spec"]
        volumes: list[JsonObject] = []
        for template in listing(spec, "volumeClaimTemplates"):
            kind = template["metadata"]["name"]
            name = f"{kind}-{pod}"
            if Ref("", CLAIMS, ref.namespace, name) not in self._view:
                labels = {**labels_of(template), **mapping(spec, "selector", "matchLabels")}
                meta = {"name": name, "namespace": ref.namespace, "labels": labels}
                claim = {"metadata": meta, "spec": mapping(template, "spec")}
                self._world.create(f"v1/{CLAIMS}", claim)
            volumes.append({"name": kind, "persistentVolumeClaim": {"claimName": name}})
        if not volumes:
            return {}
        names = {volume["name"] for volume in volumes}
        others = listing(spec, "template", "spec", "volumes")
        return {"volumes": [*(v for v in others if v.get("name") not in names), *volumes]}

    def _shrink(self, surplus: list[Ref], *, in_order: bool) -> None:
        for pod in reversed(surplus):
            if not is_deleting(self._view[pod]):
                self._world.delete(pod, policy="Background")
            if in_order:
                return

    def _update(self, pods: dict[int, Ref], plan: Plan) -> None:
        """Replace the last pod of another revision, once those behind it are ready."""
        revision = plan.update["metadata"]["name"]
        for number, pod in reversed(pods.items()):
            obj = self._view.get(pod)
            if obj is None or is_deleting(obj):
                return
            if number >= plan.partition and labels_of(obj).get(REVISION_LABEL) != revision:
                self._world.delete(pod, policy="Background")
                return
            if not is_ready(obj):
                return

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref, plan: Plan) -> None:
        stateful_set = self._view[ref]
        pods = [self._view[pod] for pod in self._pods(ref).values()]
        seconds = stateful_set["spec"].get("minReadySeconds", 0)
        waits = [ready_in(pod, seconds, self._world.seconds_since) for pod in pods]
        status = stateful_set_status(stateful_set, plan, pods, available=waits.count(0))
        self._world.write_status(ref, status)
        pending = [wait for wait in waits if wait]
        if pending:
            self._world.stage_timers.alarm(Item(self.name, ref), min(pending))

    def _trim(self, ref: Ref, plan: Plan) -> None:
        used = {labels_of(self._view[pod]).get(REVISION_LABEL) for pod in self._pods(ref).values()}
        live = {str(name) for name in used}
        live |= {plan.current["metadata"]["name"], plan.update["metadata"]["name"]}
        self._revisions.trim(ref, live)


def stateful_set_status(
    stateful_set: JsonObject, plan: Plan, pods: list[JsonObject], *, available: int
) -> JsonObject:
    """The status of a StatefulSet with these pods."""
    spec = stateful_set["spec"]
    update_revision, current = plan.update["metadata"]["name"], plan.current["metadata"]["name"]
    revisions = [labels_of(pod).get(REVISION_LABEL) for pod in pods if not is_deleting(pod)]
    updated, ready = revisions.count(update_revision), sum(map(is_ready, pods))
    if updated == ready == len(pods) == spec.get("replicas", 1):
        current = update_revision
    numbers = {
        "readyReplicas": ready,
        "currentReplicas": revisions.count(current),
        "updatedReplicas": updated,
    }
    return {
        "observedGeneration": stateful_set["metadata"].get("generation", 0),
        "replicas": len(pods),
        "availableReplicas": available,
        "currentRevision": current,
        "updateRevision": update_revision,
        "collisionCount": 0,
        **{name: number for name, number in numbers.items() if number},
    }
