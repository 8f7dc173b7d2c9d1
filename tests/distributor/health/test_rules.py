"""The rules of `spec.health`, and the fields of `spec.feedback` (rule D21)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fleetbus_distributor.health.feedback import MAX_TEXT, Feedback, collect
from fleetbus_distributor.health.health import health_of
from fleetbus_distributor.health.paths import ABSENT, read_path
from fleetbus_distributor.health.result import HealthState
from fleetbus_distributor.health.rules import HealthRule
from support.rows import each_row

H, P, D = HealthState.HEALTHY, HealthState.PROGRESSING, HealthState.DEGRADED
DATABASE: dict[str, Any] = {"apiVersion": "example.org/v1", "kind": "Database"}


def database(status: Any, name: str = "main") -> dict[str, Any]:
    return {**DATABASE, "metadata": {"name": name, "generation": 2}, "status": status}


def rule(**parts: Any) -> HealthRule:
    return HealthRule.model_validate({**DATABASE, **parts})


OBJECT = database(
    {
        "phase": "Running",
        "ports": [{"port": 80}, {"port": 443}],
        "example.org/x": 1,
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "False"}],
        "empty": None,
    }
)


@each_row(
    ("path", "value"),
    [
        (".status.phase", "Running"),
        (".status.ports[1].port", 443),
        (".status.ports[2].port", ABSENT),
        (".status['example.org/x']", 1),
        (r".status.example\.org/x", ValueError),
        (".status.conditions[?(@.type=='Old')].status", "False"),
        ('.status.conditions[?(@.type == "Ready")].status', "True"),
        (".status.conditions[?(@.type=='New')].status", ABSENT),
        (".status.phase.deeper", ABSENT),
        (".status.phase[0]", ABSENT),
        (".status[0]", ABSENT),
        ("status.phase", ValueError),
        ("", ValueError),
        (".status.*", ValueError),
        (".status..phase", ValueError),
        (".status" * 100, ValueError),
    ],
)
def test_a_path_names_one_field(path: str, value: Any):
    if value is ValueError:
        with pytest.raises(ValueError, match="path"):
            read_path(OBJECT, path)
    else:
        assert read_path(OBJECT, path) == value


@each_row(
    ("check", "holds"),
    [
        ({"path": ".status.phase", "equals": "Running"}, True),
        ({"path": ".status.phase", "in": ["Idle", "Running"]}, True),
        ({"path": ".status.phase", "in": ["Idle"]}, False),
        ({"path": ".status.none", "equals": "Running"}, False),
        ({"path": ".status.none", "exists": False}, True),
        ({"path": ".status.empty", "exists": True}, False),
        ({"path": ".status.phase", "exists": True}, True),
        ({"path": ".status.ports[0].port", "atLeast": 80}, True),
        ({"path": ".status.ports[0].port", "atLeast": 80.5}, False),
        ({"path": ".status.phase", "atLeast": 1}, False),
        ({"path": ".status['example.org/x']", "equals": True}, False),  # 1 is not true
    ],
)
def test_a_check_tests_one_field(check: dict[str, Any], holds: bool):
    health = health_of(OBJECT, [rule(healthy=[check])])
    assert health.state is (H if holds else P)
    assert health_of(OBJECT, [rule(degraded=[check])]).state is (D if holds else H)


def test_a_rule_comes_before_the_conditions_of_its_objects_only():
    failing = database({"conditions": [{"type": "Ready", "status": "False"}], "phase": "Running"})
    running = {"path": ".status.phase", "equals": "Running"}
    assert health_of(failing).state is P
    assert health_of(failing, [rule(healthy=[running])]).state is H
    assert health_of(failing, [rule(name="other", healthy=[running])]).state is P
    assert health_of(failing, [rule(name="main", healthy=[running])]).state is H


def test_a_rule_may_wait_for_the_controller():
    waits = rule(observedGeneration=True)
    assert health_of(database({"observedGeneration": 1}), [waits]).reason == "NotObserved"
    assert health_of(database({}), [waits]).reason == "NotObserved"
    assert health_of(database({"observedGeneration": 2}), [waits]).state is H


INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, "at least one of healthy"),
    ({"healthy": [{"path": ".a"}]}, "exactly one of equals"),
    ({"healthy": [{"path": ".a", "equals": 1, "exists": True}]}, "exactly one of equals"),
    ({"healthy": [{"path": "a", "exists": True}]}, "is not a path at character 1"),
    ({"healthy": [{"path": ".a", "exists": "yes"}]}, "boolean"),
    ({"healthy": [{"path": ".a", "in": []}]}, "at least 1 item"),
    ({"cel": "x"}, "Extra inputs"),
]


@each_row(("parts", "message"), INVALID)
def test_an_invalid_rule_is_refused(parts: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        rule(**parts)


def feedback(path: str, kind: str = "Database", name: str = "f") -> Feedback:
    fields = [{"name": name, "path": path}]
    return Feedback.model_validate({**DATABASE, "kind": kind, "fields": fields})


def test_feedback_keeps_the_types_and_leaves_out_what_is_absent():
    chosen = [
        feedback(".status.phase", name="phase"),
        feedback(".status.ports[1].port", name="port"),
        feedback(".status.none", name="none"),
        feedback(".status.empty", name="empty"),
        feedback(".status.ports", name="ports"),
        feedback(".status.phase", kind="Other", name="other"),
    ]
    assert collect(OBJECT, chosen) == {"phase": "Running", "port": 443}


def test_feedback_is_bounded():
    collected = collect(database({"phase": "x" * 1000}), [feedback(".status.phase")])
    assert len(collected["f"]) == MAX_TEXT


@each_row("path", [".data.password", ".spec.replicas", ".metadata.name"])
def test_feedback_is_of_the_status_only(path: str):
    with pytest.raises(ValidationError, match=r"must be below \.status"):
        feedback(path)


def test_s1_feedback_takes_nothing_from_secrets():
    with pytest.raises(ValidationError, match="nothing is collected from Secrets"):
        feedback(".status.x", kind="Secret")
    secret = {**database({"f": "canary"}), "kind": "Secret"}
    loose = feedback(".status.f").model_copy(update={"kind": "Secret"})
    assert collect(secret, [loose]) == {}
