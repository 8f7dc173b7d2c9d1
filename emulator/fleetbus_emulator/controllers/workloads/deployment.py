"""Deployments: a ReplicaSet per template, and the way from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.conditions import find_condition
from fleetbus_emulator.controllers.owners import (
    labels_of,
    managers_concerned,
    owner_reference,
    selects_own,
)
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.deployment_status import (
    Rollout,
    counters,
    deployment_status,
    is_complete,
    is_failed,
)
from fleetbus_emulator.controllers.workloads.rollout import (
    DESIRED_REPLICAS,
    HASH_LABEL,
    MAX_REPLICAS,
    REVISION,
    Limits,
    Scale,
    Step,
    copied_annotations,
    is_resized,
    limits_of,
    recreate_step,
    resize_step,
    revision_annotations,
    revision_of,
    rolling_step,
    scale_of,
    template_hash,
    with_label,
    without_hash,
)

JsonObject = dict[str, Any]
APPS = "apps"
REPLICA_SETS = "apps/v1/replicasets"
MOST_COLLISIONS = 10  # of names that are looked back upon


@dataclass(frozen=True, slots=True)
class Family:
    """A Deployment's ReplicaSets: that of the present template, and the others, oldest first."""

    new: Ref | None
    old: tuple[Ref, ...]

    @property
    def everyone(self) -> list[Ref]:
        """The others, then that of the present template."""
        return [*self.old, *([self.new] if self.new is not None else [])]


