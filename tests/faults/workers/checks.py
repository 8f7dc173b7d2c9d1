"""The rules that the records of workers must obey; offline, and as often as one likes.

A check is a function of `WorkerRecords` that yields violations; `CHECKS` lists them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from faults.rig.records import MEMORY_KB, Json, Violation, settled_within
from faults.workers.records import WorkerRecords, WorkerRun
from faults.workers.settings import LEASE_SECONDS, POISON, POLICY, WORKERS, quarantine_seconds

RUNS_PER_EVENT: Final = 3.0
"""I8: at most so many runs for each change, when nothing is broken."""
_SHOWN: Final = 4
_TICK: Final = 0.05
"""Between the clocks of two processes on one machine."""
_SURE_SECONDS: Final = 2.0
"""A worker that lived on for so long has written its outcome down."""
_AFTER_STORE: Final = 2 * LEASE_SECONDS
"""So long a lease may suffer from a store that stood still: renewed too late, held back."""
_USUAL_KB: Final = 110_000
"""Most workers of a campaign die young, so the median of all says little."""
_STARTING: Final = 5.0
_BACK: Final = 1.0
"""Slack in seconds: a worker logs a lease that was lost during a pause only after it resumes."""


def _some(rule: str, examples: Sequence[str]) -> Iterator[Violation]:
    if examples:
        yield Violation(rule, f"{len(examples)}, like {'; '.join(examples[:_SHOWN])}")


def check_last_changes(records: WorkerRecords) -> Iterator[Violation]:
    """I2: of each object the last run that ended well has read the last change, or the absence."""
    last: dict[str, WorkerRun] = {
        key: run
        for key, runs in records.by_key().items()
        for run in runs
        if run.is_success and run.read is not None
    }
    missed: dict[str, list[str]] = defaultdict(list)
    for key, change in records.truth.items():
        run = last.get(key)
        if change["type"] == "DELETED":
            if run is None or run.read or run.read_at < change["t"] - _TICK:
                missed["lost-deletion"].append(f"{key} {change}")
        elif run is None or run.read != change["rv"]:
            missed["lost-change"].append(f"{key} {change}")
    for rule, examples in missed.items():
        yield from _some(rule, examples)


def check_effects(records: WorkerRecords) -> Iterator[Violation]:
    """I3: once a newer fence has acted on a key, no older one does; whatever stopped its worker.

    Whoever was stopped between the look at its lease and the effect itself is excused: only the
    resource could refuse that.
    """
    late: list[str] = []
    for key, runs in records.by_key().items():
        acts = sorted(
            (t, run.taken, requested, run) for run in runs for _, requested, t in run.acts
        )
        newest = 0.0
        for t, taken, asked, run in acts:
            if taken < newest and not records.stops[run.worker].meets(asked, t):
                late.append(f"{key} by {run.worker} {run.fence} at {t:.3f}")
            newest = max(newest, taken)
    yield from _some("stale-effect", late)


def check_owners(records: WorkerRecords) -> Iterator[Violation]:
    """Q4, Q5: two runs of one key overlap only if the older one's worker stood still.

    Or the store did: then a handler that blocks its loop cannot learn that its lease is lost.
    """
    doubles: list[str] = []
    for key, runs in records.by_key().items():
        for older, newer in pairwise(runs):
            if older.end is None or older.end <= newer.begin + _TICK:
                continue
            since = older.taken - _TICK
            is_excused = records.stops[older.worker].meets(since, newer.begin) or (
                records.store_faults.meets(since - _AFTER_STORE, newer.begin)
            )
            if not is_excused:
                doubles.append(
                    f"{key}: {older.worker} {older.taken:.2f}-{older.end:.2f} ({older.outcome}),"
                    f" {newer.worker} from {newer.begin:.2f}"
                )
    yield from _some("two-owners", doubles)


def check_losses(records: WorkerRecords) -> Iterator[Violation]:
    """Q5: nobody loses a lease unless it stood still, or the store did.

    Nor does who blocks its loop, but for what was taken just then: the answer is read too late.
    An end that is refused when its run is over is none: the run is repeated, and nobody overlaps.
    """
    losses = [
        f"{worker} at {t:.2f}: {line['reason']}"
        for worker, t, line in records.lines("lease_lost")
        if "reason" in line
        and not records.stops[worker].meets(t - _BACK - LEASE_SECONDS, t)
        and not records.blocks[worker].meets(t - _BACK, t)
        and not records.store_faults.meets(t - _AFTER_STORE, t)
    ]
    yield from _some("lease-lost", losses)


def check_early(records: WorkerRecords) -> Iterator[Violation]:
    """Q6: what a killed worker held is free after a whole lease, not before."""
    early = [
        f"{key}: taken at {older.taken:.2f}, again at {newer.taken:.2f}"
        for key, runs in records.by_key().items()
        for older, newer in pairwise(runs)
        if older.end is None and newer.taken - older.taken < LEASE_SECONDS
    ]
    yield from _some("taken-early", early)


# --- the target ---------------------------------------------------------------------------------


def check_target(records: WorkerRecords) -> Iterator[Violation]:
    """R4: no write under an old fence reaches the target after a newer one has begun.

    Only if its worker was stopped with the request on its way, and then it replaces nothing newer.
    """
    fences = {run.fence + run.key: run for run in records.runs}
    runs = records.by_key()
    stale: list[str] = []
    replaced: list[str] = []
    newest: dict[str, float] = defaultdict(float)
    for write in accepted(records):
        key = key_of(write)
        run = fences[write["query"]["fieldManager"] + key]
        write_line = f"{key} by {run.worker} {run.fence} at {write['t']:.3f}"
        if run.taken < newest[key]:
            replaced.append(write_line)
        newest[key] = max(newest[key], run.taken)
        if any(r.taken > run.taken and r.begin < write["t"] - _TICK for r in runs[key]):
            sent = run.sends or run.begin
            if not records.stops[run.worker].meets(sent, write["t"]):
                stale.append(write_line)
    yield from _some("stale-write", stale)
    yield from _some("replaced", replaced)


def accepted(records: WorkerRecords) -> list[Json]:
    """The writes that the target took, in order."""
    return [
        write
        for write in records.writes
        if write["verb"] == "patch" and "fieldManager" in write["query"] and write["status"] < 300
    ]


def key_of(write: Json) -> str:
    """The key of the run that writes this object of the target."""
    *_, namespace, _, name = write["path"].split("/")
    cluster, _, tail = name.partition(".")
    return f"{cluster}/{namespace}/{tail}"


# --- the queue ----------------------------------------------------------------------------------


def check_queue(records: WorkerRecords) -> Iterator[Violation]:
    """Q2: nothing is left when all is done."""
    if left := {queue_part: count for queue_part, count in records.queue.items() if count}:
        yield Violation("queue-left", str(left))


def check_settled(records: WorkerRecords) -> Iterator[Violation]:
    """I1, I2: all is done soon after the last fault."""
    took, bound = records.meta["settled_seconds"], settled_within(records.meta)
    if took > bound:
        yield Violation("not-settled", f"{took:.0f} s after the last fault, not {bound:.0f} s")


def check_attempts(records: WorkerRecords) -> Iterator[Violation]:
    """Q7: attempts are the failures since the last success, and crashes are none."""
    wrong: list[str] = []
    for key, runs in records.by_key().items():
        least = most = 0
        for run in runs:
            if not least <= run.attempt <= most:
                wrong.append(f"{key} {run.fence}: {run.attempt}, not {least} to {most}")
            is_sure = _is_sure(records, run)
            if run.is_failure:
                least, most = run.attempt + is_sure, run.attempt + 1
            elif run.is_success:
                least, most = 0, 0 if is_sure else run.attempt
            else:
                least, most = run.attempt, run.attempt
    yield from _some("attempts", wrong)


def _is_sure(records: WorkerRecords, run: WorkerRun) -> bool:
    """Whether the outcome of a run was surely written down."""
    if run.end is None:
        return False
    until = run.end + _SURE_SECONDS
    return not (
        records.kills[run.worker].meets(run.end - _TICK, until)
        or records.stops[run.worker].meets(run.end - LEASE_SECONDS, until)
        or records.store_faults.meets(run.end - _AFTER_STORE, until)
    )


def check_quarantine(records: WorkerRecords) -> Iterator[Violation]:
    """Q7: a key whose workers die is kept back from the third time on, longer each time."""
    runs = records.by_key().get(POISON, [])
    for deaths, (older, newer) in enumerate(pairwise(runs), 1):
        if older.end is not None:
            return
        times = deaths - POLICY.reclaims + 1
        least = LEASE_SECONDS + (quarantine_seconds(times) if times > 0 else 0)
        if newer.taken - older.taken < least:
            gap = newer.taken - older.taken
            yield Violation("quarantine", f"death {deaths}: again after {gap:.1f} s, not {least}")


# --- processes ----------------------------------------------------------------------------------


def check_refusals(records: WorkerRecords) -> Iterator[Violation]:
    """A campaign in which no former owner was refused has shown nothing of it."""
    stops = sum(
        line["kind"] == "fault" and line["fault"] == "sigstop" and line["phase"] == "begin"
        for line in records.log
    )
    if stops >= 3 and not records.lines("lease_lost"):
        yield Violation("no-refusal", f"{stops} workers were stopped, and none lost a lease")


def check_behind(records: WorkerRecords) -> Iterator[Violation]:
    """P9: what wakes a worker is in the snapshot before."""
    entries = [f"{worker} at {t:.2f}" for worker, t, _ in records.lines("snapshot_behind")]
    yield from _some("snapshot-behind", entries)


def check_share(records: WorkerRecords) -> Iterator[Violation]:
    """I8: when nothing is broken, few runs per change."""
    if records.meta["phase"] == "peace" and runs_per_event(records) > RUNS_PER_EVENT:
        yield Violation("too-many-runs", f"{runs_per_event(records):.2f} for each change")


def runs_per_event(records: WorkerRecords) -> float:
    """Runs per event of this phase; runs that were asked for, or failed on purpose, are not
    counted."""
    began = records.meta["began"]
    runs = [run for run in records.runs if run.begin >= began]
    repeated = sum(run.outcome == "again" or run.is_failure for run in runs)
    return (len(runs) - repeated) / max(1, sum(t >= began for t in records.commits))


def check_memory(records: WorkerRecords) -> Iterator[Violation]:
    """I12: a worker's memory is bounded."""
    sizes: dict[str, int] = {}
    for _, process, size in records.memory:
        if process.startswith("worker"):
            sizes[process] = max(sizes.get(process, 0), size)
    bound = max(_USUAL_KB, median(sizes.values() or [0])) + MEMORY_KB
    if grown := {p: s for p, s in sizes.items() if s > bound}:
        yield Violation("memory", f"above {bound:.0f} KB: {grown}")


