"""One bad request is refused; it neither ends the process nor spoils what others read."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from emulator.support.kube_calls import (
    APPLY,
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    TABLE,
    WIDGETS,
    Calls,
    deployment,
    widget,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster, EndWatch, serve
from fleetbus_emulator.apiserver.encoding.go_syntax import Malformed, parse_yaml

JsonObject = dict[str, Any]
CONFIGMAP: JsonObject = {"metadata": {"name": "a"}, "data": {"a": "b"}}


@pytest.fixture
def calls() -> Calls:
    prepared = Calls(Cluster("alpha", seed=1))
    definition = widget_definition()
    preserve = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = preserve
    prepared.post(CRDS, definition)
    return prepared


def nested(depth: int) -> JsonObject:
    value: JsonObject = {"a": 1}
    for _ in range(depth):
        value = {"a": value}
    return value


def body_of(name: str, spec: bytes) -> bytes:
    document = orjson.dumps(widget(name) | {"spec": {"here": 0}})
    return document.replace(b'{"here":0}', spec)


@pytest.mark.parametrize("depth", [230, 245, 248, 249, 250, 251, 252, 300, 500, 1000])
@pytest.mark.parametrize("way", ["create", "apply"])
def test_an_object_too_deep_to_be_read_again_is_never_stored(calls: Calls, depth: int, way: str):
    body = body_of("w", b'{"a":' * depth + b"1" + b"}" * depth)
    if way == "create":
        answer = calls.call("POST", WIDGETS, body)
    else:
        answer = calls.call("PATCH", f"{WIDGETS}/w", body, content=APPLY, fieldManager="m")
    assert answer.status in ((201,) if depth == 230 else (201, 400))
    for accept in ("application/json", TABLE, "application/json;as=PartialObjectMetadataList;v=v1"):
        assert calls.get(WIDGETS, accept=accept).status == 200


def test_a_patch_cannot_nest_an_object_deeper_than_it_can_be_read(calls: Calls):
    calls.post(WIDGETS, widget("w") | {"spec": nested(130)})
    fold = [{"op": "copy", "from": "/spec", "path": "/spec" + "/a" * 125}]
    assert calls.call("PATCH", f"{WIDGETS}/w", fold, content=JSON_PATCH).status == 400
    assert calls.get(WIDGETS).status == 200


def test_a_patch_cannot_make_an_object_larger_than_etcd_takes(calls: Calls):
    calls.post(WIDGETS, widget("w") | {"spec": {"a": "x" * 1000_000}})
    answer = calls.call("PATCH", f"{WIDGETS}/w", {"spec": {"b": "x" * 600_000}}, content=MERGE)
    assert (answer.status, answer.message) == (500, "etcdserver: request is too large")


def test_copies_of_a_json_patch_are_bounded(calls: Calls):
    calls.post(WIDGETS, widget("w") | {"spec": {"a": "x" * 1000}})
    doubling = [{"op": "copy", "from": "/spec", "path": f"/spec/{n}"} for n in range(40)]
    assert calls.call("PATCH", f"{WIDGETS}/w", doubling, content=JSON_PATCH).status == 422
    many = [{"op": "test", "path": "/kind", "value": "Widget"}] * 10_001
    answer = calls.call("PATCH", f"{WIDGETS}/w", many, content=JSON_PATCH)
    assert (answer.status, answer.document["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize("value", [[], 5, None, "x"])
def test_a_json_patch_cannot_make_something_else_of_an_object(calls: Calls, value: Any):
    calls.post(WIDGETS, widget("w"))
    patch = [{"op": "replace", "path": "", "value": value}]
    assert calls.call("PATCH", f"{WIDGETS}/w", patch, content=JSON_PATCH).status == 422


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 3000,
        b"{a: " * 3000,
        b"- " * 3000,
        b"? " * 3000,
        b"".join(b" " * n + b"a:\n" for n in range(300)),
    ],
)
def test_deep_yaml_is_refused_before_libyaml_recurses(document: bytes):
    with pytest.raises(Malformed, match="exceeded max depth"):
        parse_yaml(document)


def test_yaml_aliases_cannot_multiply_a_document():
    lists = [b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    for n in range(1, 7):
        aliases = b",".join([b"*a%d" % (n - 1)] * 10)
        lists.append(b"a%d: &a%d [%b]" % (n, n, aliases))
    with pytest.raises(Malformed, match="excessive aliasing"):
        parse_yaml(b"\n".join(lists))
    with pytest.raises(Malformed, match="excessive aliasing"):
        parse_yaml(b"a: &a " + b"x" * 100_000 + b"\nb: [" + b"*a," * 100 + b"]")
    assert parse_yaml(b"a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a}")["c"] == {"x": 1}


DIRECTIVES: list[JsonObject] = [
    {"$retainKeys": 5},
    {"$retainKeys": [{}]},
    {"$deleteFromPrimitiveList/paused": 5},
]


@pytest.mark.parametrize("spec", DIRECTIVES)
def test_directives_of_the_wrong_type_are_ignored(calls: Calls, spec: JsonObject):
    calls.post(DEPLOYMENTS, deployment("d"))
    patch = {"spec": spec}
    answer = calls.call("PATCH", f"{DEPLOYMENTS}/d", patch, content=STRATEGIC, dryRun="All")
    assert answer.status in (200, 400, 422)


@pytest.mark.parametrize("grace", ["abc", [], {}, 1.5, True])
def test_a_grace_period_that_is_no_number_is_refused(calls: Calls, grace: Any):
    calls.post(CONFIGMAPS, CONFIGMAP)
    calls.post(
        PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    options = {"gracePeriodSeconds": grace}
    for path in (f"{CONFIGMAPS}/a", CONFIGMAPS):
        answer = calls.call("DELETE", path, options)
        assert answer.status == 400
        assert "DeleteOptions.gracePeriodSeconds of type int64" in answer.message
    eviction = {"metadata": {"name": "p"}, "deleteOptions": options}
    assert calls.post(f"{PODS}/p/eviction", eviction).status == 400
    assert calls.call("DELETE", f"{CONFIGMAPS}/a", gracePeriodSeconds="abc").status == 400
    assert calls.get(f"{CONFIGMAPS}/a").status == 200


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"resourceVersion": HUGE}, 400),
        ({"resourceVersion": "٣"}, 400),
        ({"limit": HUGE}, 400),
        ({"limit": "1_0"}, 400),
        ({"timeoutSeconds": "9" * 400}, 400),
        ({"watch": "1", "timeoutSeconds": "9" * 400}, 400),
        ({"watch": "1", "resourceVersion": HUGE}, 500),
        ({"continue_": "eyJydiI6MWU0MDAsInN0YXJ0IjoiYSJ9"}, 400),
        ({"continue_": "eyJydiI6MWUzMDAsInN0YXJ0IjoiYSJ9"}, 500),
    ],
)
def test_numbers_out_of_range_are_refused(calls: Calls, query: dict[str, str], status: int):
    assert calls.get(CONFIGMAPS, **query).status == status


def test_the_manager_of_a_user_agent_is_what_of_it_can_be_printed(calls: Calls):
    agent = "a\x01\udcffb" + "c" * 200 + "/1.0"
    reply = calls.call("POST", CONFIGMAPS, CONFIGMAP, agent=agent)
    assert reply.meta["managedFields"][0]["manager"] == "ab" + "c" * 126


async def test_headers_that_are_no_text_do_no_harm():
    async with serve([Cluster("alpha", tokens={"t": "u"})]) as servers:
        port = int(servers.url("alpha").rpartition(":")[2])
        for header in (b"User-Agent: \xff\xfe", b"Impersonate-User: \xff", b"X: " + b"a" * 20_000):
            body = orjson.dumps({"metadata": {"generateName": "a-"}, "data": {"a": "b"}})
            status = await posted(port, CONFIGMAPS.encode(), header, body)
            assert status in (b"201", b"403")
        assert servers.clusters["alpha"].list("v1/configmaps", "default")


async def posted(port: int, path: bytes, header: bytes, body: bytes) -> bytes:
    """The status of a POST whose header no well-behaved client would send."""
    head = (
        b"POST %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n%b\r\n\r\n" % (path, len(body), header)
    )
    return (await exchange(port, head + body)).split(b" ")[1]


def test_warnings_fit_into_a_header(calls: Calls):
    unknown = {f"field{n}": 1 for n in range(3000)}
    answer = calls.call("POST", CONFIGMAPS, CONFIGMAP | unknown)
    assert answer.status == 201
    header = answer.headers["Warning"]
    assert header.startswith('299 - "unknown field')
    assert 4000 < len(header) < 8000


def test_a_warning_is_reported_once(calls: Calls):
    twice = {"metadata": {"name": "w", "finalizers": ["plain", "plain"]}}
    answer = calls.post(WIDGETS, widget("w") | twice)
    assert answer.headers["Warning"].count("prefer a domain-qualified") == 1


def test_more_node_ports_than_there_are_cannot_be_given(calls: Calls):
    ports = [{"name": f"p{n}", "port": n} for n in range(1, 3000)]
    service = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": ports}}
    answer = calls.post("/api/v1/namespaces/default/services", service)
    assert (answer.status, answer.document["reason"]) == (500, "InternalError")


async def exchange(port: int, request: bytes) -> bytes:
    """The whole answer to a request that has to say that the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_watches_of_http_1_0_have_no_chunks_and_heads_no_events():
    async with serve([Cluster("alpha")]) as servers:
        port = int(servers.url("alpha").rpartition(":")[2])
        path = b"/api/v1/namespaces?watch=1&timeoutSeconds=1"
        servers.clusters["alpha"].faults.add(EndWatch(after_events=4))
        old = await exchange(port, b"GET %b HTTP/1.0\r\n\r\n" % path)
        head, _, lines = old.partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert [orjson.loads(line)["type"] for line in lines.splitlines()] == ["ADDED"] * 4
        raw = b"HEAD %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path
        assert (await exchange(port, raw)).split(b" ")[1] == b"405"


async def test_a_packed_body_is_no_json():
    async with serve([Cluster("alpha", tokens={"t": "u"})]) as servers:
        port = int(servers.url("alpha").rpartition(":")[2])
        header = b"Content-Encoding: gzip"
        assert await posted(port, CONFIGMAPS.encode(), header, b"\x1f\x8bxx") == b"400"