class DeploymentController:
    """Rolls Deployments out."""

    name = "deployment"
    watches: Kinds = frozenset({(APPS, "deployments"), (APPS, "replicasets"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Deployments by themselves, by their ReplicaSets, and by deleted pods."""
        if ref.resource == "deployments":
            return [ref]
        if ref.resource == "replicasets":
            return managers_concerned(self._view, change, APPS, "deployments")
        if change.type == "DELETED":
            # Recreate waits for the last old pod, which its ReplicaSet no longer counts.
            replica_set = self._view.controller_of(change.new)
            manager = self._view.controller_of(self._view[replica_set]) if replica_set else None
            return [manager] if manager is not None and manager.resource == "deployments" else []
        return []

    def reconcile(self, ref: Ref) -> None:
        """Take the next step of the rollout and update the status."""
        deployment = self._view[ref]
        if not selects_own(deployment):
            return
        family = self._family(ref)
        if not is_deleting(deployment):
            limits = limits_of(deployment)
            scales = [scale_of(self._view[r]) for r in family.everyone]
            if mapping(deployment, "spec").get("paused") or is_resized(limits, scales):
                self._resize_all(ref, limits, family)
            else:
                family = self._roll(ref, family)
        self._write_status(ref, family)

    # the ReplicaSets ----------------------------------------------------------------------------

    def _family(self, ref: Ref) -> Family:
        deployment = self._view[ref]
        refs = self._view.controlled(uid_of(deployment), APPS, "replicasets")
        template = without_hash(deployment["spec"]["template"])
        collisions = mapping(deployment, "status").get("collisionCount") or 0
        numbers = {*range(min(collisions, MOST_COLLISIONS)), collisions}
        digests = {template_hash(template, number) for number in numbers}
        refs.sort(key=self._age)
        new = next((r for r in refs if self._fits(r, template, digests)), None)
        return Family(new, tuple(r for r in refs if r != new))

    def _fits(self, ref: Ref, template: JsonObject, digests: set[str]) -> bool:
        """Whether a ReplicaSet is of a template.

        One that was made of it may have been given defaults since, which a Deployment restored
        from elsewhere does not have; its hash identifies it all the same.
        """
        replica_set = self._view[ref]
        if labels_of(replica_set).get(HASH_LABEL) in digests:
            return True
        return without_hash(replica_set["spec"]["template"]) == template

    def _age(self, ref: Ref) -> tuple[str, int, str]:
        replica_set = self._view[ref]
        # Times have whole seconds; the revision orders what was created in the same one.
        return replica_set["metadata"]["creationTimestamp"], revision_of(replica_set), ref.name

    def _roll(self, ref: Ref, family: Family) -> Family:
        limits = limits_of(self._view[ref])
        step = self._step(self._view[ref], limits, family)
        new = family.new
        annotations = self._annotations(self._view[ref], limits, family)
        if new is not None:
            self._update(ref, new, step.new, annotations)
        elif step.new or not limits.desired or not _is_recreate(self._view[ref]):
            new = self._create(ref, step.new, annotations)
        for old, size in zip(family.old, step.old, strict=True):
            if self._view[old]["spec"].get("replicas", 0) != size:
                self._resize(ref, old, size, limits)
        family = Family(new, family.old)
        self._drop_history(ref, limits, family)
        return Family(new, tuple(old for old in family.old if old in self._view))

    def _step(self, deployment: JsonObject, limits: Limits, family: Family) -> Step:
        new = scale_of(self._view[family.new]) if family.new is not None else Scale(0)
        old = [scale_of(self._view[ref]) for ref in family.old]
        if not _is_recreate(deployment):
            return rolling_step(limits, new, old)
        below = [self._view.pods_of(uid_of(self._view[ref])) for ref in family.old]
        pods = sum(groups.count(lambda state: not state.ended) for groups in below)
        return recreate_step(limits, new, old, pods)

    def _resize_all(self, ref: Ref, limits: Limits, family: Family) -> None:
        """Start nothing new, but let the size of what runs follow."""
        new = scale_of(self._view[family.new]) if family.new is not None else None
        old = [scale_of(self._view[r]) for r in family.old]
        rolling = not _is_recreate(self._view[ref])
        step = resize_step(limits, new, old, rolling=rolling)
        for replica_set, size in zip(family.everyone, [*step.old, step.new], strict=False):
            if size or scale_of(self._view[replica_set]).spec:
                self._resize(ref, replica_set, size, limits)

    def _annotations(self, deployment: JsonObject, limits: Limits, family: Family) -> JsonObject:
        new = self._view[family.new] if family.new is not None else None
        old = [self._view[ref] for ref in family.old]
        return {
            **_size_annotations(limits),
            **revision_annotations(new, old),
            **copied_annotations(deployment),
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
        if new in self._view:  # another owner's, or the hashes collide
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
        self._tell_scaled(ref, new, 0, size)
        return new

    def _update(self, ref: Ref, new: Ref, size: int, annotations: JsonObject) -> None:
        replica_set = self._view[new]
        present = mapping(replica_set, "metadata", "annotations")
        merged = {**present, **annotations}
        ready_seconds = self._view[ref]["spec"].get("minReadySeconds", 0)
        spec = replica_set["spec"]
        before = spec.get("replicas", 0)
        if (before, spec.get("minReadySeconds", 0), merged) == (size, ready_seconds, present):
            return
        patch = {"replicas": size, "minReadySeconds": ready_seconds}
        self._world.patch(new, {"metadata": {"annotations": merged}, "spec": patch})
        self._tell_scaled(ref, new, before, size)

    def _resize(self, ref: Ref, replica_set: Ref, size: int, limits: Limits) -> None:
        annotations = _size_annotations(limits)
        obj = self._view[replica_set]
        present = mapping(obj, "metadata", "annotations")
        before = obj["spec"].get("replicas", 0)
        if before == size and annotations.items() <= present.items():
            return
        patch = {"metadata": {"annotations": annotations}, "spec": {"replicas": size}}
        self._world.patch(replica_set, patch)
        self._tell_scaled(ref, replica_set, before, size)

    def _tell_scaled(self, ref: Ref, replica_set: Ref, before: int, size: int) -> None:
        if before != size:
            way = "up" if size > before else "down"
            message = f"Scaled {way} replica set {replica_set.name} from {before} to {size}"
            self._world.note(ref, "ScalingReplicaSet", message)

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
            self._world.stage_timers.cancel_alarm(Item(self.name, ref))
            return
        elapsed = self._world.seconds_since(progressing["lastUpdateTime"])
        self._world.stage_timers.alarm(Item(self.name, ref), deadline - elapsed)


def _is_recreate(deployment: JsonObject) -> bool:
    return mapping(deployment, "spec", "strategy").get("type") == "Recreate"


def _size_annotations(limits: Limits) -> JsonObject:
    return {DESIRED_REPLICAS: str(limits.desired), MAX_REPLICAS: str(limits.most)}