def check_ended(records: WorkerRecords) -> Iterator[Violation]:
    """A fault of others ends no process of ours, but one that starts meanwhile."""
    for line in records.log:
        if line["kind"] != "ended" or line["t"] < records.meta["began"]:
            continue
        at, process = line["t"], line["process"]
        if not (_is_starting(records, process, at) and records.outages.meets(at - _STARTING, at)):
            yield Violation("process-ended", f"{line['process']}: {line['words']}")


def _is_starting(records: WorkerRecords, process: str, at: float) -> bool:
    """Whether it has been started a short while ago; a worker tells when that is over."""
    starts = [x["t"] for x in records.log if x["kind"] == "start" and x["process"] == process]
    started = max((t for t in starts if t <= at), default=0.0)
    if process not in WORKERS:
        return at - started < _STARTING
    starts = [t for who, t, _ in records.lines("reconciler_started") if who == process]
    return bool(started) and not any(started < t < at for t in starts)


def check_deletes(records: WorkerRecords) -> Iterator[Violation]:
    """I5: nobody deletes anything on the target."""
    deletes = [f"{write['agent']} {write['path']}" for write in records.writes if _deletes(write)]
    yield from _some("deleted-on-target", deletes)


def _deletes(write: Json) -> bool:
    return write["verb"] in ("delete", "deletecollection")


CHECKS: Final[tuple[Callable[[WorkerRecords], Iterable[Violation]], ...]] = (
    check_last_changes,
    check_effects,
    check_owners,
    check_losses,
    check_early,
    check_target,
    check_queue,
    check_settled,
    check_attempts,
    check_quarantine,
    check_refusals,
    check_behind,
    check_share,
    check_memory,
    check_ended,
    check_deletes,
)


def check_workers(records: WorkerRecords) -> list[Violation]:
    """All violations."""
    return [violation for each in CHECKS for violation in each(records)]
