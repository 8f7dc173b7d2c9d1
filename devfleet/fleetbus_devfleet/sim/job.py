"""Jobs: pods that are to end well, a given number of times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.children import is_active, is_ready, new_pod
from fleetbus_devfleet.sim.conditions import is_true
from fleetbus_devfleet.sim.job_status import Tally, Verdict, is_finished, job_status, verdict_on
from fleetbus_devfleet.sim.owners import managers_concerned
from fleetbus_devfleet.sim.pod_status import restarts_of
from fleetbus_devfleet.sim.view import Ref, is_deleting, uid_of
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
BATCH = "batch"
FINAL = ("Complete", "Failed")


class JobController:
    """Runs Jobs.

    Ended pods are counted as long as they exist, and what the status once said stays true; real
    clusters hold ended pods by a finalizer until they are counted.
    """

    name = "job"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Jobs by themselves and by their pods."""
        if (ref.group, ref.resource) == (BATCH, "jobs"):
            return [ref]
        if (ref.group, ref.resource) == ("", "pods"):
            return [
                *managers_concerned(self._view, change.new, BATCH, "jobs"),
                *managers_concerned(self._view, change.old, BATCH, "jobs"),
            ]
        return []

    def reconcile(self, ref: Ref) -> None:
        """Start pods, count those that ended, or draw the conclusion."""
        job = self._view[ref]
        if is_deleting(job):
            return
        if is_finished(job):
            self._expire(ref)
            return
        verdict = verdict_on(job, self._tally(ref), self._elapsed(job))
        self._fit(ref, verdict)
        self._write_status(ref, verdict)

    def _pods(self, ref: Ref) -> list[Ref]:
        return self._view.controlled(uid_of(self._view[ref]), "", "pods")

    def _tally(self, ref: Ref) -> Tally:
        job = self._view[ref]
        pods = [self._view[pod] for pod in self._pods(ref)]
        active = [pod for pod in pods if is_active(pod)]
        phases = [mapping(pod, "status").get("phase") for pod in pods]
        before = mapping(job, "status")
        return Tally(
            active=len(active),
            ready=sum(map(is_ready, active)),
            terminating=sum(map(is_deleting, pods)),
            succeeded=max(phases.count("Succeeded"), before.get("succeeded", 0)),
            failed=max(phases.count("Failed"), before.get("failed", 0)),
            restarts=sum(map(restarts_of, active)),
        )

    def _elapsed(self, job: JsonObject) -> float:
        started = mapping(job, "status").get("startTime")
        return self._world.seconds_since(started) if started else 0

    # pods ---------------------------------------------------------------------------------------

    def _fit(self, ref: Ref, verdict: Verdict | None) -> None:
        tally = self._tally(ref)
        wanted = _wanted(self._view[ref], tally) if verdict is None else 0
        if wanted < tally.active:
            active = [pod for pod in self._pods(ref) if is_active(self._view[pod])]
            for pod in active[wanted:]:
                self._world.delete(pod, policy="Background")
        elif wanted > tally.active and self._may_start(ref, tally):
            job = self._view[ref]
            for _ in range(wanted - tally.active):
                template = job["spec"]["template"]
                body = new_pod(job, template, generateName=f"{ref.name}-")
                self._world.create("v1/pods", body)

    def _may_start(self, ref: Ref, tally: Tally) -> bool:
        """After a failure the next pod is not started at once."""
        stage = f"after failure {tally.failed}"
        retry = self._world.timing.retry
        return not tally.failed or self._world.is_due(Item(self.name, ref), stage, retry)

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref, verdict: Verdict | None) -> None:
        status = job_status(self._view[ref], self._tally(ref), verdict, self._world.now())
        self._world.write_status(ref, status)
        job = self._view[ref]
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None and verdict is None and not job["spec"].get("suspend"):
            remaining = deadline - self._elapsed(job)
            self._world.pace.alarm(Item(self.name, ref), remaining)

    def _expire(self, ref: Ref) -> None:
        job = self._view[ref]
        lifetime = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime is None:
            return
        conditions = job["status"]["conditions"]
        ended = next(c for c in conditions if is_true(job, c["type"]) and c["type"] in FINAL)
        remaining = lifetime - self._world.seconds_since(ended["lastTransitionTime"])
        if remaining <= 0:
            self._world.delete(ref, policy="Foreground")
        else:
            self._world.pace.alarm(Item(self.name, ref), remaining)


def _wanted(job: JsonObject, tally: Tally) -> int:
    """How many pods shall be active."""
    spec = job["spec"]
    if spec.get("suspend"):
        return 0
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    if completions is None:  # a work queue: once one has ended well, no more are started
        return min(parallelism, tally.active) if tally.succeeded else parallelism
    return max(0, min(parallelism, completions - tally.succeeded))
