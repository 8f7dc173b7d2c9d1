"""When a Job is over, and its status: pure computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetbus_devfleet.apiserver.tree import listing, mapping
from fleetbus_devfleet.sim.conditions import Condition, find_condition, is_true, with_condition

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """A Job's pods, counted.

    Attributes:
        active: Neither ended nor being deleted.
        terminating: Being deleted.
        restarts: Of the containers of active pods.
    """

    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a Job ends."""

    succeeded: bool
    reason: str
    message: str


ACHIEVED = Verdict(True, "CompletionsReached", "Reached expected number of succeeded pods")
GAVE_UP = Verdict(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
TOO_LATE = Verdict(False, "DeadlineExceeded", "Job was active longer than specified deadline")


def is_finished(job: JsonObject) -> bool:
    """Whether the Job is over for good."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def verdict_on(job: JsonObject, tally: Tally, elapsed_seconds: float) -> Verdict | None:
    """How the Job ends; None while it goes on. A verdict once given stands."""
    given = _given_verdict(job)
    spec = mapping(job, "spec")
    if given is not None or spec.get("suspend"):
        return given
    if _is_exhausted(spec, tally):
        return GAVE_UP
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and elapsed_seconds >= deadline and "startTime" in job["status"]:
        return TOO_LATE
    return ACHIEVED if _is_achieved(spec, tally) else None


def _given_verdict(job: JsonObject) -> Verdict | None:
    if is_true(job, "SuccessCriteriaMet"):
        return ACHIEVED
    if not is_true(job, "FailureTarget"):
        return None
    reason = find_condition(job, "FailureTarget").get("reason")
    return TOO_LATE if reason == TOO_LATE.reason else GAVE_UP


def _is_achieved(spec: JsonObject, tally: Tally) -> bool:
    completions = spec.get("completions")
    if completions is None:  # a work queue is done when its last worker is
        return bool(tally.succeeded) and not tally.active
    return tally.succeeded >= completions


def _is_exhausted(spec: JsonObject, tally: Tally) -> bool:
    limit: int = spec.get("backoffLimit", 6)
    if tally.failed > limit:
        return True
    # Containers that are started again in place count, too; none of them may, if the limit is 0.
    return tally.restarts >= max(limit, 1)


def job_status(job: JsonObject, tally: Tally, verdict: Verdict | None, now: str) -> JsonObject:
    """The whole status."""
    before = mapping(job, "status")
    suspended = bool(mapping(job, "spec").get("suspend"))
    over = verdict is not None and not tally.active and not tally.terminating
    counted = {"active": tally.active, "succeeded": tally.succeeded, "failed": tally.failed}
    status: JsonObject = {
        **{name: number for name, number in counted.items() if number},
        "ready": tally.ready,
        "terminating": tally.terminating,
        "uncountedTerminatedPods": {},
    }
    if not suspended:
        status["startTime"] = before.get("startTime") or now
    if over and verdict is not None and verdict.succeeded:
        status["completionTime"] = now
    conditions = _conditions(job, verdict, now, suspended=suspended, over=over)
    if conditions:
        status["conditions"] = conditions
    return status


def _conditions(
    job: JsonObject, verdict: Verdict | None, now: str, *, suspended: bool, over: bool
) -> list[JsonObject]:
    conditions = listing(job, "status", "conditions")
    if suspended:
        said = Condition("Suspended", "True", "JobSuspended", "Job suspended")
        conditions = with_condition(conditions, said, now)
    elif is_true(job, "Suspended"):
        said = Condition("Suspended", "False", "JobResumed", "Job resumed")
        conditions = with_condition(conditions, said, now)
    if verdict is None:
        return conditions
    target = "SuccessCriteriaMet" if verdict.succeeded else "FailureTarget"
    said = Condition(target, "True", verdict.reason, verdict.message)
    conditions = with_condition(conditions, said, now)
    if over:
        final = "Complete" if verdict.succeeded else "Failed"
        said = Condition(final, "True", verdict.reason, verdict.message)
        conditions = with_condition(conditions, said, now)
    return conditions
