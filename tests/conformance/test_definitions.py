"""Custom resource definitions: how they come, what they say, how they go."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest

from support.api.conformance_client import TABLE, Api, until
from support.api.conformance_objects import Space, definition, version

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_numbers = itertools.count(1)


class Kind:
    """A definition of its own for one case."""

    def __init__(self, api: Api, space: Space) -> None:
        self.plural = f"things{next(_numbers)}"
        self.kind = self.plural.capitalize()
        self.group = space.group
        self.one = f"{CRDS}/{self.plural}.{self.group}"
        self.objects = f"/apis/{self.group}/v1/namespaces/{space.namespace}/{self.plural}"
        self._api = api

    def body(self, *versions: str, **spec: Any) -> dict[str, Any]:
        return definition(self.group, self.plural, self.kind, versions=versions or ("v1",), **spec)

    def create(self, *versions: str, **spec: Any) -> dict[str, Any]:
        reply = self._api.post(CRDS, self.body(*versions, **spec))
        assert reply.status == 201, reply.text
        until(lambda: self._api.get(self.objects).status == 200)
        return self._api.get(self.one).body

    def thing(self, name: str, api_version: str = "v1", **more: Any) -> dict[str, Any]:
        head = {"apiVersion": f"{self.group}/{api_version}", "kind": self.kind}
        return {**head, "metadata": {"name": name}, "spec": {"size": 3}, **more}


@pytest.fixture
def kind(api: Api, space: Space) -> Generator[Kind]:
    """A definition that is removed after the case."""
    created_kind = Kind(api, space)
    yield created_kind
    if api.get(created_kind.objects).status == 200:
        for item in api.get(created_kind.objects).items:
            path = f"{created_kind.objects}/{item['metadata']['name']}"
            api.merge(path, {"metadata": {"finalizers": None}})
    api.delete(created_kind.one)


def test_a_definition_is_established(kind: Kind):
    definition_object = kind.create()
    status = definition_object["status"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert (conditions["NamesAccepted"], conditions["Established"]) == ("True", "True")
    assert status["acceptedNames"] == definition_object["spec"]["names"]
    assert status["storedVersions"] == ["v1"]


def test_names_and_conversion_are_defaulted(api: Api, kind: Kind):
    body = kind.body()
    body["spec"]["names"] = {"plural": kind.plural, "kind": kind.kind}
    spec = api.post(CRDS, body).spec
    assert spec["conversion"] == {"strategy": "None"}
    assert spec["names"] == {
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
    }


def test_what_is_not_served_yet_is_no_path(api: Api, kind: Kind):
    assert (api.get(kind.objects).status, api.get(kind.objects).text) == (
        404,
        "404 page not found\n",
    )


NESTED: dict[str, Any] = {
    "type": "object",
    "default": {},
    "properties": {
        "mode": {"type": "string", "default": "slow"},
        "limits": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"unit": {"type": "string", "default": "s"}},
            },
        },
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"retries": {"type": "integer", "default": 1}},
            },
        },
        "template": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}


def test_defaults_and_pruning_go_as_deep_as_the_schema(api: Api, kind: Kind):
    body = kind.body()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]
    properties = {**spec["properties"], "nested": NESTED}
    schema["properties"] = {"spec": {**spec, "properties": properties}}
    assert api.post(CRDS, body).status == 201
    until(lambda: api.get(kind.objects).status == 200)
    assert api.post(kind.objects, kind.thing("a")).spec["nested"] == {"mode": "slow"}
    template = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t"}, "any": {"x": 1}}
    nested = {
        "bogus": 1,
        "limits": {"a": {"bogus": 1}},
        "steps": [{}, {"retries": 5, "bogus": 1}],
        "template": template,
    }
    reply = api.post(kind.objects, kind.thing("b", spec={"size": 3, "nested": nested}))
    assert reply.spec["nested"] == {
        "mode": "slow",
        "limits": {"a": {"unit": "s"}},
        "steps": [{"retries": 1}, {"retries": 5}],
        "template": template,
    }


ANYTHING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "any": {"x-kubernetes-preserve-unknown-fields": True},
        "items": {
            "type": "array",
            "x-kubernetes-preserve-unknown-fields": True,
            "items": {
                "type": "object",
                "properties": {
                    "known": {"type": "object", "properties": {"a": {"type": "integer"}}}
                },
            },
        },
    },
}


def test_objects_in_lists_are_kept_where_unknown_fields_are(api: Api, kind: Kind):
    body = kind.body()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]
    properties = {**spec["properties"], "nested": ANYTHING}
    schema["properties"] = {"spec": {**spec, "properties": properties}}
    assert api.post(CRDS, body).status == 201
    until(lambda: api.get(kind.objects).status == 200)
    nested: dict[str, Any] = {
        "any": [{"a": 1}, [{"b": [{"c": 2}]}]],
        "items": [{"unknown": 1, "known": {"a": 1, "b": 2}}],
    }
    reply = api.post(kind.objects, kind.thing("a", spec={"size": 3, "nested": nested}))
    assert reply.spec["nested"]["any"] == nested["any"]
    assert reply.spec["nested"]["items"] == [{"unknown": 1, "known": {"a": 1}}]


# versions ---------------------------------------------------------------------------------------


def test_served_versions_share_their_objects(api: Api, kind: Kind):
    kind.create("v1", "v1beta1")
    created = api.post(kind.objects, kind.thing("a"))
    beta = kind.objects.replace("/v1/", "/v1beta1/")
    reply = api.get(f"{beta}/a")
    assert (reply.body["apiVersion"], reply.rv) == (f"{kind.group}/v1beta1", created.rv)
    assert {i["apiVersion"] for i in api.get(beta).items} == {f"{kind.group}/v1beta1"}
    assert api.post(beta, kind.thing("b")).failed == (400, "BadRequest")


def test_a_version_that_is_not_served_is_no_path(api: Api, kind: Kind):
    body = kind.body()
    body["spec"]["versions"].append(version("v0", storage=False, served=False))
    api.post(CRDS, body)
    until(lambda: api.get(kind.objects).status == 200)
    assert api.get(kind.objects.replace("/v1/", "/v0/")).status == 404


def test_a_version_that_was_stored_stays(api: Api, kind: Kind):
    kind.create("v1", "v2")
    definition_object = api.get(kind.one).body
    first, two = definition_object["spec"]["versions"]
    first["storage"], two["storage"] = False, True
    until(lambda: api.merge(kind.one, {"spec": {"versions": [first, two]}}).status == 200)
    assert api.get(kind.one).body["status"]["storedVersions"] == ["v1", "v2"]
    reply = api.merge(kind.one, {"spec": {"versions": [two]}})
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("status.storedVersions[0]", "FieldValueInvalid")]


# what is refused --------------------------------------------------------------------------------


def test_the_name_is_plural_and_group(api: Api, kind: Kind):
    body = kind.body()
    body["metadata"]["name"] = f"wrong.{kind.group}"
    reply = api.post(CRDS, body)
    assert reply.failed == (422, "Invalid")
    assert ("metadata.name", "FieldValueInvalid") in reply.causes
    assert 'must be spec.names.plural+"."+spec.group' in reply.message


def test_a_schema_may_restrict_names(api: Api, kind: Kind):
    body = kind.body()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    names = {"name": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"}}
    schema["properties"]["metadata"] = {"type": "object", "properties": names}
    assert api.post(CRDS, body).status == 201
    until(lambda: api.get(kind.objects).status == 200)
    assert api.post(kind.objects, kind.thing("short")).status == 201
    reply = api.post(kind.objects, kind.thing("a.15"))
    (cause,) = reply.body["details"]["causes"]
    assert (reply.status, cause["reason"], cause["field"]) == (
        422,
        "FieldValueInvalid",
        "metadata.name",
    )
    assert cause["message"] == (
        "Invalid value: \"a.15\": metadata.name in body should match '^[a-z]+$'"
    )
    assert api.post(kind.objects, kind.thing("toolong")).status == 422


def test_every_version_has_a_schema(api: Api, kind: Kind):
    body = kind.body("v1", "v2")
    del body["spec"]["versions"][1]["schema"]
    reply = api.post(CRDS, body)
    field = "spec.versions[1].schema.openAPIV3Schema"
    assert (field, "FieldValueRequired") in reply.causes


@pytest.mark.parametrize(
    ("field_schema", "word", "reason"),
    [
        ({"type": "thing"}, ".type", "FieldValueNotSupported"),
        ({"description": "no type"}, ".type", "FieldValueRequired"),
        ({"type": "array"}, ".items", "FieldValueRequired"),
        ({"type": "string", "pattern": "["}, ".pattern", "FieldValueInvalid"),
        ({"type": "object", "default": "x"}, ".default", "FieldValueTypeInvalid"),
        ({"type": "string", "$ref": "#/x"}, ".$ref", "FieldValueForbidden"),
        (
            {"type": "string", "anyOf": [{"type": "string"}]},
            ".anyOf[0].type",
            "FieldValueForbidden",
        ),
    ],
)
@pytest.mark.since("1.28")
def test_a_schema_has_to_be_structural(
    api: Api, kind: Kind, field_schema: dict[str, Any], word: str, reason: str
):
    body = kind.body()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]
    schema["properties"] = {
        "spec": {**spec, "properties": {**spec["properties"], "x": field_schema}}
    }
    reply = api.post(CRDS, body)
    assert reply.failed == (422, "Invalid")
    ends = f".openAPIV3Schema.properties[spec].properties[x]{word}"
    assert [cause for cause in reply.causes if cause[0].endswith(ends) and cause[1] == reason]


@pytest.mark.parametrize("spec", ["text", {"versions": {}}, {"names": []}, {"group": 5}])
def test_a_definition_of_the_wrong_shape_is_a_bad_request(api: Api, kind: Kind, spec: Any):
    body = kind.body()
    body["spec"] = spec if isinstance(spec, str) else {**body["spec"], **spec}
    reply = api.post(CRDS, body)
    assert reply.failed == (400, "BadRequest")
    assert "cannot be handled as a CustomResourceDefinition: json: cannot" in reply.message


def test_scope_and_kind_never_change(api: Api, kind: Kind):
    kind.create()
    for spec, field in (
        ({"scope": "Cluster"}, "spec.scope"),
        ({"names": {"kind": "Other"}}, "spec.names.kind"),
    ):
        assert (field, "FieldValueInvalid") in api.merge(kind.one, {"spec": spec}).causes


def test_who_comes_late_waits_for_the_names(api: Api, space: Space, kind: Kind):
    kind.create()
    other = Kind(api, space)
    body = other.body()
    body["spec"]["names"]["kind"] = kind.kind
    api.post(CRDS, body)

    def conditions() -> dict[str, str]:
        found: list[dict[str, str]] = api.get(other.one).body["status"]["conditions"] or []
        return {c["type"]: c["status"] for c in found}

    until(lambda: conditions() == {"NamesAccepted": "False", "Established": "False"})
    assert api.get(other.objects).status == 404
    api.delete(kind.one)
    until(lambda: api.get(other.objects).status == 200)
    api.delete(other.one)


# going ------------------------------------------------------------------------------------------


def test_a_definition_takes_its_instances_along(api: Api, kind: Kind):
    kind.create()
    created = api.post(kind.objects, kind.thing("a"))
    with api.watching(kind.objects, resourceVersion=created.rv) as events:
        reply = api.delete(kind.one)
        assert reply.meta["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
        assert next(events)["type"] == "DELETED"
        assert list(events) == []  # the server ends the watch
    until(lambda: api.get(kind.one).status == 404)
    until(lambda: api.get(kind.objects).status == 404)
    assert api.get(kind.objects).text == "404 page not found\n"


def test_a_finalizer_of_an_instance_holds_the_definition(api: Api, kind: Kind):
    kind.create()
    meta = {"name": "held", "finalizers": ["example.com/f"]}
    api.post(kind.objects, kind.thing("held", metadata=meta))
    api.delete(kind.one)
    until(lambda: "deletionTimestamp" in api.get(f"{kind.objects}/held").meta)
    assert "deletionTimestamp" in api.get(kind.one).meta
    late = api.post(kind.objects, kind.thing("late"))
    assert late.status in {403, 405}
    text = "create not allowed while custom resource definition is terminating"
    assert text in late.message
    api.merge(f"{kind.objects}/held", {"metadata": {"finalizers": None}})
    until(lambda: api.get(kind.one).status == 404)


SHOWN: dict[str, Any] = {
    "metadata": {"annotations": {"lab.example.org/owner": "ann"}},
    "spec": {
        "parts": ["nose", "fin", "tail"],
        "tags": {"a.b": "dotted", "plain": 1},
        "stages": [
            {"name": "one", "thrust": 10, "on": True},
            {"name": "two", "thrust": 20, "on": False, "sub": {"x": "deep"}},
            {"name": "three", "thrust": 30},
        ],
        "ratio": 0.5,
        "text": "7",
    },
}
CELLS: list[tuple[str, str, Any]] = [
    ("string", ".spec.parts[-1:]", "tail"),
    ("string", ".spec.parts[-1]", "tail"),
    ("string", ".spec.parts[0:2]", "nose"),
    ("string", ".spec.parts[1:]", "fin"),
    ("string", ".spec.parts[:1]", "nose"),
    ("string", ".spec.parts[0:3:2]", "nose"),
    ("string", ".spec.parts[-2:-1]", "fin"),
    ("string", ".spec.parts[7]", None),
    ("string", ".spec.parts[5:]", None),
    ("string", ".spec.parts[*]", "nose"),
    ("string", ".spec.parts", '["nose","fin","tail"]'),
    ("string", ".spec.tags['a.b']", None),  # as if it were .a.b
    ("string", r".spec.tags['a\.b']", "dotted"),
    ("string", ".spec['parts'][0]", "nose"),
    ("string", ".spec['ratio','text']", "0.5"),
    ("string", r".spec.tags.a\.b", "dotted"),
    ("string", r".metadata.annotations.lab\.example\.org/owner", "ann"),
    ("string", ".spec.stages[-1:].name", "three"),
    ("string", '.spec.stages[?(@.name=="two")].sub.x', "deep"),
    ("string", ".spec.stages[?(@.thrust>10)].name", "two"),
    ("string", ".spec.stages[?(@.thrust<=10)].name", "one"),
    ("string", ".spec.stages[?(@.sub)].name", "two"),
    ("string", ".spec.stages[?(@.on==true)].name", "one"),
    ("string", '.spec.stages[?(@.name!="one")].name', "two"),
    ("string", '.spec.stages[?(@.name=="none")].name', None),
    ("string", "..x", "deep"),
    ("string", ".spec.nothing.below", None),
    ("string", ".spec.parts.nothing", None),
    ("integer", ".spec.stages[1].thrust", 20),
    ("integer", ".spec.text", None),
    ("number", ".spec.ratio", 0.5),
    ("string", ".spec.ratio", "0.5"),
    ("boolean", ".spec.stages[0].on", True),
    ("string", ".spec.stages[0].on", "true"),
]


def test_a_column_shows_the_first_value_at_its_path(api: Api, kind: Kind):
    columns = [
        {"name": f"C{number}", "type": cell_type, "jsonPath": path}
        for number, (cell_type, path, _) in enumerate(CELLS)
    ]
    body = kind.body()
    body["spec"]["versions"][0] |= {
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
        "additionalPrinterColumns": columns,
    }
    assert api.post(CRDS, body).status == 201
    until(lambda: api.get(kind.objects).status == 200)
    shown = {**kind.thing("a"), "spec": SHOWN["spec"]}
    shown["metadata"] = {"name": "a", **SHOWN["metadata"]}
    assert api.post(kind.objects, shown).status == 201
    until(lambda: len(api.get(kind.objects, accept=TABLE).body["columnDefinitions"]) > 2)
    (row,) = api.get(kind.objects, accept=TABLE).body["rows"]
    cells = zip(CELLS, row["cells"][1:], strict=True)
    assert {path: cell for (_, path, _), cell in cells} == {path: e for _, path, e in CELLS}
