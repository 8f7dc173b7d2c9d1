"""Server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.conformance_client import Api
from support.api.conformance_objects import Space, config_map, deployment
from support.api.unreadable_values import UNREADABLE
from support.rows import each_row

CONFLICT = "FieldManagerConflict"


@pytest.fixture
def one(space: Space, name: str) -> str:
    """The path of a widget that is not there yet."""
    return f"{space.widgets}/{name}"


def test_an_apply_creates_and_owns_what_it_says(api: Api, space: Space, name: str, one: str):
    spec: dict[str, Any] = {
        "color": "red",
        "items": [{"name": "a", "value": "1"}],
        "tags": ["t"],
        "plain": ["x"],
        "free": {"a": {"b": 1}},
    }
    reply = api.apply(one, space.widget(name, {"labels": {"l": "1"}}, **spec), "m1")
    assert (reply.status, reply.spec["replicas"]) == (201, 3)
    assert reply.managers == [("m1", "Apply", None)]
    assert reply.owned("m1") == {
        "f:metadata": {"f:labels": {"f:l": {}}},
        "f:spec": {
            "f:color": {},
            "f:free": {"f:a": {".": {}, "f:b": {}}},
            "f:items": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:value": {}}},
            "f:plain": {},
            "f:size": {},
            "f:tags": {'v:"t"': {}},
        },
    }


def test_yaml_is_applied(api: Api, space: Space, name: str, one: str):
    text = f"""
        apiVersion: {space.group}/v1
        kind: Widget
        metadata:
          name: {name}
        spec:
          size: 4
    """
    assert api.apply(one, text.encode(), "m1").spec["size"] == 4


def test_another_value_is_a_conflict_unless_forced(api: Api, space: Space, name: str, one: str):
    api.apply(one, space.widget(name, color="red"), "m1")
    reply = api.apply(one, space.widget(name, color="green"), "m2")
    assert reply.failed == (409, "Conflict")
    assert reply.causes == [(".spec.color", CONFLICT)]
    assert reply.message == 'Apply failed with 1 conflict: conflict with "m1": .spec.color'
    forced = api.apply(one, space.widget(name, color="green"), "m2", force="true")
    assert forced.spec["color"] == "green"
    assert forced.owned("m1") == {"f:spec": {"f:size": {}}}


def test_a_plain_write_owns_what_it_changed(api: Api, space: Space, name: str, one: str):
    api.apply(one, space.widget(name), "m1")
    api.merge(one, {"spec": {"color": "red"}}, fieldManager="upd")
    reply = api.apply(one, space.widget(name, color="green"), "m1")
    assert reply.failed == (409, "Conflict")
    assert f'conflict with "upd" using {space.group}/v1: .spec.color' in reply.message


def test_the_user_agent_names_the_manager_of_plain_writes(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name))
    assert reply.managers == [("python-httpx", "Update", None)]
    assert reply.owned("python-httpx") == {"f:spec": {".": {}, "f:replicas": {}, "f:size": {}}}


def test_the_same_value_is_shared_until_the_last_owner_drops_it(
    api: Api, space: Space, name: str, one: str
):
    for manager in ("m1", "m2"):
        api.apply(one, space.widget(name, color="red"), manager)
    assert api.apply(one, space.widget(name), "m1").spec["color"] == "red"
    assert "color" not in api.apply(one, space.widget(name), "m2").spec


def test_keyed_items_and_members_come_and_go_by_owner(api: Api, space: Space, name: str, one: str):
    first = space.widget(name, items=[{"name": "a", "value": "1"}], tags=["t1"])
    api.apply(one, first, "m1")
    second = space.widget(name, items=[{"name": "b", "value": "2"}], tags=["t2"])
    both = api.apply(one, second, "m2").spec
    assert [item["name"] for item in both["items"]] == ["a", "b"]
    assert both["tags"] == ["t1", "t2"]
    less = api.apply(one, space.widget(name), "m1").spec
    assert (less["items"], less["tags"]) == ([{"name": "b", "value": "2"}], ["t2"])
    none = api.apply(one, space.widget(name), "m2").spec
    assert not {"items", "tags"} & none.keys()


def test_applying_the_same_again_moves_nothing(api: Api, space: Space, name: str, one: str):
    body = space.widget(name, items=[{"name": "a"}], tags=["t"])
    first = api.apply(one, body, "m1")
    assert api.apply(one, body, "m1").rv == first.rv
    assert api.get(one).rv == first.rv


def test_labels_finalizers_and_owners_are_applied_and_dropped(
    api: Api, space: Space, name: str, one: str
):
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": space.namespace}
    uid = api.get(f"/api/v1/namespaces/{space.namespace}").meta["uid"]
    meta = {"labels": {"a": "b"}, "finalizers": ["example.com/f"]}
    owners = {"ownerReferences": [{**owner, "uid": uid}]}
    full = api.apply(one, space.widget(name, {**meta, **owners}), "m").owned("m")["f:metadata"]
    assert full["f:finalizers"] == {'v:"example.com/f"': {}}
    assert list(full["f:ownerReferences"]) == [f'k:{{"uid":"{uid}"}}']
    less = api.apply(one, space.widget(name), "m").meta
    assert not {"labels", "finalizers", "ownerReferences"} & less.keys()


def test_status_has_an_endpoint_and_an_entry_of_its_own(
    api: Api, space: Space, name: str, one: str
):
    body = {"apiVersion": f"{space.group}/v1", "kind": "Widget", "metadata": {"name": name}}
    missing = api.apply(f"{one}/status", {**body, "status": {"phase": "OK"}}, "ctl")
    assert missing.failed == (404, "NotFound")
    api.apply(one, {**space.widget(name), "status": {"phase": "ignored"}}, "m1")
    reply = api.apply(f"{one}/status", {**body, "status": {"phase": "OK"}}, "ctl")
    assert reply.body["status"] == {"phase": "OK"}
    assert sorted(reply.managers, key=str) == [
        ("ctl", "Apply", "status"),
        ("m1", "Apply", None),
    ]


def test_who_created_keeps_what_is_defaulted(api: Api, space: Space, name: str, one: str):
    api.post(space.widgets, space.widget(name), fieldManager="old")
    reply = api.apply(one, space.widget(name), "m")
    assert reply.owned("m") == {"f:spec": {"f:size": {}}}
    assert reply.owned("old") == {"f:spec": {".": {}, "f:replicas": {}, "f:size": {}}}


def test_the_books_are_cleared_by_an_empty_entry(api: Api, space: Space, name: str, one: str):
    api.apply(one, space.widget(name), "m1")
    assert "managedFields" not in api.merge(one, {"metadata": {"managedFields": [{}]}}).meta


def test_the_books_are_kept_from_clients_that_do_not_know_them(
    api: Api, space: Space, name: str, one: str
):
    api.apply(one, space.widget(name), "m1")
    reply = api.merge(one, {"metadata": {"managedFields": []}})
    assert [manager for manager, _, _ in reply.managers] == ["m1"]


def test_the_books_of_a_built_in_type_are_cleared_by_an_empty_list(
    api: Api, space: Space, name: str
):
    api.post(space.core("configmaps"), config_map(name, a="b"))
    path = f"{space.core('configmaps')}/{name}"
    assert "managedFields" not in api.merge(path, {"metadata": {"managedFields": []}}).meta
    assert "managedFields" not in api.get(path).meta


def test_the_books_can_be_replaced(api: Api, space: Space, name: str, one: str):
    """Kubectl moves from client-side to server-side apply in this way."""
    created = api.post(space.widgets, space.widget(name), fieldManager="kubectl-client-side-apply")
    (entry,) = created.meta["managedFields"]
    reply = api.json_patch(
        one,
        {
            "op": "replace",
            "path": "/metadata/managedFields",
            "value": [{**entry, "manager": "kubectl", "operation": "Apply"}],
        },
        {"op": "replace", "path": "/metadata/resourceVersion", "value": created.rv},
    )
    assert reply.managers == [("kubectl", "Apply", None)]


def test_versions_have_entries_of_their_own(api: Api, space: Space, name: str, one: str):
    api.apply(one, space.widget(name), "m1")
    beta = {**space.widget(name), "apiVersion": f"{space.group}/v1beta1"}
    reply = api.apply(f"{space.betas}/{name}", beta, "m2")
    versions = {e["manager"]: e["apiVersion"] for e in reply.meta["managedFields"]}
    assert versions == {"m1": f"{space.group}/v1", "m2": f"{space.group}/v1beta1"}


def test_who_applies_another_version_keeps_one_entry(api: Api, space: Space, name: str, one: str):
    api.apply(one, space.widget(name, size=3), "m1")
    beta = {**space.widget(name, size=4), "apiVersion": f"{space.group}/v1beta1"}
    reply = api.apply(f"{space.betas}/{name}", beta, "m1")
    assert (reply.status, reply.spec["size"]) == (200, 4)
    (entry,) = reply.meta["managedFields"]
    assert (entry["manager"], entry["apiVersion"]) == ("m1", f"{space.group}/v1beta1")


def test_a_dry_run_stores_nothing(api: Api, space: Space, name: str, one: str):
    assert api.apply(one, space.widget(name), "m", dryRun="All").status == 201
    assert api.get(one).status == 404
    assert api.apply(one, space.widget(one.rpartition("/")[2]), "m").status == 201
    assert api.apply(one, space.widget(None), "m").status == 200  # the URL names it


# refusals ---------------------------------------------------------------------------------------


def test_an_apply_needs_a_manager(api: Api, space: Space, name: str, one: str):
    reply = api.call("PATCH", one, space.widget(name), content="application/apply-patch+yaml")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("fieldManager", "FieldValueRequired")]


def test_an_apply_names_its_type(api: Api, one: str):
    assert api.apply(one, {"spec": {"size": 3}}, "m").failed == (400, "BadRequest")


def test_books_are_not_applied(api: Api, space: Space, name: str, one: str):
    entry = {"manager": "q", "operation": "Apply", "fieldsType": "FieldsV1"}
    reply = api.apply(one, space.widget(name, {"managedFields": [entry]}), "m")
    assert reply.failed == (400, "BadRequest")
    assert reply.message == "metadata.managedFields must be nil"


def test_an_apply_names_its_object(api: Api, space: Space, one: str):
    generated = space.widget(None, {"generateName": "x-"})
    assert api.apply(one, generated, "m").failed == (400, "BadRequest")
    assert api.apply(one, space.widget(None), "m").failed == (400, "BadRequest")
    assert api.apply(one, space.widget("another"), "m").failed == (400, "BadRequest")
    assert api.get(one).status == 404


def test_a_uid_has_to_be_that_of_the_object(api: Api, space: Space, name: str, one: str):
    missing = api.apply(one, space.widget(name, {"uid": "abc"}), "m")
    assert missing.failed == (409, "Conflict")
    assert "uid mismatch" in missing.message
    api.apply(one, space.widget(name), "m")
    assert api.apply(one, space.widget(name, {"uid": "abc"}), "m").status in {409, 422}


def test_a_version_is_checked_where_there_is_an_object(api: Api, space: Space, name: str, one: str):
    versioned = space.widget(name, {"resourceVersion": "1"})
    assert api.apply(one, versioned, "m").status == 201
    assert api.apply(one, versioned, "m").failed == (409, "Conflict")


def test_a_field_that_is_not_declared_is_refused(api: Api, space: Space, name: str, one: str):
    reply = api.apply(one, space.widget(name, bogus=1), "m")
    assert reply.status in {400, 500}  # 400 in future, kubernetes#139253
    assert ".spec.bogus: field not declared in schema" in reply.message


# built-in types ---------------------------------------------------------------------------------


def test_container_ports_are_keyed_by_port_and_protocol(api: Api, space: Space, name: str):
    path, body = f"{space.apps('deployments')}/{name}", deployment(name)
    container = body["spec"]["template"]["spec"]["containers"][0]
    container |= {"ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "b"}]}
    reply = api.apply(path, body, "m1")
    tree = reply.owned("m1")["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']
    assert tree["f:ports"] == {
        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}
    }
    assert tree["f:env"] == {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}}


def test_replicas_left_to_somebody_else_survive(api: Api, space: Space, name: str):
    path, body = f"{space.apps('deployments')}/{name}", deployment(name)
    api.apply(path, body, "m1")
    api.merge(f"{path}/scale", {"spec": {"replicas": 1}}, fieldManager="autoscaler")
    refused = api.apply(path, body, "m1")
    assert refused.causes == [(".spec.replicas", CONFLICT)]
    assert 'conflict with "autoscaler" with subresource "scale"' in refused.message
    del body["spec"]["replicas"]
    assert api.apply(path, body, "m1").spec["replicas"] == 1


def test_keys_of_a_config_map_are_owned_one_by_one(api: Api, space: Space, name: str):
    path = f"{space.core('configmaps')}/{name}"
    for manager, key in (("m1", "a"), ("m2", "b")):
        last = api.apply(path, config_map(name, None, **{key: "1"}), manager)
    assert last.body["data"] == {"a": "1", "b": "1"}
    assert api.apply(path, config_map(name), "m2").body["data"] == {"a": "1"}


def duplicates(*texts: str) -> str:
    text = texts[0] if len(texts) == 1 else "errors:\n" + "\n".join(f"  {t}" for t in texts)
    return f"failed to create typed patch object ({{}}/{{}}; {{}}): {text}"


TWICE = "duplicate entries for key"
CONTAINER = '.spec.containers[name="c"]'
VARIABLES = [{"name": "MODE", "value": "a"}, {"name": "MODE", "value": "b"}]
PORTS = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("container", "texts"),
    [
        ({"env": VARIABLES}, [f'{CONTAINER}.env: {TWICE} [name="MODE"]']),
        ({"ports": PORTS}, [f'{CONTAINER}.ports: {TWICE} [containerPort=80,protocol="TCP"]']),
    ],
)
def test_an_item_that_is_there_twice_is_refused(
    api: Api, space: Space, name: str, container: dict[str, Any], texts: list[str]
):
    spec = {"containers": [{"name": "c", "image": "a", **container}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    reply = api.apply(f"{space.core('pods')}/{name}", body, "m1")
    assert reply.status == 500
    assert reply.message == duplicates(*texts).format("", name, "/v1, Kind=Pod")
    assert api.get(f"{space.core('pods')}/{name}").status == 404


@pytest.mark.parametrize("has_undeclared", [False, True])
def test_all_that_is_wrong_is_named_at_once(
    api: Api, space: Space, name: str, has_undeclared: bool
):
    wrong = {"env": [{"name": "P", "value": 5432}], "tty": "yes", "ports": PORTS}
    containers = [{"name": "c", "image": "a", **wrong}, {"name": "d", "image": 7, "args": "x"}]
    spec: dict[str, Any] = {"containers": containers, "nodeSelector": {"disk": False}}
    if has_undeclared:
        spec |= {"nope": True, "never": 1}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    reply = api.apply(f"{space.core('pods')}/{name}", body, "m1")
    assert reply.status == 500
    named = {
        text.strip().partition(", got ")[0]
        for text in reply.message.partition("Kind=Pod): ")[2].removeprefix("errors:").splitlines()
    } - {""}
    of_wrong_type = {
        f'{CONTAINER}.env[name="P"].value: expected string',
        f'{CONTAINER}.ports: {TWICE} [containerPort=80,protocol="TCP"]',
        f"{CONTAINER}.tty: expected boolean",
        '.spec.containers[name="d"].args: expected list',
        '.spec.containers[name="d"].image: expected string',
        ".spec.nodeSelector.disk: expected string",
    }
    undeclared = {f".spec.{field}: field not declared in schema" for field in ("nope", "never")}
    if has_undeclared:  # real servers read the fields in any order, and end at such a one
        assert named & undeclared
        assert named <= of_wrong_type | undeclared
    else:
        assert named == of_wrong_type


def test_twice_in_metadata_is_refused(api: Api, space: Space, name: str):
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}
    meta = {
        "namespace": space.namespace,
        "finalizers": ["a.b/c", "a.b/c"],
        "ownerReferences": [owner, {**owner, "name": "y"}],
    }
    reply = api.apply(f"{space.core('configmaps')}/{name}", config_map(name, meta), "m1")
    texts = [
        f'.metadata.finalizers: {TWICE} [="a.b/c"]',
        f'.metadata.ownerReferences: {TWICE} [uid="1"]',
    ]
    # A real server names the fields in the order of a Go map, another one each time.
    expected = {
        duplicates(*order).format(space.namespace, name, "/v1, Kind=ConfigMap")
        for order in (texts, texts[::-1])
    }
    assert reply.status == 500
    assert reply.message in expected


def test_twice_in_a_custom_resource_is_refused(api: Api, space: Space, name: str, one: str):
    items = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    reply = api.apply(one, space.widget(name, items=items, tags=["t", "t"]), "m1")
    assert reply.status == 500
    assert f'.spec.items: {TWICE} [name="a"]' in reply.message
    assert f'.spec.tags: {TWICE} [="t"]' in reply.message


@each_row(("obj", "field", "why"), UNREADABLE)
def test_a_value_that_only_go_refuses_is_refused_without_its_field(
    api: Api, space: Space, obj: dict[str, Any], field: str, why: str
):
    kind, group = obj["kind"].lower(), obj["apiVersion"].rpartition("/")[0]
    base = f"/apis/{obj['apiVersion']}" if group else f"/api/{obj['apiVersion']}"
    has_namespace = "namespace" in obj["metadata"]
    where = f"{base}/namespaces/{space.namespace}" if has_namespace else base
    metadata = {key: v for key, v in obj["metadata"].items() if key != "namespace"}
    reply = api.apply(f"{where}/{kind}s/w", {**obj, "metadata": metadata}, "m")
    gvk = f"{obj['apiVersion'] if group else '/' + obj['apiVersion']}, Kind={obj['kind']}"
    assert reply.status == 500
    assert reply.message.startswith("failed to convert new object (")
    rest = f"/w; {gvk}) to proper version: unable to convert unstructured object to {gvk}: {why}"
    assert rest in reply.message
    assert field not in reply.message
