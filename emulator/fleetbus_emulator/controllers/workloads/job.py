"""Jobs: pods that have to succeed a given number of times.

Each pod is held by a finalizer until it is counted, so that none is forgotten and none counted
twice: its uid is written into the status, then the finalizer goes, then the counter moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import find_condition, is_true
from fleetbus_emulator.controllers.owners import labels_of, managers_concerned, selects_own
from fleetbus_emulator.controllers.pod_groups import TRACKING, PodGroups, PodState
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.job_status import (
    BURST,
    INDEX,
    JobResult,
    Tally,
    after_counting,
    before_counting,
    completed_before,
    is_finished,
    is_indexed,
    job_status,
    result_of,
    wanted_pods,
)
from fleetbus_emulator.controllers.workloads.new_pods import new_pod
from fleetbus_emulator.controllers.workloads.rollout import with_label

JsonObject = dict[str, Any]
BATCH = "batch"
OURS = "kubernetes.io/job-controller"
FINAL = ("Complete", "Failed")


def _has_succeeded(state: PodState) -> bool:
    return state.tracked and state.phase == "Succeeded"


def _has_failed(state: PodState) -> bool:
    return state.tracked and state.phase != "Succeeded" and (state.ended or state.deleting)


class JobController:
    """Runs Jobs."""

    name = "job"
    watches: Kinds = frozenset({(BATCH, "jobs"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Jobs by themselves and by their pods."""
        if ref.resource == "jobs":
            return [ref]
        return managers_concerned(self._view, change, BATCH, "jobs")

    def reconcile(self, ref: Ref) -> None:
        """Start pods, count those that ended, or draw the conclusion."""
        job = self._view[ref]
        if (job["spec"].get("managedBy") or OURS) != OURS or not selects_own(job):
            return
        if is_deleting(job):
            self._release(self._pods(ref).refs(lambda state: state.tracked))
        elif is_finished(job):
            self._expire(ref)
        else:
            self._proceed(ref)

    def _pods(self, ref: Ref) -> PodGroups:
        return self._view.pods_of(uid_of(self._view[ref]))

    def _proceed(self, ref: Ref) -> None:
        job = self._view[ref]
        result = result_of(job, self._tally(ref), self._elapsed(job))
        if result is not None:
            for pod in self._pods(ref).victims(BURST):
                self._world.delete(pod, policy="Background")
        else:
            self._fit(ref)
        self._count(ref, result)
        self._set_alarm(ref, result)

    # counting -----------------------------------------------------------------------------------

    def _tally(self, ref: Ref) -> Tally:
        job, groups = self._view[ref], self._pods(ref)
        status = mapping(job, "status")
        active = [(state, size) for state, size in groups.sizes() if state.active]
        succeeded, failed = groups.refs(_has_succeeded), groups.refs(_has_failed)
        completed = completed_before(job)
        if completed is not None:
            completed |= {i for i in map(self._index_of, succeeded) if self._is_valid(job, i)}
            failed = [pod for pod in failed if self._is_valid(job, self._index_of(pod))]
        lost = self._lost(ref)
        return Tally(
            active=sum(size for _, size in active),
            ready=sum(size for state, size in active if state.ready),
            terminating=groups.count(lambda state: state.deleting and not state.ended),
            restarts=sum(state.restarts * size for state, size in active),
            new_succeeded=[uid_of(self._view[pod]) for pod in succeeded],
            new_failed=[uid_of(self._view[pod]) for pod in failed],
            counted_succeeded=status.get("succeeded", 0) + lost["succeeded"],
            counted_failed=status.get("failed", 0) + lost["failed"],
            completed=completed,
        )

    def _lost(self, ref: Ref) -> dict[str, int]:
        """Pods written down as about to be counted, that were let go before they were."""
        noted = mapping(self._view[ref], "status", "uncountedTerminatedPods")
        counts = {"succeeded": listing(noted, "succeeded"), "failed": listing(noted, "failed")}
        return {name: sum(not self._holds(uid) for uid in uids) for name, uids in counts.items()}

    def _holds(self, uid: str) -> bool:
        pod = self._view.find_uid(str(uid))
        return pod is not None and TRACKING in listing(self._view[pod], "metadata", "finalizers")

    def _index_of(self, pod: Ref) -> int:
        """The pod's completion index; -1 if it has none."""
        text = str(labels_of(self._view[pod]).get(INDEX) or "")
        return int(text) if text.isdecimal() else -1

    def _is_valid(self, job: JsonObject, index: int) -> bool:
        return 0 <= index < job["spec"]["completions"]

    def _count(self, ref: Ref, result: JobResult | None) -> None:
        """Add ended pods to the counters, and write the status."""
        tally, now = self._tally(ref), self._world.now()
        job = self._view[ref]
        if tally.new_succeeded or tally.new_failed:
            status = job_status(job, tally, result, before_counting(tally), now)
            self._world.write_status(ref, status)
            uids = [*tally.new_succeeded[:BURST], *tally.new_failed[:BURST]]
            pods = [self._view.find_uid(uid) for uid in uids]
            self._release([pod for pod in pods if pod is not None])
        status = job_status(self._view[ref], tally, result, after_counting(tally), now)
        self._world.write_status(ref, status)
        self._record_events(ref, job)

    def _record_events(self, ref: Ref, before: JsonObject) -> None:
        job = self._view[ref]
        if is_true(job, "Complete"):
            self._world.note(ref, "Completed", "Job completed")
        elif is_true(job, "Failed"):
            condition = find_condition(job, "Failed")
            self._world.warn(ref, condition["reason"], condition["message"])
        elif is_true(job, "Suspended") != is_true(before, "Suspended"):
            condition = find_condition(job, "Suspended")
            self._world.note(ref, condition["reason"].removeprefix("Job"), condition["message"])

    def _release(self, pods: Iterable[Ref]) -> None:
        for pod in pods:
            if pod in self._view:
                self._world.remove_finalizer(pod, TRACKING)

    # pods ---------------------------------------------------------------------------------------

    def _fit(self, ref: Ref) -> None:
        tally = self._tally(ref)
        desired = wanted_pods(self._view[ref]["spec"], tally)
        if desired < tally.active:
            victims = self._pods(ref).victims(min(tally.active - desired, BURST))
            self._release(victims)  # what is taken back has not failed
            for pod in victims:
                self._world.delete(pod, policy="Background")
        elif desired > tally.active and self._may_start(ref, tally):
            self._start(ref, min(desired - tally.active, BURST), tally)

    def _start(self, ref: Ref, number: int, tally: Tally) -> None:
        job = self._view[ref]
        template = job["spec"]["template"]
        meta = mapping(template, "metadata")
        finalizers = [f for f in listing(meta, "finalizers") if f != TRACKING]
        template = {**template, "metadata": {**meta, "finalizers": [*finalizers, TRACKING]}}
        if not is_indexed(job):
            for _ in range(number):
                body = new_pod(job, template, generateName=f"{ref.name}-")
                self._world.create("v1/pods", body)
            return
        for index in islice(self._free_indexes(ref, tally), number):
            body = new_pod(job, _indexed(template, index), generateName=f"{ref.name}-{index}-")
            body["spec"] = {**_with_index(body["spec"]), "hostname": f"{ref.name}-{index}"}
            self._world.create("v1/pods", body)

    def _free_indexes(self, ref: Ref, tally: Tally) -> Iterable[int]:
        active = self._pods(ref).refs(lambda state: state.active)
        taken = {self._index_of(pod) for pod in active} | (tally.completed or frozenset())
        return (i for i in range(self._view[ref]["spec"]["completions"]) if i not in taken)

    def _may_start(self, ref: Ref, tally: Tally) -> bool:
        """After a failure the next pod is not started at once."""
        stage = f"after failure {tally.failed}"
        retry = self._world.timing.retry
        return not tally.failed or self._world.is_due(Item(self.name, ref), stage, retry)

    # deadlines ----------------------------------------------------------------------------------

    def _elapsed(self, job: JsonObject) -> float:
        started = mapping(job, "status").get("startTime")
        return self._world.seconds_since(started) if started else 0

    def _set_alarm(self, ref: Ref, result: JobResult | None) -> None:
        job = self._view[ref]
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None and result is None and not job["spec"].get("suspend"):
            remaining = deadline - self._elapsed(job)
            self._world.stage_timers.alarm(Item(self.name, ref), remaining)

    def _expire(self, ref: Ref) -> None:
        job = self._view[ref]
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        ended = next(find_condition(job, kind) for kind in FINAL if is_true(job, kind))
        remaining = lifetime - self._world.seconds_since(str(ended.get("lastTransitionTime")))
        if remaining <= 0:
            self._world.delete(ref, policy="Foreground")
        else:
            self._world.stage_timers.alarm(Item(self.name, ref), remaining)


