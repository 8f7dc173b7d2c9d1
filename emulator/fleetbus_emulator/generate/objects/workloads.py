"""Workloads at rest: Deployments, StatefulSets and DaemonSets with all that is below them.

At rest means that a controller finds nothing to do: owners exist, counts and hashes agree, every
selector selects what it should. That is why the hash of a template is that of the simulated
controllers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.controllers.pods.behavior import DOMAIN
from fleetbus_emulator.controllers.workloads.revisions import HASH_LABEL as REVISION_HASH_LABEL
from fleetbus_emulator.controllers.workloads.revisions import data_of
from fleetbus_emulator.controllers.workloads.rollout import (
    DESIRED_REPLICAS,
    HASH_LABEL,
    LAST_APPLIED,
    MAX_REPLICAS,
    REVISION,
    limits_of,
    template_hash,
    with_label,
    without_hash,
)
from fleetbus_emulator.generate.objects import pods
from fleetbus_emulator.generate.objects.pods import Node, PodMaker
from fleetbus_emulator.generate.objects.words import AGENTS, Zipf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
Made = tuple[str, JsonObject]
PODS = "v1/pods"
CONTROLLER_MANAGER = "kube-controller-manager"
MANAGERS = Zipf(("argocd-controller", "helm", "kubectl-client-side-apply", "kustomize-controller"))
SIZES = Zipf((2, 3, 4, 6, 1, 8, 10, 15, 25, 50), 0.7)
FAILING_SHARE = 0.02
LATE = 'ReplicaSet "{}" has timed out progressing.'
DONE = 'ReplicaSet "{}" has successfully progressed.'


@dataclass(frozen=True, slots=True)
class Place:
    """The namespace and configuration of an application."""

    app: str
    namespace: str
    account: str = "default"
    labels: JsonObject = field(default_factory=dict[str, Any])


def standard_labels(app: str, version: str, team: str) -> JsonObject:
    """The labels that applications have by convention."""
    return {
        "app.kubernetes.io/instance": app,
        "app.kubernetes.io/name": app.rpartition("-")[2],
        "app.kubernetes.io/version": version,
        "team": team,
    }


def owner_reference(owner: JsonObject) -> JsonObject:
    """The reference by which a controller's children name it."""
    return {
        "apiVersion": owner["apiVersion"],
        "blockOwnerDeletion": True,
        "controller": True,
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


class Workloads:
    """Makes workloads; the pods go to the nodes in turn.

    Args:
        naming: Tells objects apart.
        managed_fields: Keeps their managedFields.
        nodes: Where pods run.
    """

    def __init__(self, naming: Naming, managed_fields: ManagedFields, nodes: list[Node]) -> None:
        self._naming = naming
        self._managed_fields = managed_fields
        self._nodes = nodes
        self._next_node = 0

    def _node(self) -> Node:
        self._next_node += 1
        return self._nodes[self._next_node % len(self._nodes)]

    # Deployments --------------------------------------------------------------------------------

    def deployment(self, place: Place) -> Iterator[Made]:
        """A Deployment, its ReplicaSets (the older ones idle) and its pods."""
        naming = self._naming
        random, age = naming.random, naming.age()
        failing, size = random.random() < FAILING_SHARE, SIZES.pick(random)
        revisions = random.choices((1, 2, 3, 5), (4, 3, 2, 1))[0]
        template = self._template(place)
        selected = {"app.kubernetes.io/instance": place.app}
        deployment = self._deployment(place, template, selected, size, revisions, age)
        if failing:
            deployment["metadata"]["annotations"][f"{DOMAIN}fail"] = "crash-loop"
        digest = template_hash(without_hash(template))
        current = f"{place.app}-{digest}"
        self._finish_deployment(deployment, current, size, failing=failing, age=age)
        yield "apps/v1/deployments", deployment
        for revision in range(1, revisions):
            older = self._older(template, revision)
            yield self._replica_set(deployment, older, 0, revision, failing=False, age=age)
        replica_set = self._replica_set(
            deployment, template, size, revisions, failing=failing, age=age
        )
        yield replica_set
        labelled = with_label(template, HASH_LABEL, digest)
        phase = "Failing" if failing else "Running"
        owner = owner_reference(replica_set[1])
        maker = PodMaker(
            naming, self._managed_fields, labelled, owner, place.namespace, age=age, phase=phase
        )
        for _ in range(size):
            yield PODS, maker.make(self._node())

    def _template(self, place: Place) -> JsonObject:
        return pods.template(self._naming, place.app, place.account, place.labels)

    def _older(self, template: JsonObject, revision: int) -> JsonObject:
        annotations = {**template["metadata"]["annotations"], "checksum/config": str(revision)}
        return {**template, "metadata": {**template["metadata"], "annotations": annotations}}

    def _deployment(
        self,
        place: Place,
        template: JsonObject,
        selected: JsonObject,
        size: int,
        revisions: int,
        age: float,
    ) -> JsonObject:
        spec: JsonObject = {
            "progressDeadlineSeconds": 600,
            "replicas": size,
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": selected},
            "strategy": {
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
                "type": "RollingUpdate",
            },
            "template": template,
        }
        annotations = {REVISION: str(revisions)}
        if self._naming.random.random() < 0.3:  # noqa: PLR2004 - by kubectl apply
            applied = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": size}}
            annotations[LAST_APPLIED] = orjson.dumps(applied).decode() + "\n"
        more = {"annotations": annotations, "generation": revisions}
        meta = self._naming.metadata(place.app, place.namespace, age, place.labels, **more)
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}

    def _finish_deployment(
        self, deployment: JsonObject, current: str, size: int, *, failing: bool, age: float
    ) -> None:
        """Add the status and the managed_fields."""
        naming = self._naming
        created, done = naming.ago(age), naming.ago(age - 10)
        progress = ("False", "ProgressDeadlineExceeded", LATE) if failing else ("True", "", DONE)
        available = {
            "lastTransitionTime": done,
            "lastUpdateTime": done,
            "message": "Deployment has minimum availability.",
            "reason": "MinimumReplicasAvailable",
            "status": "True",
            "type": "Available",
        }
        if failing:
            available["message"] = "Deployment does not have minimum availability."
            available["reason"] = "MinimumReplicasUnavailable"
            available["status"] = "False"
        progressing = {
            "lastTransitionTime": created,
            "lastUpdateTime": done,
            "message": progress[2].format(current),
            "reason": progress[1] or "NewReplicaSetAvailable",
            "status": progress[0],
            "type": "Progressing",
        }
        serving = {"availableReplicas": size, "readyReplicas": size}
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": size,
            "updatedReplicas": size,
            **({"unavailableReplicas": size} if failing else serving),
            "conditions": [available, progressing],
        }
        manager = MANAGERS.pick(naming.random)
        self._managed_fields.keep(deployment, manager, controller=CONTROLLER_MANAGER)

    def _replica_set(
        self,
        deployment: JsonObject,
        template: JsonObject,
        size: int,
        revision: int,
        *,
        failing: bool,
        age: float,
    ) -> Made:
        naming, meta = self._naming, deployment["metadata"]
        limits = limits_of(deployment)
        digest = template_hash(without_hash(template))
        labelled = with_label(template, HASH_LABEL, digest)
        name, labels = f"{meta['name']}-{digest}", labelled["metadata"]["labels"]
        annotations = {
            DESIRED_REPLICAS: str(limits.desired),
            MAX_REPLICAS: str(limits.most),
            REVISION: str(revision),
        }
        more = {"annotations": annotations, "generation": 1}
        metadata = naming.metadata(name, meta["namespace"], age, labels, **more)
        metadata["ownerReferences"] = [owner_reference(deployment)]
        selector = {**deployment["spec"]["selector"]["matchLabels"], HASH_LABEL: digest}
        replica_set: JsonObject = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": metadata,
            "spec": {
                "replicas": size,
                "selector": {"matchLabels": selector},
                "template": labelled,
            },
            "status": _replica_set_status(size, failing=failing),
        }
        self._managed_fields.keep(replica_set, CONTROLLER_MANAGER, controller=CONTROLLER_MANAGER)
        return "apps/v1/replicasets", replica_set

    # StatefulSets and DaemonSets ----------------------------------------------------------------

    def stateful_set(self, place: Place) -> Iterator[Made]:
        """A StatefulSet and its pods, which are numbered."""
        naming = self._naming
        age, size = naming.age(), naming.random.choice((1, 3, 3, 5))
        template = self._template(place)
        revision = f"{place.app}-{template_hash(without_hash(template))}"
        spec = {
            "podManagementPolicy": "OrderedReady",
            "replicas": size,
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": place.app}},
            "serviceName": f"{place.app}-headless",
            "template": template,
            "updateStrategy": {"rollingUpdate": {"partition": 0}, "type": "RollingUpdate"},
        }
        status = {
            "availableReplicas": size,
            "collisionCount": 0,
            "currentReplicas": size,
            "currentRevision": revision,
            "observedGeneration": 1,
            "readyReplicas": size,
            "replicas": size,
            "updateRevision": revision,
            "updatedReplicas": size,
        }
        stateful_set = self._workload("StatefulSet", place, spec, status, age)
        yield "apps/v1/statefulsets", stateful_set
        yield self._revision(stateful_set, age)
        owner = owner_reference(stateful_set)
        maker = PodMaker(naming, self._managed_fields, template, owner, place.namespace, age=age)
        for number in range(size):
            name = f"{place.app}-{number}"
            labels = {
                "apps.kubernetes.io/pod-index": str(number),
                "controller-revision-hash": revision,
                "statefulset.kubernetes.io/pod-name": name,
            }
            yield PODS, maker.make(self._node(), name=name, labels=labels)

    def daemon_set(self, namespace: str) -> Iterator[Made]:
        """An agent with a pod on every node."""
        naming = self._naming
        age, app = naming.age(), naming.unique(naming.random.choice(AGENTS))
        place = Place(app, namespace, labels=standard_labels(app, "1.0.0", "platform"))
        template = self._template(place)
        digest = template_hash(without_hash(template))
        rolling = {"maxSurge": 0, "maxUnavailable": 1}
        spec = {
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": app}},
            "template": template,
            "updateStrategy": {"rollingUpdate": rolling, "type": "RollingUpdate"},
        }
        size = len(self._nodes)
        status = {
            "currentNumberScheduled": size,
            "desiredNumberScheduled": size,
            "numberAvailable": size,
            "numberMisscheduled": 0,
            "numberReady": size,
            "observedGeneration": 1,
            "updatedNumberScheduled": size,
        }
        daemon_set = self._workload("DaemonSet", place, spec, status, age)
        yield "apps/v1/daemonsets", daemon_set
        yield self._revision(daemon_set, age)
        labelled = with_label(template, "controller-revision-hash", digest)
        owner = owner_reference(daemon_set)
        maker = PodMaker(naming, self._managed_fields, labelled, owner, namespace, age=age)
        for node in self._nodes:
            yield PODS, maker.make(node)

    def _revision(self, owner: JsonObject, age: float) -> Made:
        """The only revision that a workload's template has had."""
        naming, template, owner_meta = self._naming, owner["spec"]["template"], owner["metadata"]
        digest = template_hash(without_hash(template))
        labels = {**template["metadata"]["labels"], REVISION_HASH_LABEL: digest}
        meta = naming.metadata(
            f"{owner_meta['name']}-{digest}", owner_meta["namespace"], age, labels
        )
        meta["ownerReferences"] = [owner_reference(owner)]
        revision: JsonObject = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": meta,
            "data": data_of(template),
            "revision": 1,
        }
        self._managed_fields.keep(revision, CONTROLLER_MANAGER)
        return "apps/v1/controllerrevisions", revision

    def _workload(
        self, kind: str, place: Place, spec: JsonObject, status: JsonObject, age: float
    ) -> JsonObject:
        naming = self._naming
        meta = naming.metadata(place.app, place.namespace, age, place.labels, generation=1)
        workload: JsonObject = {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": meta,
            "spec": spec,
            "status": status,
        }
        manager = MANAGERS.pick(naming.random)
        self._managed_fields.keep(workload, manager, controller=CONTROLLER_MANAGER)
        return workload


def _replica_set_status(size: int, *, failing: bool) -> JsonObject:
    status: JsonObject = {"observedGeneration": 1, "replicas": size}
    if size:
        status["fullyLabeledReplicas"] = size
    if size and not failing:
        status |= {"availableReplicas": size, "readyReplicas": size}
    return status
