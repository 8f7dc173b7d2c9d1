"""Bad requests: bodies, content types, methods, callers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.api.conformance_client import YAML, Api
from support.api.conformance_objects import Space, config_map

MALFORMED = "the object provided is unrecognized (must be of type {}): "
PARSE = "couldn't get version/kind; json parse error: "


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "unexpected end of JSON input (<empty>)"),
        (b"{bad", "invalid character 'b' looking for beginning of object key string ({bad)"),
        (b'{"a":1', 'unexpected end of JSON input ({"a":1)'),
        (b'{"a":1}}', "invalid character '}' after top-level value ({\"a\":1}})"),
        (b"a: 1", "invalid character 'a' looking for beginning of value (613a2031)"),
    ],
)
def test_what_is_no_json_is_a_bad_request(api: Api, space: Space, body: bytes, why: str):
    reply = api.post(space.widgets, body)
    assert reply.failed == (400, "BadRequest")
    assert reply.message == f"{MALFORMED.format('Widget')}{PARSE}{why}"
    built_in = api.post(space.core("configmaps"), body)
    assert built_in.message == f"{MALFORMED.format('ConfigMap')}{PARSE}{why}"


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b'{"kind": 5, "apiVersion": "v1"}'])
def test_what_is_no_object_is_a_bad_request(api: Api, space: Space, body: bytes):
    reply = api.post(space.widgets, body)
    assert reply.failed == (400, "BadRequest")
    assert "json: cannot unmarshal" in reply.message


def test_what_is_no_yaml_is_a_bad_request(api: Api, space: Space):
    reply = api.post(space.widgets, b"a: b: c", content=YAML)
    assert reply.failed == (400, "BadRequest")
    assert "mapping values are not allowed in this context" in reply.message  # some name the line


def test_a_custom_resource_names_its_type(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, {"metadata": {"name": name}, "spec": {"size": 1}})
    assert reply.failed == (400, "BadRequest")
    assert "Object 'Kind' is missing in '{\"metadata\"" in reply.message


@pytest.mark.parametrize("content", ["text/plain", "application/x-www-form-urlencoded"])
def test_another_content_type_is_not_supported(api: Api, space: Space, name: str, content: str):
    reply = api.post(space.widgets, space.widget(name), content=content)
    assert reply.failed == (415, "UnsupportedMediaType")
    assert reply.message.startswith(
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json, application/yaml"
    )


def test_no_content_type_is_json(api: Api, space: Space, name: str):
    assert api.post(space.widgets, space.widget(name), content="").status == 201
    charset = "application/json; charset=utf-8"
    assert api.post(space.widgets, space.widget(f"{name}-2"), content=charset).status == 201


def test_a_body_has_its_limit(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name, free={"x": "y" * (3 * 1024 * 1024)}))
    assert reply.failed == (413, "RequestEntityTooLarge")
    assert reply.message == "Request entity too large: limit is 3145728"


def test_stored_objects_have_a_lower_one(api: Api, space: Space, name: str):
    reply = api.post(space.widgets, space.widget(name, free={"x": "y" * (1792 * 1024)}))
    assert reply.failed == (500, None)
    assert "request is too large" in reply.message
    reply = api.post(space.core("configmaps"), config_map(name, a="x" * (1024 * 1024 + 1)))
    assert reply.failed == (422, "Invalid")
    assert [reason for _, reason in reply.causes] == ["FieldValueTooLong"]


@pytest.mark.parametrize("data", [{"a b": "x"}, {"": "x"}, {"x" * 254: "x"}])
def test_keys_of_data_are_simple(api: Api, space: Space, name: str, data: dict[str, str]):
    for plural, field in (("configmaps", "data"), ("secrets", "stringData")):
        reply = api.post(space.core(plural), {"metadata": {"name": name}, field: data})
        assert reply.failed == (422, "Invalid")


def test_methods_that_are_not_served(api: Api, space: Space, name: str):
    assert api.call("OPTIONS", space.widgets).status == 405
    assert api.call("HEAD", space.widgets).status == 200
    assert api.post(f"{space.widgets}/{name}/scale", {}).failed == (405, "MethodNotAllowed")


def test_a_version_cannot_be_deleted(api: Api, space: Space):
    assert api.delete(f"/apis/{space.group}/v1").kind == "APIResourceList"


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"dryRun": "Some"}, "CreateOptions"),
        ({"fieldValidation": "x"}, "CreateOptions"),
    ],
)
def test_options_are_named_in_the_refusal(
    api: Api, space: Space, name: str, query: dict[str, str], kind: str
):
    reply = api.post(space.widgets, space.widget(name), **query)
    assert reply.failed == (422, "Invalid")
    assert (reply.details["kind"], reply.details["group"]) == (kind, "meta.k8s.io")


# callers ----------------------------------------------------------------------------------------


def ask(api: Api, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    url, verify = api.server.url, api.server.verify
    with httpx.Client(base_url=url, verify=verify, headers=headers) as http:
        reply = http.get(path)
        return reply.status_code, reply.json()


def test_a_wrong_token_is_401(api: Api):
    status, body = ask(api, "/apis", {"Authorization": "Bearer wrong"})
    assert (status, body["reason"], body["message"]) == (401, "Unauthorized", "Unauthorized")


def test_nobody_may_do_nothing(api: Api, space: Space):
    if not api.server.headers:
        pytest.skip("the server knows its callers by certificate: nobody cannot ask")
    status, body = ask(api, space.widgets, {})
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["details"] == {"group": space.group, "kind": "widgets"}
    assert body["message"] == (
        f'widgets.{space.group} is forbidden: User "system:anonymous" cannot list resource '
        f'"widgets" in API group "{space.group}" in the namespace "{space.namespace}"'
    )