def _indexed(template: JsonObject, index: int) -> JsonObject:
    """The template with the index as an annotation and a label."""
    labelled = with_label(template, INDEX, str(index))
    annotations = {**mapping(labelled, "metadata", "annotations"), INDEX: str(index)}
    return {**labelled, "metadata": {**labelled["metadata"], "annotations": annotations}}


def _with_index(spec: JsonObject) -> JsonObject:
    """The pod spec whose containers find their index in the environment."""
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    indexed: JsonObject = {}
    for name in ("initContainers", "containers"):
        containers = listing(spec, name)
        if containers:
            indexed[name] = [{**c, "env": [*listing(c, "env"), variable]} for c in containers]
    return {**spec, **indexed}


class JobOrphans:
    """Takes the Jobs' finalizer from pods that no Job manages."""

    name = "job-orphans"
    watches: Kinds = frozenset({("batch", "jobs"), ("", "pods")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods with the finalizer, by themselves or because their Job was deleted."""
        if ref.resource == "jobs":
            gone = change.type == "DELETED"
            groups = self._view.pods_of(uid_of(change.new))
            return groups.refs(lambda state: state.tracked) if gone else []
        return [ref] if TRACKING in listing(change.new, "metadata", "finalizers") else []

    def reconcile(self, ref: Ref) -> None:
        """Let the pod go, unless a Job manages it."""
        pod = self._view[ref]
        manager = self._view.controller_of(pod)
        managed = manager is not None and manager.resource == "jobs"
        if not managed and TRACKING in listing(pod, "metadata", "finalizers"):
            self._world.remove_finalizer(ref, TRACKING)
