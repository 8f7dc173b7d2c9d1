"""POST: what is kept, what is refused, dry run, strictness, names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.api.conformance_client import YAML, Api, Reply, until
from support.api.conformance_objects import Space, config_map, deployment, pod

SAFE = "[bcdfghjklmnpqrstvwxz2456789]{5}"


def test_a_created_object_has_what_only_the_server_gives(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name))
    assert (reply.status, reply.kind) == (201, "Widget")
    assert reply.meta["generation"] == 1
    assert len(reply.meta["uid"]) == 36
    assert reply.meta["creationTimestamp"].endswith("Z")
    assert reply.meta["namespace"] == space.namespace
    assert reply.spec["replicas"] == 3  # defaulted
    assert "selfLink" not in reply.meta


def test_what_only_the_server_gives_is_overwritten(api: Api, space: Space, name: str):
    metadata = {
        "uid": "mine",
        "generation": 77,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "selfLink": "/x",
    }
    meta = api.post(space.widgets, space.widget(name, metadata)).meta
    assert meta["uid"] != "mine"
    assert meta["generation"] == 1
    assert not meta["creationTimestamp"].startswith("2001")
    assert not {"deletionTimestamp", "selfLink"} & meta.keys()


def test_status_is_dropped_where_it_is_a_subresource(api: Api, space: Space, name: str):
    with_status = {**space.widget(name), "status": {"phase": "X"}}
    assert "status" not in api.post(space.widgets, with_status).body
    running = {**pod(name, schedulerName="nobody"), "status": {"phase": "Running"}}
    assert api.post(space.core("pods"), running).body["status"]["phase"] == "Pending"
    nine = {**deployment(name), "status": {"replicas": 9}}
    assert "replicas" not in api.post(space.apps("deployments"), nine).body["status"]


@pytest.mark.emulator  # on a real cluster a node would draw pods to it
def test_the_status_of_a_node_is_kept(api: Api, name: str):
    body = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}}
    assert api.post("/api/v1/nodes", body).body["status"]["capacity"] == {"cpu": "4"}
    api.delete(f"/api/v1/nodes/{name}")


def test_times_have_whole_seconds(api: Api, space: Space, name: str):
    meta = api.post(space.widgets, space.widget(name)).meta
    times = [meta["creationTimestamp"], *(e["time"] for e in meta["managedFields"])]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time in times)


def test_creating_twice_is_already_exists(api: Api, space: Space, name: str):
    api.post(space.widgets, space.widget(name))
    reply = api.post(space.widgets, space.widget(name))
    assert reply.failed == (409, "AlreadyExists")
    assert reply.message == f'widgets.{space.group} "{name}" already exists'
    assert reply.details == {"name": name, "group": space.group, "kind": "widgets"}


def test_a_version_on_create_is_500(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name, {"resourceVersion": "5"}))
    assert reply.failed == (500, None)
    assert reply.message == "resourceVersion should not be set on objects to be created"


def test_nulls_count_as_absent(api: Api, space: Space, name: str):
    body = space.widget(name, {"labels": None}, color=None, replicas=None, note=None)
    reply = api.post(space.widgets, body)
    assert reply.spec == {"size": 3, "replicas": 3, "note": None}  # note is nullable
    assert "labels" not in reply.meta


def test_a_post_may_name_the_object_in_the_path(api: Api, space: Space, name: str):
    assert api.post(f"{space.widgets}/{name}", space.widget(name)).status == 201


def test_built_in_bodies_need_no_type(api: Api, space: Space, name: str):
    reply = api.post(space.core("configmaps"), {"metadata": {"name": name}})
    assert (reply.status, reply.kind) == (201, "ConfigMap")


# namespaces of requests -------------------------------------------------------------------------


def test_another_namespace_in_the_body_is_refused(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name, {"namespace": "other"}))
    assert reply.failed == (400, "BadRequest")
    assert reply.message == (
        "the namespace of the provided object does not match the namespace sent on the request"
    )


def test_nothing_can_be_created_in_a_namespace_that_is_not_there(api: Api, name: str):
    reply = api.post("/api/v1/namespaces/no-such-namespace/configmaps", config_map(name))
    assert reply.failed == (404, "NotFound")
    assert reply.message == 'namespaces "no-such-namespace" not found'
    assert reply.details == {"name": "no-such-namespace", "kind": "namespaces"}


def test_nothing_can_be_created_in_all_namespaces(api: Api, space: Space, name: str):
    reply = api.post(f"/apis/{space.group}/v1/widgets", space.widget(name))
    assert (reply.status, reply.text) == (404, "404 page not found\n")


# what is invalid --------------------------------------------------------------------------------

ANY = "FieldValueInvalid"
UNTIL_1_34 = pytest.mark.until("1.34")
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "a", "controller": True}


@pytest.mark.parametrize(
    ("meta", "cause"),
    [
        ({"name": "BAD_Name"}, ("metadata.name", ANY)),
        ({"name": "a" * 254}, ("metadata.name", ANY)),
        ({"name": ""}, ("metadata.name", "FieldValueRequired")),
        ({"name": "", "generateName": "BAD_"}, ("metadata.generateName", ANY)),
        ({"labels": {"bad key": "v"}}, ("metadata.labels", ANY)),
        ({"labels": {"k": "a b"}}, ("metadata.labels", ANY)),
        ({"labels": {"k": "x" * 64}}, ("metadata.labels", ANY)),
        ({"annotations": {"/x": "v"}}, ("metadata.annotations", ANY)),
        ({"finalizers": ["bad name/x"]}, ("metadata.finalizers", ANY)),
        pytest.param(
            {"ownerReferences": [{**OWNER, "uid": ""}]},
            ("metadata.ownerReferences.uid", ANY),
            marks=UNTIL_1_34,
        ),
        (
            {"ownerReferences": [OWNER, {**OWNER, "name": "b", "uid": "b"}]},
            ("metadata.ownerReferences", ANY),
        ),
    ],
)
def test_bad_metadata_is_invalid(
    api: Api, space: Space, name: str, meta: dict[str, Any], cause: tuple[str, str]
):
    reply = api.post(space.widgets, space.widget(name, meta))
    assert reply.failed == (422, "Invalid")
    assert cause in reply.causes
    assert (reply.details["kind"], reply.details["group"]) == ("Widget", space.group)


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"size": 99}, ("spec.size", ANY)),
        ({"size": "big"}, ("spec.size", "FieldValueTypeInvalid")),
        ({"color": "blue"}, ("spec.color", "FieldValueNotSupported")),
        ({"items": [{"value": "x"}]}, ("spec.items[0].name", "FieldValueRequired")),
        ({"tags": ["t", "t"]}, ("spec.tags[1]", "FieldValueDuplicate")),
        ({"port": True}, ("spec.port", "FieldValueTypeInvalid")),
    ],
)
@pytest.mark.since("1.28")
def test_the_schema_decides_what_is_invalid(
    api: Api, space: Space, name: str, spec: dict[str, Any], cause: tuple[str, str]
):
    reply = api.post(space.widgets, space.widget(name, **spec))
    assert reply.failed == (422, "Invalid")
    assert cause in reply.causes
    assert reply.message.startswith(f'Widget.{space.group} "{name}" is invalid: ')


def test_what_is_required_is_missed(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, {**space.widget(name), "spec": {}})
    assert reply.causes == [("spec.size", "FieldValueRequired")]
    assert reply.message == f'Widget.{space.group} "{name}" is invalid: spec.size: Required value'


def test_kind_and_version_are_those_of_the_url(api: Api, space: Space, name: str):
    body = space.widget(name)
    other = api.post(space.widgets, {**body, "kind": "Gadget"})
    assert other.status in {400, 422}
    version = api.post(space.widgets, {**body, "apiVersion": f"{space.group}/v2"})
    assert version.failed == (400, "BadRequest")
    assert "does not match the expected API version" in version.message
    del body["kind"]
    assert api.post(space.widgets, body).failed == (400, "BadRequest")


@pytest.mark.since("1.28")
def test_a_plain_finalizer_is_warned_of(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name, {"finalizers": ["plain"]}))
    assert reply.status == 201
    assert '"plain": prefer a domain-qualified finalizer name' in reply.headers["warning"].replace(
        "\\", ""
    )


@pytest.mark.parametrize("manager", ["x" * 129, "a\nb"])
def test_a_field_manager_is_short_and_printable(api: Api, space: Space, name: str, manager: str):
    reply = api.post(space.widgets, space.widget(name), fieldManager=manager)
    assert reply.failed == (422, "Invalid")
    assert reply.details["kind"] == "CreateOptions"


# generated names --------------------------------------------------------------------------------


def test_a_name_is_generated(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(None, {"generateName": f"{name}-"}))
    assert re.fullmatch(f"{name}-{SAFE}", reply.meta["name"])
    assert reply.meta["generateName"] == f"{name}-"
    prefix = name + "a" * 70
    cut = api.post(space.widgets, space.widget(None, {"generateName": prefix}))
    assert len(cut.meta["name"]) == 63
    assert cut.meta["name"].startswith(prefix[:58])


# dry run and strictness -------------------------------------------------------------------------


def test_a_dry_run_does_all_but_store(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name), dryRun="All")
    assert (reply.status, reply.spec["replicas"]) == (201, 3)
    assert reply.meta["uid"]
    assert "resourceVersion" not in reply.meta
    assert api.get(f"{space.widgets}/{name}").status == 404
    assert api.post(space.widgets, space.widget(name, size=99), dryRun="All").status == 422


def test_dry_run_is_all_or_nothing(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name), dryRun="Some")
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("dryRun", "FieldValueNotSupported")]


@pytest.mark.since("1.27")
def test_unknown_fields_of_custom_resources(api: Api, space: Space, name: str):
    body = space.widget(name, bogus=1)
    strict = api.post(space.widgets, body, fieldValidation="Strict")
    assert strict.failed == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.bogus"' in strict.message
    silent = api.post(space.widgets, body, fieldValidation="Ignore", dryRun="All")
    assert "warning" not in silent.headers
    reply = api.post(space.widgets, body)
    assert "bogus" not in reply.spec
    assert reply.headers["warning"] == '299 - "unknown field \\"spec.bogus\\""'


@pytest.mark.since("1.27")
def test_unknown_fields_of_built_in_types(api: Api, space: Space, name: str):
    body = deployment(name, bogus=1)
    body["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    strict = api.post(space.apps("deployments"), body, fieldValidation="Strict")
    assert strict.failed == (400, "BadRequest")
    for field in ("spec.bogus", "spec.template.spec.containers[0].imagee"):
        assert f'unknown field "{field}"' in strict.message
    reply = api.post(space.apps("deployments"), body)
    assert reply.status == 201
    assert "bogus" not in reply.spec


@pytest.mark.since("1.27")
def test_fields_stand_once(api: Api, space: Space, name: str):
    text = (
        f'{{"apiVersion": "{space.group}/v1", "kind": "Widget", "metadata": {{"name": "{name}"}}, '
        '"spec": {"size": 3, "size": 4}}'
    )
    strict = api.post(space.widgets, text.encode(), fieldValidation="Strict")
    assert strict.failed == (400, "BadRequest")
    assert 'strict decoding error: duplicate field "spec.size"' in strict.message
    reply = api.post(space.widgets, text.encode(), fieldValidation="Warn")
    assert reply.spec["size"] == 4
    assert reply.headers["warning"] == '299 - "duplicate field \\"spec.size\\""'


@pytest.mark.since("1.27")
def test_field_validation_has_three_values(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name), fieldValidation="Sometimes")
    assert reply.causes == [("fieldValidation", "FieldValueNotSupported")]


def test_a_preserving_field_takes_anything(api: Api, space: Space, name: str):
    free = {"a": [1, {"b": None}], "c": {"d": 1.5}}
    assert api.post(space.widgets, space.widget(name, free=free)).spec["free"] == free


# built-in types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["spec.replicas", "metadata.labels", "spec.selector"])
def test_a_wrong_type_in_a_built_in_body_is_a_bad_request(
    api: Api, space: Space, name: str, field: str
):
    body = deployment(name)
    section, last = field.split(".")
    body[section][last] = "text"
    reply = api.post(space.apps("deployments"), body)
    assert reply.failed == (400, "BadRequest")
    assert "cannot be handled as a Deployment: json: cannot unmarshal string" in reply.message


def test_a_deployment_selects_its_own_template(api: Api, space: Space, name: str):
    body = deployment(name, selector={"matchLabels": {"app": "other"}})
    reply = api.post(space.apps("deployments"), body)
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("spec.template.metadata.labels", ANY)]


def test_a_secret_takes_plain_text_and_gives_base64(api: Api, space: Space, name: str):
    body = {"metadata": {"name": name}, "stringData": {"a": "b"}, "data": {"c": "aGk="}}
    reply = api.post(space.core("secrets"), body)
    assert reply.body["data"] == {"a": "Yg==", "c": "aGk="}
    assert reply.body["type"] == "Opaque"
    assert "stringData" not in reply.body
    bad = api.post(space.core("secrets"), {**body, "data": {"a": "not base64!"}})
    assert bad.failed == (400, "BadRequest")
    assert "illegal base64 data" in bad.message


def test_a_service_gets_an_address(api: Api, space: Space, name: str):
    body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    reply = api.post(space.core("services"), body)
    assert reply.status == 201
    assert reply.spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", reply.spec["clusterIP"])


def test_events_are_served_twice(api: Api, space: Space, name: str):
    event = {
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": space.namespace},
        "reason": "Tested",
        "message": "m",
        "type": "Normal",
    }
    assert api.post(space.core("events"), event).status == 201
    other = f"/apis/events.k8s.io/v1/namespaces/{space.namespace}/events/{name}"
    assert api.get(other).body["regarding"]["name"] == "p"
    selected = "involvedObject.name=p,involvedObject.kind=Pod,reason=Tested"
    assert api.get(space.core("events"), fieldSelector=selected).names == [name]
    away = {**event, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}
    refused = api.post(space.core("events"), {**away, "metadata": {"name": f"{name}-2"}})
    assert refused.causes == [("involvedObject.namespace", ANY)]


def test_yaml_is_read_too(api: Api, space: Space, name: str):
    text = (
        f"apiVersion: {space.group}/v1\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {{size: 3}}"
    )
    assert api.post(space.widgets, text.encode(), content=YAML).status == 201


# addresses and node ports -----------------------------------------------------------------------


def service(name: str, *ports: dict[str, Any], **spec: Any) -> dict[str, Any]:
    named = [{"name": f"p{index}", **port} for index, port in enumerate(ports)]
    return {"metadata": {"name": name}, "spec": {"ports": named or [{"port": 80}], **spec}}


def messages(reply: Reply) -> list[tuple[str, str]]:
    return [(cause["field"], cause["message"]) for cause in reply.details["causes"]]


def test_a_node_port_is_given_once(api: Api, space: Space, name: str):
    path = space.core("services")
    first = api.post(path, service(name, {"port": 80}, type="NodePort"))
    taken = first.spec["ports"][0]["nodePort"]
    why = "provided port is already allocated"
    for protocol in ("TCP", "UDP"):
        port = {"port": 80, "nodePort": taken, "protocol": protocol}
        reply = api.post(path, service(f"{name}-b", port, type="NodePort"))
        assert messages(reply) == [("spec.ports[0].nodePort", f"Invalid value: {taken}: {why}")]
    other = api.post(path, service(f"{name}-c", {"port": 80}, type="NodePort"))
    change = {"spec": {"ports": [{"port": 80, "nodePort": taken}]}}
    reply = api.merge(f"{path}/{name}-c", change)
    assert messages(reply) == [("spec.ports[0].nodePort", f"Invalid value: {taken}: {why}")]
    node_port = other.spec["ports"][0]["nodePort"]
    twice = {"spec": {"ports": [{"port": 80, "nodePort": node_port}]}}
    assert api.merge(f"{path}/{name}-c", twice).status == 200
    api.delete(f"{path}/{name}")
    assert until(lambda: api.merge(f"{path}/{name}-c", change).status == 200)


def test_protocols_of_a_service_share_a_node_port(api: Api, space: Space, name: str):
    free = api.post(space.core("services"), service(name, {"port": 80}, type="NodePort"))
    number = free.spec["ports"][0]["nodePort"]
    both = {"port": 81, "nodePort": number, "protocol": "UDP"}
    ports = [free.spec["ports"][0], {"name": "udp", **both}]
    reply = api.merge(f"{space.core('services')}/{name}", {"spec": {"ports": ports}})
    assert [port["nodePort"] for port in reply.spec["ports"]] == [number, number]
    api.delete(f"{space.core('services')}/{name}")
    ports = [{"port": port, "nodePort": number} for port in (80, 81)]
    reply = api.post(space.core("services"), service(f"{name}-b", *ports, type="NodePort"))
    why = "provided port is already allocated"
    assert messages(reply) == [("spec.ports[1].nodePort", f"Invalid value: {number}: {why}")]


def test_a_node_port_needs_a_type_and_the_range(api: Api, space: Space, name: str):
    path = space.core("services")
    reply = api.post(path, service(name, {"port": 80, "nodePort": 80}, type="NodePort"))
    why = "provided port is not in the valid range. The range of valid ports is 30000-32767"
    assert messages(reply) == [("spec.ports[0].nodePort", f"Invalid value: 80: {why}")]
    reply = api.post(path, service(name, {"port": 80, "nodePort": 30_099}))
    why = "Forbidden: may not be used when `type` is 'ClusterIP'"
    assert messages(reply) == [("spec.ports[0].nodePort", why)]


@pytest.mark.since("1.34")
def test_an_address_is_given_once(api: Api, space: Space, name: str):
    path = space.core("services")
    address = api.post(path, service(name)).spec["clusterIP"]
    failed = f'Invalid value: ["{address}"]: failed to allocate IP {address}'
    reply = api.post(path, service(f"{name}-b", clusterIP=address))
    why = f"{failed}: provided IP is already allocated"
    assert messages(reply) == [("spec.clusterIPs", why)]
    reply = api.post(path, service(f"{name}-b", clusterIP="203.0.113.7"))
    assert "the provided network does not match the current range" in reply.message


@pytest.mark.parametrize(
    ("port", "why"),
    [
        ("53", "must contain at least one letter (a-z)"),
        ("a--b", "must not contain consecutive hyphens"),
        ("Ab", "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        ("a-", "must not begin or end with a hyphen"),
        ("abcdefghijklmnop", "must be no more than 15 characters"),
        (70000, "must be between 1 and 65535, inclusive"),
    ],
)
def test_a_port_of_pods_is_a_number_or_a_name(
    api: Api, space: Space, name: str, port: str | int, why: str
):
    spec = {"ports": [{"port": 53, "targetPort": port}]}
    reply = api.post(space.core("services"), {"metadata": {"name": name}, "spec": spec})
    assert reply.status == 422
    assert "spec.ports[0].targetPort: Invalid value" in reply.message
    assert reply.message.endswith(why)


@pytest.mark.parametrize(
    ("bounds", "field", "why"),
    [
        pytest.param(
            {"minReplicas": 0, "maxReplicas": 1},
            "minReplicas",
            "greater than or equal to 1",
            marks=UNTIL_1_34,
        ),
        pytest.param(
            {"minReplicas": -1, "maxReplicas": 1},
            "minReplicas",
            "greater than or equal to 1",
            marks=UNTIL_1_34,
        ),
        pytest.param({"maxReplicas": 0}, "maxReplicas", "greater than 0", marks=UNTIL_1_34),
        ({"minReplicas": 3, "maxReplicas": 2}, "maxReplicas", "or equal to `minReplicas`"),
    ],
)
def test_the_bounds_of_an_autoscaler(
    api: Api, space: Space, name: str, bounds: dict[str, int], field: str, why: str
):
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
    path = f"/apis/autoscaling/v2/namespaces/{space.namespace}/horizontalpodautoscalers"
    body = {"metadata": {"name": name}, "spec": {"scaleTargetRef": target, **bounds}}
    reply = api.post(path, body)
    assert reply.status == 422
    assert f"spec.{field}: Invalid value: {bounds[field]}: must be " in reply.message
    assert why in reply.message


@pytest.mark.parametrize("time", ["", "00:00:00Z", "00:00:00.1Z", "00:00:00.1234567Z", "00:00Z"])
def test_the_time_of_a_lease_has_six_digits_of_a_second(
    api: Api, space: Space, name: str, time: str
):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{space.namespace}/leases"
    text = f"2026-01-01T{time}" if time else ""
    reply = api.post(path, {"metadata": {"name": name}, "spec": {"renewTime": text}})
    assert reply.failed == (400, "BadRequest")
