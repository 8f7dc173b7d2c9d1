"""Each error and each result of a reconcile function has one outcome (rule R8)."""

from __future__ import annotations

import pytest

from fleetbus.errors import ClusterNotFound, Conflict, LeaseLostError, NotSynced, SnapshotBehind
from fleetbus.reconcile import Outcome, Result, TerminalError
from fleetbus.run.current import Run
from fleetbus.worker.handler import read_error, read_result
from support.rigs.worker import FIRST
from support.rows import each_row


@each_row(
    ("error", "outcome", "is_given_back"),
    [
        (ValueError("boom"), Outcome.RETRIED, False),
        (SystemExit(3), Outcome.RETRIED, False),
        (NotSynced("soon"), Outcome.RETRIED, False),
        (Conflict(409, "Conflict", "someone wrote first"), Outcome.RETRIED, False),
        (SnapshotBehind("it lags"), Outcome.RETRIED, True),
        (TerminalError("no"), Outcome.GAVE_UP, False),
        (LeaseLostError("of another run"), Outcome.RETRIED, False),
    ],
)
def test_r8_an_error_has_one_outcome(
    error: BaseException, outcome: Outcome, *, is_given_back: bool
) -> None:
    ending = read_error(error, Run(FIRST), has_cluster=True, is_timeout=False)
    assert (ending.outcome, ending.is_given_back) == (outcome, is_given_back)
    assert ending.error is error


@pytest.mark.parametrize(
    ("has_cluster", "outcome"), [(False, Outcome.CLUSTER_LEFT), (True, Outcome.RETRIED)]
)
def test_r8_only_a_request_whose_own_cluster_left_ends_quietly(
    outcome: Outcome, *, has_cluster: bool
) -> None:
    error = ClusterNotFound("cluster 'b' is not in the fleet")
    ending = read_error(error, Run(FIRST), has_cluster=has_cluster, is_timeout=False)
    assert ending.outcome is outcome


def test_r4_a_refused_write_loses_the_lease_whatever_the_function_does() -> None:
    run = Run(FIRST, was_refused=True)
    raised = read_error(LeaseLostError("lost"), run, has_cluster=True, is_timeout=False)
    for ending in (raised, read_result(None, run), read_result("anything", run)):
        assert (ending.outcome, ending.is_given_back) == (Outcome.LEASE_LOST, True)


@each_row(
    ("result", "outcome"),
    [
        (None, Outcome.DONE),
        (Result(), Outcome.DONE),
        (Result(0), Outcome.REQUEUED),
        (Result(30), Outcome.REQUEUED),
        (True, Outcome.GAVE_UP),
        ("done", Outcome.GAVE_UP),
    ],
)
def test_r8_a_result_has_one_outcome(result: object, outcome: Outcome) -> None:
    assert read_result(result, Run(FIRST)).outcome is outcome
