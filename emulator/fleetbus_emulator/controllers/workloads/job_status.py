"""The end of a Job, and its status: pure computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import (
    Condition,
    find_condition,
    is_true,
    with_condition,
)

INDEX = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str, below: int) -> set[int]:
    """Parse indexes below a limit; invalid parts are left out."""
    indexes: set[int] = set()
    for span in text.split(","):
        first, _, last = span.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            indexes.update(range(int(first), min(int(last or first), below - 1) + 1))
    return indexes


def show_indexes(indexes: Iterable[int]) -> str:
    """Format a set of indexes."""
    return ",".join(_show(first, last) for first, last in _runs(sorted(indexes)))


def _show(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def _runs(ordered: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for place, value in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != value + 1:
            yield ordered[start], value
            start = place + 1


JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """A Job's pods, counted.

    Attributes:
        active: Neither ended nor being deleted.
        terminating: Being deleted, but not ended.
        restarts: Of the containers of active pods.
        new_succeeded: The uids of pods that succeeded and are not in the counters yet.
        new_failed: The same of pods that failed, or were deleted before they ended.
        counted_succeeded: What the counter says.
        counted_failed: What the counter says.
        completed: Of an Indexed Job, the indexes of which a pod succeeded.
    """

    active: int = 0
    ready: int = 0
    terminating: int = 0
    restarts: int = 0
    new_succeeded: Sequence[str] = ()
    new_failed: Sequence[str] = ()
    counted_succeeded: int = 0
    counted_failed: int = 0
    completed: frozenset[int] | None = None

    @property
    def succeeded(self) -> int:
        """The number of pods, or indexes, that succeeded."""
        if self.completed is not None:
            return len(self.completed)
        return self.counted_succeeded + len(self.new_succeeded)

    @property
    def failed(self) -> int:
        """The number of pods that failed."""
        return self.counted_failed + len(self.new_failed)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a Job."""

    succeeded: bool
    reason: str
    message: str


ACHIEVED = JobResult(True, "CompletionsReached", "Reached expected number of succeeded pods")
GAVE_UP = JobResult(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
TOO_LATE = JobResult(False, "DeadlineExceeded", "Job was active longer than specified deadline")


def is_finished(job: JsonObject) -> bool:
    """Whether the Job is over for good."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def is_indexed(job: JsonObject) -> bool:
    """Whether each of the Job's completions has a number."""
    spec = mapping(job, "spec")
    return spec.get("completionMode") == "Indexed" and isinstance(spec.get("completions"), int)


def completed_before(job: JsonObject) -> frozenset[int] | None:
    """The indexes that an Indexed Job's status counts; None of any other Job."""
    if not is_indexed(job):
        return None
    text = str(mapping(job, "status").get("completedIndexes") or "")
    return frozenset(parse_indexes(text, job["spec"]["completions"]))


def result_of(job: JsonObject, tally: Tally, elapsed_seconds: float) -> JobResult | None:
    """The result of the Job; None while it goes on. A recorded result stays."""
    recorded = _recorded_result(job)
    if recorded is not None:
        return recorded
    spec = mapping(job, "spec")
    if _is_exhausted(spec, tally):
        return GAVE_UP
    deadline = spec.get("activeDeadlineSeconds")
    suspended = bool(spec.get("suspend"))
    started = "startTime" in mapping(job, "status")
    if deadline is not None and started and not suspended and elapsed_seconds >= deadline:
        return TOO_LATE
    return ACHIEVED if _is_achieved(spec, tally) else None


def _recorded_result(job: JsonObject) -> JobResult | None:
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
    return tally.succeeded >= completions and not tally.active


def _is_exhausted(spec: JsonObject, tally: Tally) -> bool:
    limit: int = spec.get("backoffLimit", 6)
    if tally.failed > limit:
        return True
    # Containers that are started again in place count, too; none of them may, if the limit is 0.
    in_place = mapping(spec, "template", "spec").get("restartPolicy") == "OnFailure"
    return in_place and tally.restarts >= max(limit, 1)


def wanted_pods(spec: JsonObject, tally: Tally) -> int:
    """The number of pods that should be active while the Job goes on."""
    if spec.get("suspend"):
        return 0
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    if completions is None:  # a work queue: once one has succeeded, no more are started
        return tally.active if tally.succeeded else parallelism
    return max(0, min(parallelism, completions - tally.succeeded))


BURST = 50  # pods counted in one turn


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The counters of ended pods in a Job's status.

    Attributes:
        succeeded: In the counter.
        failed: In the counter.
        uncounted: Uids by `succeeded` and `failed` that the counters are about to take in.
    """

    succeeded: int
    failed: int
    uncounted: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


def before_counting(tally: Tally) -> PodCounts:
    """The counts while some of the ended pods are let go."""
    uncounted = {"succeeded": tally.new_succeeded[:BURST], "failed": tally.new_failed[:BURST]}
    succeeded = tally.counted_succeeded
    if tally.completed is not None:
        succeeded = len(tally.completed)  # the index itself is counted
        uncounted["succeeded"] = ()
    filled = {name: uids for name, uids in uncounted.items() if uids}
    return PodCounts(succeeded, tally.counted_failed, filled)


def after_counting(tally: Tally) -> PodCounts:
    """The counts once they are let go."""
    failed = tally.counted_failed + len(tally.new_failed[:BURST])
    if tally.completed is not None:
        return PodCounts(len(tally.completed), failed)
    return PodCounts(tally.counted_succeeded + len(tally.new_succeeded[:BURST]), failed)


def job_status(
    job: JsonObject, tally: Tally, result: JobResult | None, counts: PodCounts, now: str
) -> JsonObject:
    """The whole status."""
    before, suspended = mapping(job, "status"), bool(mapping(job, "spec").get("suspend"))
    counted_all = max(len(tally.new_succeeded), len(tally.new_failed)) <= BURST
    over = result is not None and counted_all and not counts.uncounted
    over = over and not tally.terminating and not tally.active
    counted = {"active": tally.active, "succeeded": counts.succeeded, "failed": counts.failed}
    status: JsonObject = {
        **{name: number for name, number in counted.items() if number},
        "ready": tally.ready,
        "terminating": tally.terminating,
        "uncountedTerminatedPods": {name: [*uids] for name, uids in counts.uncounted.items()},
    }
    if tally.completed:
        status["completedIndexes"] = show_indexes(tally.completed)
    resumed = not suspended and is_true(job, "Suspended")
    started = now if resumed else before.get("startTime") or (None if suspended else now)
    if started:
        status["startTime"] = started
    if over and result is not None and result.succeeded:
        status["completionTime"] = now
    conditions = _conditions(job, result, now, over=over)
    if conditions:
        status["conditions"] = conditions
    return status


def _conditions(
    job: JsonObject, result: JobResult | None, now: str, *, over: bool
) -> list[JsonObject]:
    new_conditions: list[Condition] = []
    if result is not None:
        target = "SuccessCriteriaMet" if result.succeeded else "FailureTarget"
        final = "Complete" if result.succeeded else "Failed"
        kinds = [target, final] if over else [target]
        new_conditions = [Condition(kind, "True", result.reason, result.message) for kind in kinds]
    elif mapping(job, "spec").get("suspend"):
        new_conditions = [Condition("Suspended", "True", "JobSuspended", "Job suspended")]
    elif is_true(job, "Suspended"):
        new_conditions = [Condition("Suspended", "False", "JobResumed", "Job resumed")]
    conditions = listing(job, "status", "conditions")
    for condition in new_conditions:
        conditions = with_condition(conditions, condition, now, has_probe_time=True)
    return conditions
