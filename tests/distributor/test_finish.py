"""A value of a template is applied as it is, or refused with its field (rule D3)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.ownership import Owner, set_owner
from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.finish import finish
from fleetbus_distributor.render.spec import read_spec
from fleetbus_distributor.render.template import Context, reference
from support.full import examples
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rows import each_row

OWNER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u1", "hub", hub="h1")
SECRET: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
ROLE: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "sum", "labels": {"step": "one"}},
    "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"adds-to": "part"}}]},
}


def test_d3_what_only_a_server_sets_is_not_applied():
    metadata = {
        "name": "m",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": None,
        "managedFields": [],
        "generation": 2,
        "ownerReferences": [{"uid": "hub"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "keep": "me"},
    }
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "status": {}}
    assert finish(obj, "t") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": "default", "annotations": {"keep": "me"}},
    }


@each_row(
    ("obj", "problem"),
    [
        ({}, "t.metadata: an object is required"),
        ({"metadata": {"name": "m"}}, "t.apiVersion: required"),
        ({"metadata": {"name": "m"}, "apiVersion": "v1"}, "t.kind: required"),
        (
            {"metadata": {"generateName": "m-"}, "apiVersion": "v1", "kind": "Pod"},
            "t.metadata.name",
        ),
    ],
)
def test_an_object_without_identity_is_refused(obj: dict[str, Any], problem: str):
    with pytest.raises(RenderError) as caught:
        finish(obj, "t")
    assert problem in str(caught.value)


def test_the_write_only_part_of_a_secret_becomes_data():
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"a": "QQ=="},
        "stringData": {"b": "B"},
    }
    finished = finish(secret, "t")
    assert finished["data"] == {"a": "QQ==", "b": "Qg=="}
    assert "stringData" not in finished


def test_t18_a_template_without_a_namespace_means_default():
    obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    ref = reference(finish(obj, "t"))
    assert ref.key == ("apps", "Deployment", "default", "d")


def test_the_version_is_not_identity():
    beta = {"apiVersion": "x.io/v1beta1", "kind": "K", "metadata": {"name": "d"}}
    stable = beta | {"apiVersion": "x.io/v1"}
    assert reference(finish(beta, "t")).key == reference(finish(stable, "t")).key


BAD_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"name": 7}, "t.metadata.name: a string is required; write numbers"),
    ({"name": ["m"]}, "t.metadata.name: a string is required"),
    ({"name": "a/b"}, "t.metadata.name: may not"),
    ({"name": ".."}, "t.metadata.name: may not"),
    ({"namespace": 5}, "t.metadata.namespace: a string is required; write numbers"),
    ({"namespace": {}}, "t.metadata.namespace: a string is required"),
    ({"namespace": "a%2Fb"}, "t.metadata.namespace: may not"),
    ({"generateName": 5}, "t.metadata.generateName: a string is required"),
    ({"labels": ["a"]}, "t.metadata.labels: a map of strings is required"),
    ({"labels": "a=b"}, "t.metadata.labels: a map of strings is required"),
    ({"labels": {"on": True}}, "t.metadata.labels.on: a string is required"),
    ({"annotations": {"a.b/c": 1.5}}, "t.metadata.annotations['a.b/c']: a string is required"),
    ({"annotations": {"deep": {"a": "b"}}}, "t.metadata.annotations.deep: a string is required"),
    ({"finalizers": "a"}, "t.metadata.finalizers: a list of strings is required"),
    ({"finalizers": [7]}, "t.metadata.finalizers: a list of strings is required"),
    ({"ownerReferences": {}}, "t.metadata.ownerReferences: a list of objects is required"),
]


@each_row(("metadata", "problem"), BAD_METADATA)
def test_d3_metadata_of_a_wrong_type_is_refused(metadata: dict[str, Any], problem: str):
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", **metadata}}
    with pytest.raises(RenderError) as caught:
        finish(obj, "t")
    assert problem in str(caught.value)


@each_row("version", [5, [], "a/b/c", "/", "v1/", "..", "v1?x=y", "v 1", "apps/"])
def test_d3_an_api_version_that_is_none_is_refused(version: Any):
    with pytest.raises(RenderError, match=r"t\.apiVersion"):
        finish({**SECRET, "apiVersion": version}, "t")


@each_row("field", ["data", "stringData"])
@each_row("value", [True, 5432, 1.5, ["a"], {"a": "b"}])
def test_d3_a_value_of_a_secret_that_is_no_text_is_refused_and_not_quoted(field: str, value: Any):
    with pytest.raises(RenderError) as caught:
        finish({**SECRET, field: {"fine": "YQ==", "port": value}}, "t")
    assert str(caught.value).startswith(f"t.{field}.port: a string is required")
    assert "5432" not in str(caught.value)
    with pytest.raises(RenderError, match=rf"t\.{field}: a map"):
        finish({**SECRET, field: [value]}, "t")


def test_d3_a_text_without_value_is_empty_as_on_a_server():
    """kube-apiserver 1.34.1 makes `a: ""` of it."""
    assert finish({**SECRET, "stringData": {"a": None, "b": ""}}, "t")["data"] == {"a": "", "b": ""}


def test_d13_rules_of_an_aggregated_role_are_left_to_the_control_plane():
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    spec = {"template": {**ROLE, "rules": rules}}
    (obj,), (warning,) = render_for(read_spec({"spec": spec}), Context("eu1"))
    assert "rules" not in obj
    assert warning.startswith("spec.template.rules: not applied")
    (obj,), warnings = render_for(
        read_spec({"spec": {"template": {**ROLE, "rules": []}}}), Context("eu1")
    )
    assert "rules" not in obj
    assert warnings == []
    plain = {key: value for key, value in ROLE.items() if key != "aggregationRule"}
    assert finish({**plain, "rules": rules}, "t")["rules"] == rules


KEYS = st.sampled_from(["name", "namespace", "labels", "annotations", "finalizers", "x", "a.b/c"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": st.sampled_from(["v1", "apps/v1", "rbac.authorization.k8s.io/v1"]) | JSON,
        "kind": st.sampled_from(["Secret", "ConfigMap", "ClusterRole"]) | JSON,
        "metadata": st.dictionaries(KEYS, JSON, max_size=4).map(lambda m: {"name": "m", **m})
        | JSON,
        "data": JSON,
        "stringData": JSON,
        "aggregationRule": JSON,
        "spec": JSON,
        "status": JSON,
    },
)


def rendered(obj: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    try:
        (made,), _ = render_for(read_spec({"spec": {"template": obj}}), Context("eu1"))
    except RenderError as refused:
        return None, str(refused)
    return made, ""


@given(obj=OBJECTS)
@settings(max_examples=examples(400))
def test_d3_any_template_is_applied_as_it_is_or_refused_by_a_field(obj: dict[str, Any]):
    before = copy.deepcopy(obj)
    made, problem = rendered(obj)
    assert obj == before
    if made is None:
        assert problem.startswith("spec.template.")
        return
    metadata = before["metadata"]
    expected = {key: value for key, value in metadata.items() if key != "namespace"}
    assert made["metadata"] == {**expected, "namespace": metadata.get("namespace") or "default"}
    for name, part in before.items():
        if name not in ("metadata", "status", "stringData", "data"):
            assert made[name] == part
    if made["kind"] != "Secret":
        assert (made.get("data"), made.get("stringData")) == (
            before.get("data"),
            before.get("stringData"),
        )
    ref = reference(made)
    assert all(isinstance(key_part, str) for key_part in ref.key)
    set_owner(copy.deepcopy(made), OWNER)


VALUES: list[Any] = [True, [], {}, "a/b", "%", "é", "x" * 300, "a\nb"]


@pytest.mark.slow
async def test_d15_no_template_is_an_internal_error(rig: Rig):
    """Each is applied, or is a state of the cluster."""
    rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    fields = ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences")
    odd = [{"metadata": {"name": "m", field: "${vars.v}"}} for field in fields]
    odd += [{field: "${vars.v}"} for field in ("apiVersion", "kind", "data")]
    for part in odd:
        for value in VALUES:
            rig.edit(template={**CONFIG_MAP, **part}, vars={"v": value})
            await rig.reconcile()
            state = rig.states()["t1"]
            assert state.startswith(("Applied", "Failed", "Waiting")), (part, value)
            assert "Internal" not in state


async def test_d14_a_value_of_a_wrong_type_is_not_quoted(rig: Rig):
    template = {**CONFIG_MAP, "data": {"pin": 987654}}
    rig.create(template=template, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    assert rig.entry("t1")["state"] == "Failed"
    assert ".data.pin: expected string" in rig.entry("t1")["message"]
    assert "987654" not in rig.entry("t1")["message"]
