import json
from typing import Any

from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.status import Condition, Report
from fleetbus_distributor.plan.plan import Hold, HoldReason
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from support.rows import each_row

UNHEALTHY = ClusterHealth().with_object(
    "Deployment shop/web",
    Health(HealthState.DEGRADED, "ProgressDeadlineExceeded", "its progress deadline is exceeded"),
    {},
)


def report(*outcomes: ClusterOutcome, **fields: Any) -> Report:
    return Report(generation=2, outcomes=outcomes, inventory={}, **fields)


def conditions(built: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        condition["type"]: (condition["status"], condition["reason"])
        for condition in built["conditions"]
    }


def test_equal_facts_give_an_equal_status_and_no_write():
    first = status.build(report(ClusterOutcome("b"), ClusterOutcome("a")), {})
    again = status.build(report(ClusterOutcome("a"), ClusterOutcome("b")), first)
    assert not status.is_changed(again, first)
    assert [cluster["name"] for cluster in first["clusters"]] == ["a", "b"]


def test_a_transition_gets_a_time_and_a_steady_condition_keeps_its_own():
    old = status.build(report(ClusterOutcome("a")), {})
    old["conditions"][0]["lastTransitionTime"] = "2001-01-01T00:00:00Z"
    same = status.build(report(ClusterOutcome("a"), ClusterOutcome("b")), old)
    assert same["conditions"][0]["lastTransitionTime"] == "2001-01-01T00:00:00Z"
    other = status.build(report(ClusterOutcome("a", State.FAILED, "Invalid")), old)
    assert other["conditions"][0]["lastTransitionTime"] != "2001-01-01T00:00:00Z"


def test_ready_names_the_worst_state_and_the_clusters():
    outcomes = [ClusterOutcome(f"c{n}", State.WAITING, "NoMatch") for n in range(7)]
    built = status.build(report(*outcomes, ClusterOutcome("z", State.UNREACHABLE, "x")), {})
    assert conditions(built)["Ready"] == ("False", "Unreachable")
    assert built["conditions"][0]["message"].endswith("c4: Waiting, and 3 more")


def test_a_condition_that_was_true_becomes_false():
    old = status.build(report(ClusterOutcome("a"), hold=Hold(HoldReason.FUSE, "h")), {})
    assert conditions(old)["DeletionHeld"] == ("True", "DeletionFuse")
    built = status.build(report(ClusterOutcome("a")), old)
    assert conditions(built)["DeletionHeld"] == ("False", "NothingHeld")


def test_a_refused_spec_keeps_the_entries_of_the_clusters():
    old = status.build(report(ClusterOutcome("a")), {})
    built = status.refuse(Condition("Ready", is_true=False, reason="InvalidSpec"), 3, old)
    assert built["clusters"] == old["clusters"]
    assert built["observedGeneration"] == 3


def test_a_thousand_failing_clusters_fit_into_the_status():
    outcomes = [
        ClusterOutcome(f"cluster-{n}", State.FAILED, "Invalid", "x" * 5000) for n in range(1000)
    ]
    assert len(json.dumps(status.build(report(*outcomes), {}))) < 500_000


@each_row(
    ("outcome", "why"),
    [
        (
            ClusterOutcome("b", health=UNHEALTHY),
            "Deployment shop/web: its progress deadline is exceeded",
        ),
        (
            ClusterOutcome("b", State.FAILED, "Invalid", "ConfigMap shop/flags is refused"),
            "Failed: ConfigMap shop/flags is refused",
        ),
        (
            ClusterOutcome("b", State.UNREACHABLE, "Away", "no answer from the API server"),
            "unreachable: no answer from the API server",
        ),
    ],
)
def test_ready_says_once_why_a_wave_has_failed(outcome: ClusterOutcome, why: str):
    """`kubectl get multiclusterresources -o wide` showed each reason twice."""
    message = f"wave canary: gate health: no progress within 600 s (b): 0 of 2 are ready; b: {why}"
    rollout = {"phase": "Failed", "message": message}
    waiting = ClusterOutcome("c", State.WAITING, "WaveNotOpen", "wave fleet is not open")
    alone = status.build(report(outcome, rollout=rollout), {})
    ready = alone["conditions"][0]
    assert (ready["reason"], ready["message"].count(outcome.message or "deadline")) == (
        "RolloutFailed",
        1,
    )
    other = ClusterOutcome("a", State.FAILED, "Invalid", "Pod shop/a is refused")
    everything = status.build(report(other, outcome, waiting, rollout=rollout), {})
    said = everything["conditions"][0]["message"]
    assert "a: Failed" in said
    assert "c: Waiting" in said
    assert said.count(outcome.message or "deadline") == 1


def test_ready_names_a_cluster_beside_a_failed_wave_that_has_another_of_its_name_in_it():
    rollout = {"phase": "Failed", "message": "wave x: 0 of 2 are ready; web-b: Failed: refused"}
    outcomes = [ClusterOutcome(name, State.FAILED, "Invalid", "refused") for name in ("b", "web-b")]
    message = status.build(report(*outcomes, rollout=rollout), {})["conditions"][0]["message"]
    assert message == "wave x: 0 of 2 are ready; web-b: Failed: refused; b: Failed; b: refused"
