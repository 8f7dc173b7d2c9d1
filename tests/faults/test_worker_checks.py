"""Each check of the campaign of workers finds what it is for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from faults.rig.records import Json
from faults.workers.checks import (
    check_attempts,
    check_deletes,
    check_early,
    check_effects,
    check_ended,
    check_last_changes,
    check_losses,
    check_owners,
    check_quarantine,
    check_queue,
    check_refusals,
    check_share,
    check_target,
    check_workers,
)
from faults.workers.main import command_of, plans_of, read_arguments
from faults.workers.records import WorkerRecords, WorkerRun, runs_of
from faults.workers.settings import LEASE_SECONDS, POISON, quarantine_seconds, writes_target

KEY = "alpha/default/n1"


def rules(violations: Any) -> list[str]:
    return [violation.rule for violation in violations]


def run(begin: float, end: float | None, outcome: str = "ok", **more: Any) -> WorkerRun:
    """A run that was taken when it began; it looks at once and acts at its end."""
    last = begin if end is None else end
    acts = [("read", begin, begin), ("acted", last, last)]
    fields: Json = {"key": KEY, "worker": "worker-1", "attempt": 0, "acts": acts, "read": "7"}
    return WorkerRun(
        fence=f"{int(begin * 1e6)}.token.store",
        pid=1,
        begin=begin,
        read_at=begin,
        end=end,
        outcome=outcome if end is not None else "",
        **fields | more,
    )


def records(*runs: WorkerRun, **more: Any) -> WorkerRecords:
    meta = {"phase": "peace", "began": 0.0, "settled_seconds": 1.0}
    truth = {KEY: {"t": 0.0, "type": "MODIFIED", "rv": "7"}}
    fields: Json = {"meta": meta, "truth": truth, "commits": [1.0], "runs": list(runs)}
    return WorkerRecords(**fields | more)


def fault(kind: str, begin: float, end: float, **more: Any) -> list[Json]:
    line = {"kind": "fault", "fault": kind, **more}
    return [{**line, "t": begin, "phase": "begin"}, {**line, "t": end, "phase": "end"}]


def lost(seconds: float) -> dict[str, list[Json]]:
    at = f"1970-01-01T00:00:{seconds:09.6f}Z"
    line = {"event": "lease_lost", "timestamp": at, "reason": "refused"}
    return {"worker-1": [line]}


def test_nothing_is_wrong_with_two_runs_one_after_the_other():
    assert rules(check_workers(records(run(10, 11), run(12, 13)))) == []


@pytest.mark.parametrize(
    ("runs", "change", "rules_broken"),
    [
        ([run(10, 11)], {"type": "MODIFIED", "rv": "7", "t": 9.0}, []),
        ([run(10, 11)], {"type": "MODIFIED", "rv": "8", "t": 9.0}, ["lost-change"]),
        ([run(10, 11, "failed")], {"type": "MODIFIED", "rv": "7", "t": 9.0}, ["lost-change"]),
        ([run(10, None)], {"type": "MODIFIED", "rv": "7", "t": 9.0}, ["lost-change"]),
        ([run(10, 11, read="")], {"type": "DELETED", "rv": "7", "t": 9.0}, []),
        ([run(10, 11, read="")], {"type": "DELETED", "rv": "7", "t": 10.5}, ["lost-deletion"]),
        ([run(10, 11)], {"type": "DELETED", "rv": "7", "t": 9.0}, ["lost-deletion"]),
        # A run that comes later must not have read what was before.
        ([run(10, 11), run(12, 13)], {"type": "MODIFIED", "rv": "7", "t": 9.0}, []),
        (
            [run(10, 11, read="8"), run(12, 13)],
            {"type": "MODIFIED", "rv": "8", "t": 9.0},
            ["lost-change"],
        ),
        (
            [run(10, 11, read=""), run(12, 13)],
            {"type": "DELETED", "rv": "8", "t": 9.0},
            ["lost-deletion"],
        ),
        (
            [run(10, 11, read="8"), run(12, 13, "failed")],
            {"type": "MODIFIED", "rv": "8", "t": 9.0},
            [],
        ),
    ],
)
def test_i2_a_last_change_that_the_last_good_run_has_not_read_is_found(
    runs: list[WorkerRun], change: Json, rules_broken: list[str]
):
    assert rules(check_last_changes(records(*runs, truth={KEY: change}))) == rules_broken


def test_i3_an_effect_under_an_old_fence_is_found_whoever_was_stopped():
    older, newer = run(10, 14), run(12, 13, worker="worker-2")
    stopped = fault("sigstop", 10.5, 13.5, process="worker-1")
    assert rules(check_effects(records(older, newer))) == ["stale-effect"]
    assert rules(check_effects(records(older, newer, log=stopped))) == ["stale-effect"]
    older.acts[-1] = ("acted", 10.4, 14.0)  # stopped between the look and the effect
    assert rules(check_effects(records(older, newer, log=stopped))) == []
    older.acts.pop()
    assert rules(check_effects(records(older, newer))) == []


def test_q5_two_owners_at_a_time_are_found_unless_one_stood_still():
    older, newer = run(10, 14, "cancelled"), run(12, 13, worker="worker-2")
    stopped = fault("sigstop", 10.5, 13.5, process="worker-1")
    assert rules(check_owners(records(older, newer))) == ["two-owners"]
    assert rules(check_owners(records(older, newer, log=stopped))) == []
    other = fault("sigstop", 10.5, 13.5, process="worker-2")
    assert rules(check_owners(records(older, newer, log=other))) == ["two-owners"]
    assert rules(check_owners(records(older, newer, log=fault("sigstop-valkey", 9, 12)))) == []
    starved = {"worker-1": [(10.5, 12.5)]}
    assert rules(check_owners(records(older, newer, starved=starved))) == []


def test_q5_a_lease_that_is_lost_for_no_reason_is_found():
    assert rules(check_losses(records(logs=lost(20)))) == ["lease-lost"]
    stopped = fault("sigstop", 16, 19.9, process="worker-1")
    assert rules(check_losses(records(logs=lost(20), log=stopped))) == []
    assert rules(check_losses(records(logs=lost(20), log=fault("kill-valkey", 18, 19)))) == []


def test_q6_a_key_of_a_killed_worker_that_is_taken_before_its_lease_is_over_is_found():
    assert rules(check_early(records(run(10, None), run(10 + 0.9 * LEASE_SECONDS, 15)))) == [
        "taken-early"
    ]
    assert rules(check_early(records(run(10, None), run(10 + 1.1 * LEASE_SECONDS, 15)))) == []


def write(seconds: float, by: WorkerRun, status: int = 200) -> Json:
    path = f"/api/v1/namespaces/default/configmaps/{KEY.replace('/default/', '.')}"
    query = {"fieldManager": by.fence}
    return {"t": seconds, "verb": "patch", "path": path, "query": query, "status": status}


def test_r4_a_write_under_an_old_fence_that_reaches_the_target_is_found():
    older, newer = run(10, 14, sends=10.2), run(12, 13, worker="worker-2")
    before, after = [write(10.3, older), write(12.5, newer)], [write(12.1, older)]
    replacing = [write(12.5, newer), write(13.9, older)]
    assert rules(check_target(records(older, newer, writes=before))) == []
    assert rules(check_target(records(older, newer, writes=after))) == ["stale-write"]
    stopped = fault("sigstop", 10.25, 12.05, process="worker-1")  # with the request on its way
    assert rules(check_target(records(older, newer, writes=after, log=stopped))) == []
    broken = rules(check_target(records(older, newer, writes=replacing, log=stopped)))
    assert broken == ["replaced"]
    refused = [write(12.5, newer), write(13.9, older, status=409)]
    assert rules(check_target(records(older, newer, writes=refused))) == []


@pytest.mark.parametrize(
    ("attempts", "outcomes", "rules_broken"),
    [
        ([0, 1, 2, 0], ["failed", "failed", "ok", "ok"], []),
        ([0, 0], ["failed", "ok"], ["attempts"]),
        ([0, 1], ["ok", "ok"], ["attempts"]),
        ([0, 0], ["cancelled", "ok"], []),
        ([0, 1], ["cancelled", "ok"], ["attempts"]),
    ],
)
def test_q7_attempts_that_are_not_the_failures_since_the_last_success_are_found(
    attempts: list[int], outcomes: list[str], rules_broken: list[str]
):
    runs_made = [
        run(10.0 * n, 10.0 * n + 1, outcome, attempt=attempt)
        for n, (attempt, outcome) in enumerate(zip(attempts, outcomes, strict=True), 1)
    ]
    assert rules(check_attempts(records(*runs_made))) == rules_broken


def test_q7_a_failure_that_nobody_wrote_down_is_not_missed():
    runs_made = [run(10, 11, "failed"), run(20, 21)]
    killed = [{"t": 11.1, "kind": "kill", "process": "worker-1", "why": "any-time"}]
    assert rules(check_attempts(records(*runs_made, log=killed))) == []


def test_q7_a_deadly_key_that_comes_back_too_soon_is_found():
    gaps = [LEASE_SECONDS, LEASE_SECONDS, LEASE_SECONDS + quarantine_seconds(1)]

    def deaths(last: float) -> list[WorkerRun]:
        begin, runs_made = 10.0, [run(10.0, None, key=POISON)]
        for gap in [*gaps[:2], last]:
            begin += gap + 0.1
            runs_made.append(run(begin, None, key=POISON))
        return runs_made

    assert rules(check_quarantine(records(*deaths(gaps[2])))) == []
    assert rules(check_quarantine(records(*deaths(gaps[1])))) == ["quarantine"]


def test_q2_i8_i5_what_is_left_runs_without_end_and_deletions_are_found():
    assert rules(check_queue(records(queue={"dirty": 0, "processing": 1}))) == ["queue-left"]
    many = [run(10.0 + n, 10.5 + n) for n in range(4)]
    assert rules(check_share(records(*many))) == ["too-many-runs"]
    assert rules(check_share(records(*many[:3]))) == []
    deleted: Json = {
        "t": 1.0,
        "verb": "delete",
        "path": "/x",
        "agent": "a",
        "query": {},
        "status": 200,
    }
    assert rules(check_deletes(records(writes=[deleted]))) == ["deleted-on-target"]


def test_q4_a_campaign_that_refused_nobody_has_shown_nothing():
    stops = [line for n in range(3) for line in fault("sigstop", n, n + 0.5, process="worker-1")]
    assert rules(check_refusals(records(log=stops))) == ["no-refusal"]
    assert rules(check_refusals(records(log=stops, logs=lost(2)))) == []


def test_a_process_that_ends_is_found_unless_it_starts_while_a_server_is_away():
    ended = {"t": 20.0, "kind": "ended", "process": "worker-1", "words": "oops"}
    assert rules(check_ended(records(log=[ended]))) == ["process-ended"]
    started = {"t": 18.0, "kind": "start", "process": "worker-1"}
    away = fault("kill-nats", 17, 19)
    assert rules(check_ended(records(log=[*away, ended]))) == ["process-ended"]
    assert rules(check_ended(records(log=[*away, started, ended]))) == []
    logs = {"worker-1": [{"event": "reconciler_started", "timestamp": "1970-01-01T00:00:19Z"}]}
    assert rules(check_ended(records(log=[*away, started, ended], logs=logs))) == ["process-ended"]
    projector = [{**started, "process": "projector"}, {**ended, "process": "projector"}]
    assert rules(check_ended(records(log=[*away, *projector]))) == []
    assert rules(check_ended(records(log=[*away, {**projector[0], "t": 14.0}, projector[1]]))) == [
        "process-ended"
    ]


def test_the_lines_of_a_run_are_put_together():
    common = {"key": KEY, "fence": "5000000.t.s", "worker": "worker-1", "pid": 1}
    lines: list[Json] = [
        {"t": 5.1, "what": "begin", "attempt": 2, **common},
        {"t": 5.2, "what": "starved", "since": 5.1, "worker": "worker-1"},
        {"t": 5.3, "what": "read", "asked": 5.2, "rv": "", **common},
        {"t": 5.4, "what": "end", "outcome": "again", **common},
    ]
    (worker_run,) = runs_of(lines)
    assert (worker_run.taken, worker_run.attempt, worker_run.read, worker_run.end) == (
        5.0,
        2,
        "",
        5.4,
    )
    assert worker_run.is_success


def test_a_seed_of_workers_is_repeated_by_one_command():
    for words in (["--seed", "7", "--kills", "3", "--pauses", "1"], ["--cut"]):
        arguments = read_arguments(words)
        (plan,) = plans_of(arguments)
        command = command_of(plan, cut=arguments.cut).split()
        assert command[:3] == ["python", "tests/run.py", "faults.workers"]
        assert plans_of(read_arguments(command[3:])) == [plan]


def test_some_keys_are_written_to_the_target_and_some_are_not():
    outcomes_seen = {writes_target(f"alpha/default/n{n}") for n in range(20)}
    assert outcomes_seen == {True, False}
