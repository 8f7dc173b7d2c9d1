"""Tables and metadata alone: what kubectl prints, in lists, gets and watches."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emulator.support.kube_calls import (
    CONFIGMAPS,
    CRDS,
    PODS,
    TABLE,
    WIDGETS,
    Calls,
    config_map,
    deployment,
    events,
    widget,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.apiserver.columns import BUILTIN_COLUMNS, Row
from fleetbus_emulator.apiserver.columns.ages import age, between, duration
from fleetbus_emulator.apiserver.types.builtin import BUILTIN_TYPES

NOW = datetime(2025, 1, 1, tzinfo=UTC)
EARLIER = "2024-12-31T23:58:00Z"
METADATA = "application/json;as=PartialObjectMetadata{};v={};g=meta.k8s.io"
TEMPLATE = {"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j"}]}}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls(clock: Clock) -> Calls:
    return Calls(Cluster("alpha", seed=1, clock=clock))


def row(group: str, kind: str, **fields: Any) -> dict[str, Any]:
    """The cells of an object two minutes old, by column."""
    meta = {"name": "x", "creationTimestamp": EARLIER, **fields.pop("meta", {})}
    printed = BUILTIN_COLUMNS[group, kind]
    cells = printed.cells(Row({"metadata": meta, **fields}, NOW))
    assert len(cells) == len(printed.columns)
    return {c.name: cell for c, cell in zip(printed.columns, cells, strict=True)}


def shown(cells: dict[str, Any], *names: str) -> list[Any]:
    return [cells[name] for name in names]


# forms --------------------------------------------------------------------------------------------


def test_a_get_a_list_and_a_watch_all_come_as_tables(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", x="1"))
    single = calls.get(f"{CONFIGMAPS}/a", accept=TABLE).document
    many = calls.get(CONFIGMAPS, accept=TABLE).document
    (event,) = events(calls.watch(CONFIGMAPS, accept=TABLE))
    for table in (single, many, event["object"]):
        assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert table["rows"][0]["cells"] == ["a", 1, "0s"]
    assert event["type"] == "ADDED"


def test_rows_hold_the_metadata_or_the_object_or_nothing(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a", x="1"))

    def held(include: str) -> Any:
        table = calls.get(CONFIGMAPS, accept=TABLE, includeObject=include).document
        return table["rows"][0].get("object")

    assert held("Metadata")["kind"] == "PartialObjectMetadata"
    assert (held("Object")["kind"], held("Object")["data"]) == ("ConfigMap", {"x": "1"})
    assert held("None") is None
    wrong = calls.get(CONFIGMAPS, accept=TABLE, includeObject="All")
    assert (wrong.status, wrong.message) == (400, 'unrecognized includeObject value: "All"')


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_metadata_alone_comes_in_the_version_that_was_asked_for(calls: Calls, version: str):
    calls.post(CONFIGMAPS, config_map("a", x="1"))
    single, many = METADATA.format("", version), METADATA.format("List", version)
    metadata = calls.get(f"{CONFIGMAPS}/a", accept=single).document
    assert metadata.keys() == {"kind", "apiVersion", "metadata"}
    assert metadata["apiVersion"] == f"meta.k8s.io/{version}"
    listed = calls.get(CONFIGMAPS, accept=many).document
    assert listed["kind"] == "PartialObjectMetadataList"
    (event,) = events(calls.watch(CONFIGMAPS, accept=single))
    assert listed["items"] == [metadata]
    assert event["object"] == metadata


def test_metadata_of_a_list_is_not_that_of_an_object(calls: Calls):
    calls.post(CONFIGMAPS, config_map("a"))
    wrong = calls.get(CONFIGMAPS, accept=METADATA.format("", "v1"))
    assert (wrong.status, wrong.document["reason"]) == (406, "NotAcceptable")
    assert wrong.message.endswith("the requested object is a list (*v1.ConfigMapList)")
    assert calls.get(f"{CONFIGMAPS}/a", accept=METADATA.format("List", "v1")).status == 406


def test_an_unknown_version_of_a_table_is_passed_over(calls: Calls):
    accept = "application/json;as=Table;v=v9;g=meta.k8s.io,application/json"
    assert calls.get(CONFIGMAPS, accept=accept).document["kind"] == "ConfigMapList"


def test_ages_in_a_long_watch_are_those_of_each_event(calls: Calls, clock: Clock):
    watch = calls.watch(CONFIGMAPS, accept=TABLE)
    clock.now += timedelta(hours=1)
    calls.post(CONFIGMAPS, config_map("late"))
    (event,) = events(watch)
    assert event["object"]["rows"][0]["cells"] == ["late", 0, "0s"]


def test_a_scale_is_a_table_too(calls: Calls):
    path = "/apis/apps/v1/namespaces/default/deployments"
    calls.post(path, deployment("web", replicas=3))
    table = calls.get(f"{path}/web/scale", accept=TABLE).document
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "Desired", "Available", "Age"]
    assert table["rows"][0]["cells"] == ["web", 3, 0, "0s"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_finished_pods_are_marked_as_completed(calls: Calls):
    calls.post(PODS, {"metadata": {"name": "p"}, **TEMPLATE})
    calls.merge(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    (table_row,) = calls.get(PODS, accept=TABLE).document["rows"]
    assert table_row["conditions"][0]["type"] == "Completed"


# custom resources ---------------------------------------------------------------------------------


def test_cells_of_a_custom_resource_are_of_the_type_of_their_column(calls: Calls):
    definition = widget_definition()
    columns = {
        "size": ("integer", ".spec.size"),
        "half": ("number", ".spec.free.half"),
        "on": ("boolean", ".spec.free.on"),
        "text": ("string", ".spec.free.on"),
        "list": ("string", ".spec.list"),
        "first": ("string", ".spec.items[0].name"),
        "chosen": ("string", '.spec.items[?(@.name=="b")].value'),
        "wrong": ("integer", ".spec.color"),
        "born": ("date", ".metadata.creationTimestamp"),
        "none": ("string", ".spec.nothing"),
    }
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = [
        {"name": name, "type": kind, "jsonPath": path} for name, (kind, path) in columns.items()
    ]
    calls.post(CRDS, definition)
    items = [{"name": "a"}, {"name": "b", "value": "2"}]
    free = {"half": 0.5, "on": True}
    calls.post(WIDGETS, widget("w", free=free, list=["x", "y"], items=items, color="red"))
    table = calls.get(f"{WIDGETS}/w", accept=TABLE).document
    (name, *cells) = table["rows"][0]["cells"]
    assert (name, dict(zip(columns, cells, strict=True))) == (
        "w",
        {
            "size": 3,
            "half": 0.5,
            "on": True,
            "text": "true",
            "list": '["x","y"]',
            "first": "a",
            "chosen": "2",
            "wrong": None,
            "born": "0s",
            "none": None,
        },
    )
    described = table["columnDefinitions"][1]["description"]
    assert described == "Custom resource definition column (in JSONPath format): .spec.size"


# builtin types ------------------------------------------------------------------------------------


def test_every_builtin_type_has_kubectls_columns_or_is_one_of_those_without():
    plain = {"CustomResourceDefinition", "ClusterRole", "Role", "LimitRange"}
    without = {t.kind for t in BUILTIN_TYPES if (t.store[0], t.kind) not in BUILTIN_COLUMNS}
    assert without == plain


def test_columns_cope_with_objects_that_have_nothing_but_a_name():
    for group, kind in BUILTIN_COLUMNS:
        assert "x" in row(group, kind).values()


def pod(phase: str = "Running", **status: Any) -> dict[str, Any]:
    return row("", "Pod", **TEMPLATE, status={"phase": phase, **status})


def test_pods_tell_readiness_restarts_and_addresses():
    ended = {"terminated": {"finishedAt": EARLIER}}
    running: dict[str, Any] = {"running": {}}
    statuses = [
        {"name": "a", "ready": True, "restartCount": 2, "state": running},
        {"name": "b", "restartCount": 1, "lastState": ended, "state": running},
    ]
    cells = pod(containerStatuses=statuses, podIPs=[{"ip": "10.0.0.1"}])
    assert shown(cells, "Ready", "Status", "Restarts") == ["1/2", "Running", "3 (2m ago)"]
    assert shown(cells, "IP", "Node", "Readiness Gates") == ["10.0.0.1", "<none>", "<none>"]


STATES: list[tuple[str, dict[str, Any]]] = [
    (
        "ErrImagePull",
        {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
    ),
    ("ExitCode:3", {"containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}),
    ("Signal:9", {"containerStatuses": [{"state": {"terminated": {"signal": 9}}}]}),
    ("Evicted", {"reason": "Evicted"}),
    ("SchedulingGated", {"conditions": [{"reason": "SchedulingGated"}]}),
    ("Init:0/0", {"initContainerStatuses": [{"state": {"running": {}}}]}),
    (
        "Init:Error",
        {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]},
    ),
    (
        "NotReady",
        {
            "containerStatuses": [
                {"ready": True, "state": {"running": {}}},
                {"state": {"terminated": {"reason": "Completed"}}},
            ]
        },
    ),
]


@pytest.mark.parametrize(("expected", "status"), STATES)
def test_one_word_tells_the_state_of_a_pod(expected: str, status: dict[str, Any]):
    assert pod(**status)["Status"] == expected


def test_a_pod_that_goes_is_terminating_unless_it_had_ended():
    gone = {"meta": {"deletionTimestamp": EARLIER}, **TEMPLATE}
    assert row("", "Pod", status={"phase": "Running"}, **gone)["Status"] == "Terminating"
    assert row("", "Pod", status={"phase": "Failed"}, **gone)["Status"] == "Failed"
    lost = {"phase": "Running", "reason": "NodeLost"}
    assert row("", "Pod", status=lost, **gone)["Status"] == "Unknown"


def test_jobs_tell_how_far_they_are():
    spec = {"completions": 3, "template": TEMPLATE}
    done = {
        "startTime": "2024-12-31T23:58:00Z",
        "completionTime": "2024-12-31T23:58:07Z",
        "succeeded": 3,
        "conditions": [{"type": "Complete", "status": "True"}],
    }
    cells = row("batch", "Job", spec=spec, status=done)
    assert shown(cells, "Status", "Completions", "Duration") == ["Complete", "3/3", "7s"]
    assert shown(cells, "Containers", "Images", "Selector") == ["a,b", "i:1,j", "<none>"]
    queue = row("batch", "Job", spec={"parallelism": 2}, meta={"deletionTimestamp": EARLIER})
    assert shown(queue, "Status", "Completions") == ["Terminating", "0/1 of 2"]
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    assert row("batch", "Job", status=suspended)["Status"] == "Suspended"


def test_autoscalers_tell_each_metric_as_present_and_target():
    def resource(name: str, **target: Any) -> dict[str, Any]:
        return {"type": "Resource", "resource": {"name": name, "target": target}}

    metrics = [
        resource("cpu", averageUtilization=80),
        {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
        resource("memory", averageValue="1Gi"),
    ]
    target = {"kind": "Deployment", "name": "web"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4, "metrics": metrics}
    now = [{"resource": {"current": {"averageUtilization": 55}}}]
    cells = row("autoscaling", "HorizontalPodAutoscaler", spec=spec, status={"currentMetrics": now})
    assert cells["Targets"] == "cpu: 55%/80%, <unknown>/10 + 1 more..."
    assert shown(cells, "Reference", "MinPods", "MaxPods") == ["Deployment/web", "1", 4]


def test_services_tell_how_they_are_reached():
    def external(**spec: Any) -> str:
        return row("", "Service", spec=spec)["External-IP"]

    assert external(type="LoadBalancer") == "<pending>"
    assert external(type="ExternalName", externalName="a.example.com") == "a.example.com"
    assert external(type="ClusterIP", externalIPs=["1.2.3.4"]) == "1.2.3.4"
    ports = [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    assert row("", "Service", spec={"ports": ports})["Port(s)"] == "80:30080/TCP,53/UDP"


def test_long_lists_are_cut_after_three():
    hosts = [{"host": f"{n}.example.com"} for n in "abcde"]
    cells = row("networking.k8s.io", "Ingress", spec={"rules": hosts})
    assert cells["Hosts"] == "a.example.com,b.example.com,c.example.com + 2 more..."
    subsets = [{"addresses": [{"ip": "1"}, {"ip": "2"}], "ports": [{"port": 80}, {"port": 81}]}]
    assert row("", "Endpoints", subsets=subsets)["Endpoints"] == "1:80,2:80,1:81 + 1 more..."


def test_selectors_are_shown_as_they_are_typed():
    expressions = [
        {"key": "tier", "operator": "In", "values": ["b", "a"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "any", "operator": "Exists"},
    ]
    chosen = {"matchLabels": {"app": "web"}, "matchExpressions": expressions}
    cells = row("networking.k8s.io", "NetworkPolicy", spec={"podSelector": chosen})
    assert cells["Pod-Selector"] == "any,app=web,!old,tier in (a,b)"


def test_events_begin_with_when_and_end_with_their_name():
    involved = {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"}
    cells = row(
        "", "Event", involvedObject=involved, lastTimestamp=EARLIER, reason="Pulled", message="m\n"
    )
    assert list(cells) == [
        *("Last Seen", "Type", "Reason", "Object", "Subobject", "Source"),
        *("Message", "First Seen", "Count", "Name"),
    ]
    assert shown(cells, "Last Seen", "Object", "Message", "Count") == ["2m", "pod/p", "m", 1]
    series = {"count": 7, "lastObservedTime": EARLIER}
    assert row("", "Event", series=series)["Count"] == 7


def test_nodes_tell_state_roles_and_addresses():
    ready = [{"type": "Ready", "status": "True"}]
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    status = {"conditions": ready, "addresses": addresses, "nodeInfo": {"kubeletVersion": "v1"}}
    labels = {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}}
    cells = row("", "Node", meta=labels, spec={"unschedulable": True}, status=status)
    assert shown(cells, "Status", "Roles", "Version") == [
        "Ready,SchedulingDisabled",
        "edge,worker",
        "v1",
    ]
    assert shown(cells, "Internal-IP", "External-IP", "OS-Image") == [
        "10.0.0.1",
        "<none>",
        "<unknown>",
    ]


def test_volumes_claims_and_classes_have_their_columns():
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
        "claimRef": {"namespace": "n", "name": "c"},
        "storageClassName": "fast",
    }
    cells = row("", "PersistentVolume", spec=spec, status={"phase": "Bound"})
    assert shown(cells, "Capacity", "Access Modes", "Claim") == ["1Gi", "RWO,RWX", "n/c"]
    pending = row("", "PersistentVolumeClaim", status={"phase": "Pending"})
    assert shown(pending, "Status", "Capacity", "VolumeMode") == ["Pending", "", "<unset>"]
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    default = row("storage.k8s.io", "StorageClass", meta={"annotations": annotations})
    assert shown(default, "Name", "AllowVolumeExpansion") == ["x (default)", False]


def test_bindings_quotas_budgets_and_revisions_have_their_columns():
    subjects = [
        {"kind": "User", "name": "ann"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": "n"},
    ]
    role = {"kind": "Role", "name": "r"}
    cells = row("rbac.authorization.k8s.io", "RoleBinding", roleRef=role, subjects=subjects)
    assert shown(cells, "Role", "Users", "Groups", "ServiceAccounts") == [
        "Role/r",
        "ann",
        "",
        "n/robot",
    ]
    hard = {"hard": {"pods": "2", "limits.cpu": "4"}, "used": {"pods": "1"}}
    quota = row("", "ResourceQuota", status=hard)
    assert shown(quota, "Request", "Limit") == ["pods: 1/2", "limits.cpu: 0/4"]
    budget = row("policy", "PodDisruptionBudget", spec={"minAvailable": "50%"})
    assert shown(budget, "Min Available", "Max Unavailable") == ["50%", "N/A"]
    owner = {"controller": True, "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"}
    revision = row("apps", "ControllerRevision", meta={"ownerReferences": [owner]}, revision=3)
    assert shown(revision, "Controller", "Revision") == ["statefulset.apps/db", 3]


# ages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (659, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 300, "3h5m"),
        (9 * 3600 + 300, "9h"),
        (2 * 86400, "2d"),
        (2 * 86400 + 7200, "2d2h"),
        (9 * 86400 + 7200, "9d"),
        (800 * 86400, "2y70d"),
        (3000 * 86400, "8y"),
    ],
)
def test_ages_are_written_as_kubectl_does(seconds: int, text: str):
    assert duration(seconds) == text


def test_what_is_no_time_has_no_age():
    assert age(None, NOW) == "<unknown>"
    assert age("soon", NOW) == "<invalid>"
    assert between(EARLIER, "2024-12-31T23:58:00") == "<invalid>"
