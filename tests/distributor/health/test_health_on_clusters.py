"""Health and feedback in the status, with emulated API servers (rule D21)."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from fleetbus_distributor.errors import SpecError
from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.status import Report
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rows import each_row

DEPLOYMENTS = "apps/v1/deployments"
WEB: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        },
    },
}
FEEDBACK = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "fields": [
        {"name": "available", "path": ".status.availableReplicas"},
        {"name": "reason", "path": ".status.conditions[?(@.type=='Available')].reason"},
    ],
}


def place(rig: Rig, *clusters: str, **spec: Any) -> None:
    names = [{"name": name} for name in clusters or ("t1", "t2")]
    templates = [copy.deepcopy(WEB), copy.deepcopy(CONFIG_MAP)]
    rig.create(templates=templates, placement={"clusters": names}, **spec)


def roll_out(rig: Rig, cluster: str, available: int = 2, **status: Any) -> None:
    live = rig.get(cluster, DEPLOYMENTS, "web")
    live["status"] = {
        "observedGeneration": live["metadata"]["generation"],
        "replicas": 2,
        "updatedReplicas": 2,
        "availableReplicas": available,
        **status,
    }
    rig.clusters[cluster].update_status(DEPLOYMENTS, live)


async def test_the_health_of_the_objects_is_summed_up_per_cluster(rig: Rig):
    place(rig)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t2": "Applied"}
    assert rig.condition("Applied")["status"] == "True"
    assert rig.entry("t1")["health"] == "Progressing"
    roll_out(rig, "t1")
    roll_out(rig, "t2", available=1)
    await rig.repair("t1")
    await rig.repair("t2")
    summary = rig.resource()["status"]["summary"]
    assert (summary["ready"], summary["reason"]) == ("1/2", "Replicas")
    assert rig.entry("t1")["health"] == "Healthy"
    assert "unhealthy" not in rig.entry("t1")
    assert rig.entry("t2")["unhealthy"] == {
        "object": "Deployment default/web",
        "reason": "Replicas",
        "message": "1 of 2 replicas are available",
        "objects": 1,
    }
    ready = rig.condition()
    assert (ready["status"], ready["reason"]) == ("False", "Progressing")
    assert ready["message"] == "t2: Deployment default/web: 1 of 2 replicas are available"
    roll_out(rig, "t2")
    await rig.repair("t2")
    assert rig.condition()["status"] == "True"
    assert rig.resource()["status"]["summary"]["ready"] == "2/2"


async def test_d11_a_change_of_health_is_read_on_its_cluster_only_and_written_once(rig: Rig):
    place(rig)
    await rig.reconcile()
    roll_out(rig, "t1")
    for cluster in rig.clusters.values():
        cluster.requests.clear()
    await rig.repair("t1")
    assert rig.entry("t1")["health"] == "Healthy"
    assert not rig.clusters["t2"].requests
    assert len(rig.writes("t4")) == 1
    rig.hub.requests.clear()
    await rig.repair("t1")
    await rig.reconcile()
    assert rig.all_writes() == 0


async def test_a_cluster_that_is_away_has_unknown_health_and_its_last_feedback(rig: Rig):
    place(rig, "t1", feedback=[FEEDBACK])
    await rig.reconcile()
    roll_out(rig, "t1")
    await rig.repair("t1")
    rig.clusters["t1"].faults.add(Fail(401))
    await rig.reconcile()
    entry = rig.entry("t1")
    assert (entry["state"], entry["health"]) == ("Unreachable", "Unknown")
    assert entry["feedback"][0]["values"] == {"available": 2}
    assert rig.resource()["status"]["summary"]["ready"] == "0/1"


async def test_chosen_fields_come_back_with_their_types_and_absent_ones_do_not(rig: Rig):
    place(rig, "t1", feedback=[FEEDBACK])
    await rig.reconcile()
    assert "feedback" not in rig.entry("t1")
    conditions = [{"type": "Available", "status": "True", "reason": "Enough"}]
    roll_out(rig, "t1", conditions=conditions)
    await rig.repair("t1")
    values = {"available": 2, "reason": "Enough"}
    assert rig.entry("t1")["feedback"] == [{"object": "Deployment default/web", "values": values}]
    rig.edit(feedback=None)
    await rig.reconcile()
    assert "feedback" not in rig.entry("t1")


async def test_a_rule_of_the_spec_evaluates_what_we_do_not_know(rig: Rig):
    check = {"path": ".data.k", "equals": "ready"}
    rule = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "healthy": [check]}
    rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]}, health=[rule])
    await rig.reconcile()
    assert rig.entry("t1")["unhealthy"]["message"] == "it waits until .data.k is ready"
    rig.edit(template={**CONFIG_MAP, "data": {"k": "ready"}})
    await rig.reconcile()
    assert rig.condition()["status"] == "True"


@pytest.mark.parametrize("field", ["health", "feedback"])
async def test_a_rule_that_matches_nothing_is_named_in_a_condition(rig: Rig, field: str):
    chosen = {"apiVersion": "v1", "kind": "Pod", "name": "typo"}
    rules: dict[str, dict[str, Any]] = {
        "health": {**chosen, "observedGeneration": True},
        "feedback": {**chosen, "fields": [{"name": "phase", "path": ".status.phase"}]},
    }
    spec: dict[str, Any] = {field: [rules[field]]}
    rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]}, **spec)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    warning = rig.condition("Warning")
    assert (warning["status"], warning["reason"]) == ("True", "NoSuchObject")
    assert warning["message"] == f"spec.{field}[0]: no template is Pod typo of v1"
    without: dict[str, Any] = {field: None}
    rig.edit(**without)
    await rig.reconcile()
    assert rig.condition("Warning")["status"] == "False"


@each_row(
    ("spec", "problem"),
    [
        ({"health": [{"apiVersion": "v1", "kind": "X"}]}, "spec.health[0]: at least one of"),
        (
            {"health": [{"apiVersion": "v1", "kind": "X", "healthy": [{"path": "x"}]}]},
            "spec.health[0].healthy[0].path: is not a path at character 1",
        ),
        ({"feedback": [{"apiVersion": "v1", "kind": "X"}]}, "spec.feedback[0].fields: required"),
    ],
)
def test_an_invalid_rule_names_its_field(spec: dict[str, Any], problem: str):
    resource = {"spec": {"template": CONFIG_MAP, **spec}}
    with pytest.raises(SpecError) as error:
        read_spec(resource)
    assert str(error.value).startswith(problem)


async def test_d14_the_reason_of_a_controller_is_redacted(rig: Rig):
    place(rig, "t1")
    rig.edit(
        templates=[
            {
                **WEB,
                "spec": {
                    **WEB["spec"],
                    "template": {
                        "metadata": {"labels": {"app": "web"}},
                        "spec": {
                            "containers": [
                                {
                                    "name": "c",
                                    "image": "c",
                                    "env": [{"name": "PASSWORD", "value": "canary-1"}],
                                }
                            ]
                        },
                    },
                },
            }
        ]
    )
    await rig.reconcile()
    message = "denied: canary-1 is not allowed"
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "Denied", "message": message}
    roll_out(rig, "t1", available=0, conditions=[failure])
    await rig.repair("t1")
    assert rig.entry("t1")["unhealthy"]["message"] == "denied: <redacted> is not allowed"
    assert "canary-1" not in orjson.dumps(rig.resource()["status"]).decode()


def test_the_worst_object_is_shown_whatever_came_first():
    healths = [
        ("Pod default/b", Health(HealthState.DEGRADED, "Crash", "b")),
        ("Pod default/a", Health(HealthState.DEGRADED, "Crash", "a")),
        ("Pod default/0", Health(HealthState.PROGRESSING, "Wait", "0")),
        ("Pod default/h", Health(HealthState.HEALTHY)),
    ]
    for order in (healths, healths[::-1]):
        health = ClusterHealth()
        for name, object_health in order:
            health = health.with_object(name, object_health, {})
        assert (health.state, health.first, health.objects) == (
            HealthState.DEGRADED,
            "Pod default/a",
            3,
        )


def test_a_thousand_unhealthy_clusters_with_feedback_fit_into_the_status():
    values = {f"Pod default/p{n}": {"f": "x" * 256} for n in range(50)}
    health = ClusterHealth(HealthState.DEGRADED, 50, "Pod default/p0", "Crash", "m" * 600, values)
    outcomes = [
        ClusterOutcome(f"cluster-{n}", State.FAILED, "Invalid", "x" * 5000, health=health)
        for n in range(1000)
    ]
    report = Report(generation=1, outcomes=outcomes, inventory={})
    built = status.build(report, {})
    assert len(orjson.dumps(built)) < 700_000
    assert built["clusters"][0]["feedbackOmitted"] == 50
    few = status.build(Report(generation=1, outcomes=outcomes[:3], inventory={}), {})
    entry = few["clusters"][0]
    assert len(entry["feedback"]) + entry["feedbackOmitted"] == 50
    assert status.build(Report(generation=1, outcomes=outcomes[:3], inventory={}), few) == few
