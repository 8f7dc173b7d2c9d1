"""Deployments: a ReplicaSet per template, and the way from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.conditions import find_condition
from fleetbus_devfleet.sim.deployment_status import (
    Rollout,
    counters,
    deployment_status,
    is_complete,
    is_failed,
)
from fleetbus_devfleet.sim.owners import claim, managers_concerned, owner_reference
from fleetbus_devfleet.sim.rollout import (
    DESIRED_REPLICAS,
    HASH_LABEL,
    MAX_REPLICAS,
    REVISION,
    Limits,
    Scale,
    Step,
    copied_annotations,
    limits_of,
    recreate_step,
    revision_annotations,
    revision_of,
    rolling_step,
    template_hash,
    with_label,
    without_hash,
)
from fleetbus_devfleet.sim.view import Ref, is_deleting, uid_of
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
APPS = "apps"
REPLICA_SETS = "apps/v1/replicasets"


@dataclass(frozen=True, slots=True)
class Family:
    """A Deployment's ReplicaSets: that of the present template, and the others, oldest first."""

    new: Ref | None
    old: tuple[Ref, ...]


class DeploymentController:
    """Rolls Deployments out."""

    name = "deployment"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Deployments by themselves, by their ReplicaSets, and by pods that are gone."""
        if (ref.group, ref.resource) == (APPS, "deployments"):
            return [ref]
        if (ref.group, ref.resource) == (APPS, "replicasets"):
            return [
                *managers_concerned(self._view, change.new, APPS, "deployments"),
                *managers_concerned(self._view, change.old, APPS, "deployments"),
            ]
        if (ref.group, ref.resource) == ("", "pods") and change.type == "DELETED":
            # Recreate waits for the last old pod, which its ReplicaSet no longer counts.
            replica_set = self._view.controller_of(change.new)
            if replica_set is not None and replica_set.resource == "replicasets":
                return managers_concerned(self._view, self._view[replica_set], APPS, "deployments")
        return []

    def reconcile(self, ref: Ref) -> None:
        """Take the next step of the rollout and tell how far it is."""
        deployment = self._view[ref]
        if not mapping(deployment, "spec", "selector"):
            return
        family = self._family(ref)
        if not is_deleting(deployment):
            if mapping(deployment, "spec").get("paused"):
                self._resize_only(deployment, family)
            else:
                family = self._roll(ref, family)
        self._write_status(ref, family)

    # the ReplicaSets ----------------------------------------------------------------------------

    def _family(self, ref: Ref) -> Family:
        refs = claim(self._world, ref, APPS, "replicasets")
        template = without_hash(self._view[ref]["spec"]["template"])
        refs.sort(key=self._age)
        fitting = [r for r in refs if without_hash(self._view[r]["spec"]["template"]) == template]
        new = fitting[0] if fitting else None
        return Family(new, tuple(r for r in refs if r != new))

    def _age(self, ref: Ref) -> tuple[str, int, str]:
        replica_set = self._view[ref]
        # Times have whole seconds; the revision tells apart what was made in the same one.
        return replica_set["metadata"]["creationTimestamp"], revision_of(replica_set), ref.name

    def _roll(self, ref: Ref, family: Family) -> Family:
        limits = limits_of(self._view[ref])
        step = self._step(self._view[ref], limits, family)
        new = family.new
        annotations = self._annotations(self._view[ref], limits, family)
        if new is not None:
            self._update(new, step.new, annotations, self._view[ref])
        elif step.new or not limits.desired or not _is_recreate(self._view[ref]):
            new = self._create(ref, step.new, annotations)
        for old, size in zip(family.old, step.old, strict=True):
            self._resize(old, size, limits)
        family = Family(new, family.old)
        self._drop_history(ref, limits, family)
        return Family(new, tuple(old for old in family.old if old in self._view))

    def _step(self, deployment: JsonObject, limits: Limits, family: Family) -> Step:
        new = self._scale(family.new) if family.new is not None else Scale(0)
        old = [self._scale(ref) for ref in family.old]
        if not _is_recreate(deployment):
            return rolling_step(limits, new, old)
        pods = sum(len(self._pods(ref)) for ref in family.old)
        return recreate_step(limits, new, old, pods)

    def _scale(self, ref: Ref) -> Scale:
        replica_set = self._view[ref]
        available = mapping(replica_set, "status").get("availableReplicas", 0)
        return Scale(replica_set["spec"].get("replicas", 0), available)

    def _pods(self, replica_set: Ref) -> list[Ref]:
        pods = self._view.controlled(uid_of(self._view[replica_set]), "", "pods")
        ended = ("Succeeded", "Failed")
        return [p for p in pods if mapping(self._view[p], "status").get("phase") not in ended]

    def _annotations(self, deployment: JsonObject, limits: Limits, family: Family) -> JsonObject:
        new = self._view[family.new] if family.new is not None else None
        old = [self._view[ref] for ref in family.old]
        return {
            **copied_annotations(deployment),
            **revision_annotations(new, old),
            **_size_annotations(limits),
        }

    def _create(self, ref: Ref, size: int, annotations: JsonObject) -> Ref | None:
        deployment = self._view[ref]
        spec = deployment["spec"]
        collisions = mapping(deployment, "status").get("collisionCount", 0)
        digest = template_hash(without_hash(spec["template"]), collisions)
        template = with_label(spec["template"], HASH_LABEL, digest)
        selector = mapping(spec, "selector")
        labels = {**mapping(selector, "matchLabels"), HASH_LABEL: digest}
        new = Ref(APPS, "replicasets", ref.namespace, f"{ref.name}-{digest}")
        if new in self._view:  # somebody else's, or the hashes collide
            status = {**mapping(deployment, "status"), "collisionCount": collisions + 1}
            self._world.write_status(ref, status)
            return None
        meta = {
            "name": new.name,
            "namespace": ref.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [owner_reference(deployment)],
        }
        new_spec = {
            "replicas": size,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": labels},
            "template": template,
        }
        self._world.create(REPLICA_SETS, {"metadata": meta, "spec": new_spec})
        return new

    def _update(self, ref: Ref, size: int, annotations: JsonObject, deployment: JsonObject) -> None:
        replica_set = self._view[ref]
        present = mapping(replica_set, "metadata", "annotations")
        wanted = {**present, **annotations}
        ready_seconds = deployment["spec"].get("minReadySeconds", 0)
        spec = replica_set["spec"]
        same_spec = (spec.get("replicas"), spec.get("minReadySeconds", 0)) == (size, ready_seconds)
        if same_spec and wanted == present:
            return
        patch = {"replicas": size, "minReadySeconds": ready_seconds}
        self._world.patch(ref, {"metadata": {"annotations": wanted}, "spec": patch})

    def _resize(self, ref: Ref, size: int, limits: Limits) -> None:
        if self._view[ref]["spec"].get("replicas", 0) == size:
            return
        annotations = _size_annotations(limits)
        spec = {"replicas": size}
        self._world.patch(ref, {"metadata": {"annotations": annotations}, "spec": spec})

    def _resize_only(self, deployment: JsonObject, family: Family) -> None:
        """A paused Deployment starts nothing, but the size of what runs follows."""
        refs = [*family.old, *([family.new] if family.new is not None else [])]
        active = [ref for ref in refs if self._view[ref]["spec"].get("replicas", 0)]
        latest = active or refs[-1:]
        if len(latest) == 1:
            limits = limits_of(deployment)
            self._resize(latest[0], limits.desired, limits)

    def _drop_history(self, ref: Ref, limits: Limits, family: Family) -> None:
        deployment = self._view[ref]
        numbers = counters(self._rollout(ref, limits, family))
        if family.new is None or not is_complete(self._rollout(ref, limits, family), numbers):
            return
        idle = [r for r in family.old if self._is_empty(r)]
        idle.sort(key=lambda r: revision_of(self._view[r]))
        surplus = len(idle) - deployment["spec"].get("revisionHistoryLimit", 10)
        for old in idle[: max(0, surplus)]:
            self._world.delete(old, policy="Background")

    def _is_empty(self, ref: Ref) -> bool:
        replica_set = self._view[ref]
        size = replica_set["spec"].get("replicas", 0)
        pods = mapping(replica_set, "status").get("replicas", 0)
        return not size and not pods and not is_deleting(replica_set)

    # the status ---------------------------------------------------------------------------------

    def _rollout(self, ref: Ref, limits: Limits, family: Family) -> Rollout:
        deployment = self._view[ref]
        progress = find_condition(deployment, "Progressing").get("lastUpdateTime")
        return Rollout(
            deployment=deployment,
            limits=limits,
            new=self._view[family.new] if family.new is not None else None,
            old=[self._view[old] for old in family.old],
            now=self._world.now(),
            stalled_seconds=self._world.seconds_since(progress) if progress else None,
        )

    def _write_status(self, ref: Ref, family: Family) -> None:
        rollout = self._rollout(ref, limits_of(self._view[ref]), family)
        annotations: JsonObject = {}
        if rollout.new is not None:
            annotations = {REVISION: str(revision_of(rollout.new))}
        self._world.write_status(ref, deployment_status(rollout), annotations)
        self._set_alarm(ref)

    def _set_alarm(self, ref: Ref) -> None:
        """Have the Deployment looked at when its progress deadline is over."""
        deployment = self._view[ref]
        progressing = find_condition(deployment, "Progressing")
        deadline = mapping(deployment, "spec").get("progressDeadlineSeconds")
        waits = progressing.get("reason") in ("ReplicaSetUpdated", "NewReplicaSetCreated")
        if deadline is None or not waits or is_failed(deployment):
            return
        elapsed = self._world.seconds_since(progressing["lastUpdateTime"])
        self._world.pace.alarm(Item(self.name, ref), deadline - elapsed)


def _is_recreate(deployment: JsonObject) -> bool:
    return mapping(deployment, "spec", "strategy").get("type") == "Recreate"


def _size_annotations(limits: Limits) -> JsonObject:
    return {DESIRED_REPLICAS: str(limits.desired), MAX_REPLICAS: str(limits.most)}
