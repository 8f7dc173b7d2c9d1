import copy
from typing import Any

from fleetbus.kube.applied import ServerAnswers, is_applied
from support.rows import each_row

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
                        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
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


@each_row(
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
    (f"{CONTAINER}/resources/limits/memory", "1024Mi"),
    (f"{CONTAINER}/resources/limits/cpu", "1.0"),
    (f"{CONTAINER}/resources/limits/cpu", 1),
    ("spec/replicas", 2.0),
    ("spec/paused", 0),
    ("metadata/labels/app", "X"),
    ("spec/finalizers", ["f1"]),
    ("spec/finalizers", ["f1", "f3"]),
    ("spec/finalizers", ["f2", "f1"]),
]


@each_row(("path", "value"), WISHES)
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
    ("spec/finalizers", ["f2", "f1"]),
    ("spec/finalizers", ["f1", "f1", "f2"]),
    (f"{CONTAINER}/resources/limits/memory", "1024Mi"),
]


@each_row(("path", "value"), DRIFTS)
def test_d13_a_changed_value_is_drift(path: str, value: Any):
    assert not is_applied(WANTED, changed(path, value, live()), MANAGER)


SAME: list[tuple[str, Any]] = [
    ("spec/finalizers", ["f1", "f2", "theirs"]),
    ("metadata/labels", {"app": "x", "theirs": "y"}),
    ("spec/minReadySeconds", 7),
    ("status", {"replicas": 9}),
]


@each_row(("path", "value"), SAME)
def test_d3_what_others_own_is_no_drift(path: str, value: Any):
    assert is_applied(WANTED, changed(path, value, live()), MANAGER)


def test_d3_a_default_in_a_key_is_ours_only_where_we_set_it():
    """Without its protocol a port is of TCP again: that has to be applied."""
    udp: dict[str, Any] = {".": {}, "f:containerPort": {}, "f:protocol": {}}
    owned = copy.deepcopy(OWNED)
    ports = owned["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:ports"]
    ports.clear()
    ports['k:{"containerPort":80,"protocol":"UDP"}'] = udp
    now = changed(f"{CONTAINER}/ports/0/protocol", "UDP", live(fieldsV1=owned))
    desired = changed(f"{CONTAINER}/ports/0/protocol", "UDP", WANTED)
    assert is_applied(desired, now, MANAGER)
    assert not is_applied(WANTED, now, MANAGER)


def test_d3_the_order_of_items_is_applied():
    """A variable may refer to one before it."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    items: dict[str, Any] = {
        f'k:{{"name":"{n}"}}': {".": {}, "f:name": {}, "f:value": {}} for n in "AB"
    }
    owned = copy.deepcopy(OWNED)
    owned["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:env"] = items
    desired = changed(f"{CONTAINER}/env", env, WANTED)
    foreign = {"name": "THEIRS", "value": "x"}
    for there, same in (
        (env, True),
        ([foreign, env[0], foreign | {"name": "T2"}, env[1]], True),
        (env[::-1], False),
        ([*env, env[0]], False),
    ):
        now = changed(f"{CONTAINER}/env", there, live(fieldsV1=owned))
        assert is_applied(desired, now, MANAGER) is same


ASKED: list[tuple[str, Any, bool]] = [
    ("status", {"replicas": 9}, True),
    ("metadata/resourceVersion", "77", True),
    ("metadata/generation", 5, True),
    ("metadata/annotations/theirs", "y", True),
    ("metadata/annotations/ours", "y", False),
    ("metadata/labels/app", "z", False),
    ("metadata/finalizers", ["theirs"], False),
    ("metadata/uid", "another", False),
    ("spec/paused", None, False),
    ("spec/replicas", 3, False),
    (f"{CONTAINER}/image", "j", False),
]


@each_row(("path", "value", "holds"), ASKED)
def test_d3_an_answer_holds_while_all_that_it_depends_on_stays(path: str, value: Any, holds: bool):
    answers = ServerAnswers()
    desired = changed(f"{CONTAINER}/stdin", False, WANTED)
    desired["metadata"]["annotations"] = {"ours": "x"}
    before = changed("metadata/annotations/ours", "x", live())
    assert not answers.covers("t1", desired, before, MANAGER)
    answers.note("t1", desired, before, MANAGER)
    assert answers.covers("t1", desired, before, MANAGER)
    assert answers.covers("t1", desired, changed(path, value, before), MANAGER) is holds
    assert not answers.covers("t2", desired, before, MANAGER)
    assert not answers.covers("t1", WANTED, before, MANAGER)
    assert not answers.covers("t1", desired, before, "another")
    dropped = changed("metadata/managedFields", [], before)
    assert not answers.covers("t1", desired, dropped, MANAGER)
