import copy
from typing import Any

import pytest

from fleetbus_distributor.errors import CustomizeError, RenderError
from fleetbus_distributor.render.customize import merge_patch, render_for
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.render.template import Context
from support.rows import each_row

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "default", "labels": {"app": "example"}},
    "spec": {"replicas": 3, "containers": [{"name": "c", "image": "nginx:latest"}], "list": [1]},
}


def customized(
    *actions: dict[str, Any], template: dict[str, Any] = DEPLOYMENT, **entry: Any
) -> tuple[dict[str, Any], list[str]]:
    entries = [{"name": "t1", "action": list(actions), **entry}]
    spec = read_spec({"spec": {"template": template, "customize": {"clusters": entries}}})
    objects, warnings = render_for(spec, Context("t1", {"env": "prod"}, {"v": "x"}))
    return objects[0], warnings


def look(obj: Any, path: str) -> Any:
    here: Any = obj
    for token in path.split("/")[1:]:
        key = int(token) if token.isdecimal() else token.replace("~1", "/")
        here = here[key]
    return here


CASES: list[tuple[tuple[str, str, Any], str, Any]] = [
    (("replace", "/spec/containers/0/image", ["a:1"]), "/spec/containers/0/image", "a:1"),
    (("replace", "/spec/replicas", [2]), "/spec/replicas", 2),
    (("replace", "/spec/replicas", 0), "/spec/replicas", 0),
    (("replace", "/spec/replicas", [1, {"a": None}]), "/spec/replicas", {"a": None}),
    (("add", "/metadata/annotations", ["foo=bar"]), "/metadata/annotations", {"foo": "bar"}),
    (("add", "/spec/x", ["a=1", "b=2"]), "/spec/x", {"a": "1", "b": "2"}),
    (("add", "/spec/x", ["a="]), "/spec/x", {"a": ""}),
    (("add", "/spec/x", [["literal"]]), "/spec/x", ["literal"]),
    (("add", "/spec/x", [[]]), "/spec/x", []),
    (("add", "/spec/x", "k=v and =more"), "/spec/x", "k=v and =more"),
    (("add", "/spec/x", None), "/spec/x", None),
    (("add", "/spec/x", {"k": ["v=w"]}), "/spec/x", {"k": ["v=w"]}),
    (("add", "/spec/x", "${cluster.name}"), "/spec/x", "t1"),
    (("add", "/spec/list/-", [2]), "/spec/list", [1, 2]),
    # A missing map of the metadata is created, as the live object would have had it (T15).
    (
        ("add", "/metadata/annotations/example", ["example"]),
        "/metadata/annotations/example",
        "example",
    ),
    (("add", "/metadata/annotations/a.b~1c", "x"), "/metadata/annotations/a.b~1c", "x"),
    (("add", "/metadata/labels/x", "y"), "/metadata/labels", {"app": "example", "x": "y"}),
    # A member that exists only as a default of the API server (T16).
    (("replace", "/spec/revisionHistoryLimit", [2]), "/spec/revisionHistoryLimit", 2),
    (("replace", "/spec/strategy/type", "Recreate"), "/spec/strategy", {"type": "Recreate"}),
    (
        ("replace", "/spec/containers/0/imagePullPolicy", "Never"),
        "/spec/containers/0/imagePullPolicy",
        "Never",
    ),
]


@each_row(("action", "path", "value"), CASES)
def test_t16_values_and_paths(action: tuple[str, str, Any], path: str, value: Any):
    op, target, action_value = action
    obj, warnings = customized({"op": op, "path": target, "value": action_value})
    assert look(obj, path) == value
    assert warnings == []


