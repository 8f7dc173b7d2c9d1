"""Columns, ages and words are those of kubectl."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fleetbus.cli.objects import pod_columns
from fleetbus.cli.objects.columns import columns_of
from fleetbus.cli.table import render_table, warn_incomplete
from fleetbus.process.human_time import render_age, render_duration

Tree = dict[str, Any]

READY: Tree = {"ready": True, "state": {"running": {}}}
INIT = [{"name": "i1"}, {"name": "i2"}]
DONE: Tree = {"name": "i1", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}


def cells(resource: str, tree: Tree, *, wide: bool = False) -> dict[str, str]:
    return {column.head: column.cell(tree) for column in columns_of(resource, wide=wide)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"),
        (600, "10m"), (10_799, "179m"), (10_800, "3h"), (11_100, "3h5m"), (28_800, "8h"),
        (172_799, "47h"), (172_800, "2d"), (180_000, "2d2h"), (691_200, "8d"),
        (63_072_000, "2y"), (66_000_000, "2y33d"), (252_288_000, "8y"),
    ],
)  # fmt: skip
def test_spans_are_written_as_kubectl_does(seconds: float, text: str):
    assert render_duration(seconds) == text


def test_an_age_is_measured_from_now():
    now = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    assert render_age("2026-01-01T00:00:00Z", now) == "5m"
    assert render_age(None, now) == "<unknown>"
    assert render_age("yesterday", now) == "<unknown>"


def test_a_table_is_aligned_and_brings_no_control_characters():
    text = render_table(["A", "BBB"], [["long", ""], ["x", "a\x1b[31m\nb"]])

    assert text.splitlines() == ["A      BBB", "long   <none>", "x      a?[31m?b"]


def test_a4_clusters_behind_for_one_reason_share_a_line(capsys: pytest.CaptureFixture[str]):
    freshness: dict[str, Tree] = {
        f"c{i}": {"reason": "not watched there", "ageSeconds": None} for i in range(8)
    }
    freshness["c9"] = {"reason": "refused", "ageSeconds": 130.2}

    warn_incomplete(freshness, list(freshness))

    assert capsys.readouterr().err.splitlines() == [
        "note: not served, or not watched, in c0, c1, c2, c3, c4 and 3 more",
        "warning: c9 is incomplete: refused; its API server last answered 2m10s ago",
    ]


POD_STATUSES: list[tuple[Tree, Tree, str]] = [
    ({}, {}, "Unknown"),
    ({}, {"phase": "Pending"}, "Pending"),
    ({}, {"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ({}, {"phase": "Running", "containerStatuses": [READY]}, "Running"),
    (
        {},
        {"containerStatuses": [READY, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
        "CrashLoopBackOff",
    ),
    ({}, {"containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
    ({}, {"containerStatuses": [{"state": {"terminated": {"signal": 9}}}]}, "Signal:9"),
    (
        {},
        {"containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}, READY]},
        "NotReady",
    ),
    (
        {},
        {
            "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}, READY],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
        "Running",
    ),
    ({"initContainers": INIT}, {"initContainerStatuses": [DONE, {"name": "i2"}]}, "Init:1/2"),
    (
        {"initContainers": INIT},
        {"initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
        "Init:ErrImagePull",
    ),
    (
        {"initContainers": INIT},
        {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]},
        "Init:ExitCode:1",
    ),
    (
        {},
        {"conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
        "SchedulingGated",
    ),
]


@pytest.mark.parametrize(("spec", "status", "expected"), POD_STATUSES)
def test_the_status_of_a_pod(spec: Tree, status: Tree, expected: str):
    assert pod_columns.status({"spec": spec, "status": status}) == expected


def test_a_pod_that_is_being_deleted_is_terminating():
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cases: list[tuple[Tree, str]] = [
        ({"phase": "Running", "containerStatuses": [READY]}, "Terminating"),
        ({"phase": "Running", "reason": "NodeLost"}, "Unknown"),
        ({"phase": "Succeeded"}, "Succeeded"),
    ]
    for status, expected in cases:
        assert pod_columns.status({"metadata": metadata, "status": status}) == expected


def test_sidecars_count_as_containers():
    pod = {
        "spec": {
            "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}],
            "containers": [{"name": "c"}],
        },
        "status": {
            "initContainerStatuses": [
                {"name": "s", "ready": True, "started": True, "restartCount": 2},
                {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}},
            ],
            "containerStatuses": [{"ready": False, "restartCount": 1}],
        },
    }
    assert pod_columns.ready(pod) == "1/2"
    assert pod_columns.restarts(pod) == "3"


def test_columns_of_workloads():
    template = {"spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d"}]}}
    tree = {
        "spec": {
            "replicas": 3,
            "template": template,
            "selector": {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "t", "operator": "In", "values": ["a", "b"]}],
            },
        },
        "status": {
            "replicas": 3, "readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2,
            "desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3,
            "updatedNumberScheduled": 2, "numberAvailable": 1,
        },
    }  # fmt: skip
    wide = {"CONTAINERS": "c,d", "IMAGES": "i:1,", "SELECTOR": "app=web,t in (a,b)"}
    age = {"AGE": "<unknown>"}
    deployment = {"READY": "2/3", "UP-TO-DATE": "3", "AVAILABLE": "2"}
    assert cells("apps/deployments", tree) == deployment | age
    assert cells("apps/deployments", tree, wide=True) == deployment | age | wide
    assert cells("apps/replicasets", tree) == {
        "DESIRED": "3", "CURRENT": "3", "READY": "2",
    } | age  # fmt: skip
    assert cells("apps/statefulsets", tree) == {"READY": "2/3"} | age
    assert list(cells("apps/daemonsets", tree).values()) == [
        "5", "4", "3", "2", "1", "", "<unknown>",
    ]  # fmt: skip


def test_columns_of_jobs():
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:30Z"}
    done = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1, **times}
    found = cells("batch/jobs", {"spec": {"completions": 1}, "status": done})
    assert list(found.values()) == ["Complete", "1/1", "90s", "<unknown>"]
    running = cells("batch/jobs", {"spec": {"parallelism": 3}, "status": {}})
    assert (running["STATUS"], running["COMPLETIONS"]) == ("Running", "0/1 of 3")


def test_columns_of_services_nodes_and_others():
    service = {
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.0.0.1",
            "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}],
            "selector": {"app": "web"},
        }
    }
    found = cells("core/services", service, wide=True)
    assert found["EXTERNAL-IP"] == "<pending>"
    assert found["PORT(S)"] == "80:30080/TCP,53/UDP"
    assert found["SELECTOR"] == "app=web"
    node = {
        "metadata": {"labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "nodeInfo": {"kubeletVersion": "v1.33.1"},
            "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
        },
    }
    found = cells("core/nodes", node, wide=True)
    assert found["STATUS"] == "NotReady,SchedulingDisabled"
    assert (found["ROLES"], found["VERSION"]) == ("worker", "v1.33.1")
    assert found["INTERNAL-IP"] == "10.1.1.1"
    assert cells("core/namespaces", {"status": {"phase": "Active"}})["STATUS"] == "Active"
    assert cells("core/configmaps", {"data": {"a": "b"}, "binaryData": {"c": ""}})["DATA"] == "2"
    applied = {"status": {"summary": {"ready": "2/3", "reason": "CrashLoopBackOff"}}}
    found = cells("fleetbus.dev/multiclusterresources", applied)
    assert (found["READY"], found["STATUS"]) == ("2/3", "CrashLoopBackOff")
    assert list(cells("example.com/things", {})) == ["AGE"]


def test_columns_survive_objects_of_another_form():
    trees: list[Tree] = [{}, {"spec": [], "status": "x"}, {"spec": {"containers": [1]}}]
    for resource in ("core/pods", "apps/deployments", "batch/jobs", "core/services", "core/nodes"):
        for tree in trees:
            cells(resource, tree, wide=True)
