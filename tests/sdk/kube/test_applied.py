import copy
from typing import Any

import pytest

from fleetbus_distributor.targets.managed_fields import is_applied

MANAGER = "fleetbus-abc"
WANTED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "default", "labels": {"app": "x"}},
    "spec": {
        "replicas": 2,
        "paused": False,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "ports": [{"containerPort": 80}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}},
                        "args": ["a", "b"],
                    }
                ]
            }
        },
        "finalizers": ["f1", "f2"],
    },
}
OWNED: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:app": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:paused": {},
        "f:finalizers": {'v:"f1"': {}, 'v:"f2"': {}},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"c"}': {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:args": {},
                        "f:ports": {
                            'k:{"containerPort":80,"protocol":"TCP"}': {
                                ".": {},
                                "f:containerPort": {},
                            }
                        },
                        "f:resources": {"f:limits": {"f:cpu": {}, "f:memory": {}}},
                    }
                }
            }
        },
    },
}


def live(**entry: Any) -> dict[str, Any]:
    obj = copy.deepcopy(WANTED)
    obj["metadata"] |= {"uid": "u", "resourceVersion": "5", "annotations": {"theirs": "x"}}
    container = obj["spec"]["template"]["spec"]["containers"][0]
    container["ports"][0]["protocol"] = "TCP"
    container["imagePullPolicy"] = "Always"
    container["resources"]["limits"]["cpu"] = "1"
    managed = {"manager": MANAGER, "operation": "Apply", "apiVersion": "apps/v1"}
    obj["metadata"]["managedFields"] = [{**managed, "fieldsV1": OWNED, **entry}]
    obj["status"] = {"replicas": 1}
    return obj


def changed(path: str, value: Any, base: dict[str, Any]) -> dict[str, Any]:
    """A copy with the member at a path replaced; None removes it."""
    result = copy.deepcopy(base)
    *parents, last = path.split("/")
    here: Any = result
    for token in parents:
        here = here[int(token) if token.isdecimal() else token]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return result


CONTAINER = "spec/template/spec/containers/0"


def test_d3_an_object_that_shows_our_fields_needs_no_apply():
    assert is_applied(WANTED, live(), MANAGER)


@pytest.mark.parametrize(
    "entry",
    [
        {"manager": "other"},
        {"operation": "Update"},
        {"apiVersion": "apps/v1beta1"},
        {"subresource": "status"},
    ],
)
def test_d3_only_our_own_apply_counts(entry: dict[str, str]):
    assert not is_applied(WANTED, live(**entry), MANAGER)


WISHES: list[tuple[str, Any]] = [
    ("spec/replicas", 3),
    ("spec/replicas", None),
    ("spec/paused", True),
    ("spec/new", "field"),
    ("metadata/labels", {"app": "x", "more": "y"}),
    ("metadata/labels", {}),
    (f"{CONTAINER}/image", "other"),
    (f"{CONTAINER}/args", ["b", "a"]),
    (f"{CONTAINER}/args", ["a"]),
    (f"{CONTAINER}/ports", [{"containerPort": 81}]),
    (f"{CONTAINER}/ports", [{"containerPort": 80}, {"containerPort": 81}]),
    (f"{CONTAINER}/resources/limits/memory", "2Gi"),
    ("spec/finalizers", ["f1"]),
    ("spec/finalizers", ["f1", "f3"]),
]


@pytest.mark.parametrize(("path", "value"), WISHES)
def test_d3_a_changed_field_is_applied(path: str, value: Any):
    assert not is_applied(changed(path, value, WANTED), live(), MANAGER)


DRIFTS: list[tuple[str, Any]] = [
    ("spec/replicas", 3),
    ("spec/paused", 0),
    (f"{CONTAINER}/image", "other"),
    (f"{CONTAINER}/args", ["a", "b", "c"]),
    (f"{CONTAINER}/ports", []),
    ("spec/finalizers", ["f1"]),
    ("spec/template", {}),
]


@pytest.mark.parametrize(("path", "value"), DRIFTS)
def test_d13_a_changed_value_is_drift(path: str, value: Any):
    assert not is_applied(WANTED, changed(path, value, live()), MANAGER)


SAME: list[tuple[str, Any]] = [
    ("spec/finalizers", ["f1", "f2", "theirs"]),
    ("metadata/labels", {"app": "x", "theirs": "y"}),
    ("spec/minReadySeconds", 7),
    ("status", {"replicas": 9}),
    (f"{CONTAINER}/resources/limits/memory", "1024Mi"),
]


@pytest.mark.parametrize(("path", "value"), SAME)
def test_d3_what_others_own_and_other_spellings_are_no_drift(path: str, value: Any):
    assert is_applied(WANTED, changed(path, value, live()), MANAGER)


def test_d3_what_says_nothing_is_owned_by_nobody():
    wanted = changed("spec/strategy", {}, WANTED)
    assert is_applied(wanted, live(), MANAGER)