def test_t16_remove_ignores_a_value_and_move_and_copy_use_from():
    obj, _ = customized(
        {"op": "remove", "path": "/metadata/labels/app", "value": ["x"]},
        {"op": "copy", "from": "/spec/replicas", "path": "/spec/copied"},
        {"op": "move", "from": "/spec/list", "path": "/spec/moved"},
        {"op": "test", "path": "/spec/copied", "value": [3]},
    )
    assert obj["metadata"]["labels"] == {}
    assert obj["spec"]["copied"] == 3
    assert obj["spec"]["moved"] == [1]
    assert "list" not in obj["spec"]


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"op": "remove", "path": "/spec/nope"},
        "remove /spec/nope of Deployment d: the object has no such path",
    ),
    ({"op": "add", "path": "/spec/a/b", "value": 1}, "add /spec/a/b"),
    ({"op": "replace", "path": "/spec/list/9", "value": 1}, "replace /spec/list/9"),
    ({"op": "replace", "path": "/spec/list/x", "value": 1}, "replace /spec/list/x"),
    ({"op": "replace", "path": "/spec/replicas/deep", "value": 1}, "replace /spec/replicas"),
    ({"op": "add", "path": "/spec/x", "value": []}, "add /spec/x needs a value"),
    ({"op": "add", "path": "/spec/x"}, "add /spec/x needs a value"),
    ({"op": "test", "path": "/spec/replicas", "value": 4}, "test failed: value differs"),
    ({"op": "replace", "path": "", "value": 4}, "the result is not an object"),
    ({"op": "copy", "from": "/nope", "path": "/spec/x"}, "copy /spec/x"),
]


@each_row(("action", "problem"), BAD)
def test_a_patch_that_does_not_fit_names_its_action(action: dict[str, Any], problem: str):
    with pytest.raises(CustomizeError) as caught:
        customized(action)
    assert problem in str(caught.value)
    assert "spec.customize.clusters[0].action[0]" in str(caught.value)


def test_d14_a_failed_test_does_not_quote_values():
    with pytest.raises(CustomizeError) as caught:
        customized({"op": "test", "path": "/spec/replicas", "value": "canary"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "result", "lost"),
    [
        (["a=b=c"], {"a": "b"}, "everything after the second '=' of a"),
        (["a=b", "plain", 7], {"a": "b"}, "2 element(s) without '='"),
    ],
)
def test_reading_a_list_as_a_map_warns_when_text_is_lost(value: Any, result: Any, lost: str):
    obj, warnings = customized({"op": "add", "path": "/spec/x", "value": value})
    assert obj["spec"]["x"] == result
    assert len(warnings) == 1
    assert lost in warnings[0]


def test_the_same_patch_twice_gives_the_same_object_and_leaves_the_template():
    before = copy.deepcopy(DEPLOYMENT)
    action = {"op": "add", "path": "/spec/containers/-", "value": {"name": "second"}}
    first, _ = customized(action)
    second, _ = customized(action)
    assert first == second
    assert len(second["spec"]["containers"]) == 2
    assert before == DEPLOYMENT


def test_a_merge_patch_merges_maps_and_removes_nulls():
    obj, _ = customized(merge={"spec": {"replicas": None, "zone": "${cluster.name}"}})
    assert obj["spec"]["zone"] == "t1"
    assert "replicas" not in obj["spec"]


@each_row(
    ("target", "patch", "result"),
    [
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ("x", {"a": {"b": None}}, {"a": {}}),
        ({"a": 1}, [1], [1]),
    ],
)
def test_merge_patch_is_rfc_7386(target: Any, patch: Any, result: Any):
    assert merge_patch(target, patch) == result


@each_row(
    ("entry", "applies"),
    [
        ({"name": "t1"}, True),
        ({"name": "t2"}, False),
        ({"clusterSelector": {"matchLabels": {"env": "prod"}}}, True),
        ({"clusterSelector": {"matchLabels": {"env": "test"}}}, False),
        ({"name": "t1", "target": {"kind": "Deployment"}}, True),
        ({"name": "t1", "target": {"kind": "Deployment", "name": "other"}}, False),
        ({"name": "t1", "target": {"apiVersion": "v1"}}, False),
    ],
)
def test_an_entry_is_for_the_clusters_and_templates_it_names(entry: dict[str, Any], applies: bool):
    action = {"op": "replace", "path": "/spec/replicas", "value": 9}
    spec = read_spec(
        {
            "spec": {
                "template": DEPLOYMENT,
                "customize": {"clusters": [{**entry, "action": [action]}]},
            }
        }
    )
    objects, _ = render_for(spec, Context("t1", {"env": "prod"}, {}))
    assert (objects[0]["spec"]["replicas"] == 9) is applies


def test_two_templates_may_not_mean_one_object():
    spec = read_spec({"spec": {"templates": [DEPLOYMENT, DEPLOYMENT]}})
    with pytest.raises(RenderError, match="Deployment default/d is that of"):
        render_for(spec, Context("t1", {}, {}))
