"""Definitions: bad ones are refused with the causes of a real server, never with 500."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from emulator.support.kube_calls import CRDS, WIDGETS, Calls, Reply, widget, widget_definition
from fleetbus_emulator.apiserver import Cluster

ONE = f"{CRDS}/widgets.example.com"
SCHEMA = "spec.versions.0.schema.openAPIV3Schema"
SPEC = f"{SCHEMA}.properties.spec.properties"


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


def changed(path: str, value: Any = None, *, drop: bool = False) -> dict[str, Any]:
    """The definition of widgets with something else at a path."""
    definition = copy.deepcopy(widget_definition())
    *above, last = path.split(".")
    target: Any = definition
    for step in above:
        target = target[int(step)] if step.isdigit() else target[step]
    if drop:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return definition


def causes(reply: Reply) -> list[tuple[str, str]]:
    assert reply.status == 422, reply.document
    return [(c["field"], c["reason"]) for c in reply.document["details"]["causes"]]


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("spec", "x", "string into Go struct field CustomResourceDefinition.spec of type v1.Custom"),
    ("spec.versions", {}, "object into Go struct field CustomResourceDefinitionSpec.spec.versions"),
    ("spec.versions.0", 5, "number into Go struct field CustomResourceDefinitionSpec.spec.ver"),
    ("spec.names.kind", 5, "number into Go struct field CustomResourceDefinitionNames.spec.names"),
    (
        "spec.versions.0.served",
        "yes",
        "string into Go struct field CustomResourceDefinitionVersion",
    ),
    (
        f"{SPEC}.size.minimum",
        "1",
        "string into Go struct field JSONSchemaProps.spec.versions.schema",
    ),
    (f"{SPEC}.size.type", ["integer", "null"], "array into Go struct field JSONSchemaProps.spec"),
    (f"{SPEC}.size", [], "array into Go struct field"),
    (f"{SCHEMA}.required", "spec", "string into Go struct field JSONSchemaProps.spec.versions"),
]


@pytest.mark.parametrize(("path", "value", "why"), WRONG_TYPES)
def test_a_field_of_a_wrong_type_is_400(calls: Calls, path: str, value: Any, why: str):
    reply = calls.post(CRDS, changed(path, value))
    assert reply.status == 400
    head = (
        'CustomResourceDefinition in version "v1" cannot be handled as a CustomResourceDefinition'
    )
    assert reply.message.startswith(f"{head}: json: cannot unmarshal {why}")


REQUIRED, INVALID, FORBIDDEN = "FieldValueRequired", "FieldValueInvalid", "FieldValueForbidden"
UNSUPPORTED = "FieldValueNotSupported"
V1 = "spec.validation.openAPIV3Schema"  # what all versions have in common stands above them
SIZE = f"{V1}.properties[spec].properties[size]"
ITEMS = f"{V1}.properties[spec].properties[items]"
REFUSED: list[tuple[str, Any, str, str]] = [
    ("metadata.name", "gadgets.example.com", "metadata.name", INVALID),
    ("spec.group", "nodots", "spec.group", INVALID),
    ("spec.scope", "Galactic", "spec.scope", UNSUPPORTED),
    ("spec.scope", "", "spec.scope", REQUIRED),
    ("spec.preserveUnknownFields", True, "spec.preserveUnknownFields", INVALID),
    ("spec.names.shortNames", ["Bad_Name"], "spec.names.shortNames[0]", INVALID),
    ("spec.names.kind", "", "spec.names.kind", REQUIRED),
    ("spec.names.listKind", "Widget", "spec.names.listKind", INVALID),
    ("spec.versions", [], "spec.versions", INVALID),
    ("spec.versions.0.storage", False, "spec.versions", INVALID),
    ("spec.versions.0.name", "V_1", "spec.versions[0].name", INVALID),
    ("spec.versions.0.schema", {}, "spec.versions[0].schema.openAPIV3Schema", REQUIRED),
    (
        "spec.versions.0.subresources.scale.specReplicasPath",
        ".status.x",
        "spec.subresources.scale.specReplicasPath",
        INVALID,
    ),
    (
        "spec.versions.0.additionalPrinterColumns.0.type",
        "text",
        "spec.additionalPrinterColumns[0].type",
        INVALID,
    ),
    ("spec.conversion", {"strategy": "Webhook"}, "spec.conversion.webhookClientConfig", REQUIRED),
    (f"{SPEC}.size.type", "int", f"{SIZE}.type", UNSUPPORTED),
    (f"{SPEC}.size.type", "", f"{SIZE}.type", REQUIRED),
    (f"{SPEC}.size.$ref", "#/x", f"{SIZE}.$ref", FORBIDDEN),
    (f"{SPEC}.size.uniqueItems", True, f"{SIZE}.uniqueItems", FORBIDDEN),
    (f"{SPEC}.size.default", "three", f"{SIZE}.default", "FieldValueTypeInvalid"),
    (f"{SPEC}.size.default", 99, f"{SIZE}.default", INVALID),
    (f"{SPEC}.color.pattern", "(?=x)", f"{V1}.properties[spec].properties[color].pattern", INVALID),
    (f"{SPEC}.color.pattern", "\\C", f"{V1}.properties[spec].properties[color].pattern", INVALID),
    (f"{SPEC}.color.pattern", "[", f"{V1}.properties[spec].properties[color].pattern", INVALID),
    (f"{SPEC}.size.anyOf", [{"type": "integer"}], f"{SIZE}.anyOf[0].type", FORBIDDEN),
    (f"{SPEC}.items.items", [], f"{ITEMS}.items", FORBIDDEN),
    (f"{SPEC}.items.x-kubernetes-list-type", "bag", f"{ITEMS}.x-kubernetes-list-type", UNSUPPORTED),
    (
        f"{SPEC}.items.x-kubernetes-list-map-keys",
        ["x"],
        f"{ITEMS}.x-kubernetes-list-map-keys",
        INVALID,
    ),
    (f"{SPEC}.items.items.required", [], f"{ITEMS}.items.properties[name].default", REQUIRED),
    (f"{SCHEMA}.type", "array", f"{V1}.type", INVALID),
    (f"{SCHEMA}.nullable", True, f"{V1}.nullable", FORBIDDEN),
    (f"{SCHEMA}.additionalProperties", {"type": "string"}, f"{V1}.additionalProperties", FORBIDDEN),
]


@pytest.mark.parametrize(("path", "value", "field", "reason"), REFUSED)
def test_a_definition_is_refused_with_its_cause(
    calls: Calls, path: str, value: Any, field: str, reason: str
):
    assert (field, reason) in causes(calls.post(CRDS, changed(path, value)))


def test_unknown_fields_are_dropped_or_refused_strictly(calls: Calls):
    bent = changed(f"{SPEC}.size.bogus", 1)
    strict = calls.post(CRDS, bent, fieldValidation="Strict")
    place = "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.size.bogus"
    assert strict.status == 400
    assert f'strict decoding error: unknown field "{place}"' in strict.message
    warned = calls.post(CRDS, bent)
    assert warned.status == 201
    assert place in warned.headers["Warning"]
    properties = warned.document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert "bogus" not in properties["spec"]["properties"]["size"]


def test_a_protected_group_needs_an_approval(calls: Calls):
    definition = changed("spec.group", "things.k8s.io")
    definition["metadata"]["name"] = "widgets.things.k8s.io"
    field = "metadata.annotations[api-approved.kubernetes.io]"
    assert (field, REQUIRED) in causes(calls.post(CRDS, definition))
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}
    definition["metadata"]["annotations"] = approved
    assert calls.post(CRDS, definition).status == 201


def test_nobody_has_accepted_the_names_of_a_definition_when_it_is_created(calls: Calls):
    status = calls.post(CRDS, widget_definition()).document["status"]
    assert status["acceptedNames"] == {"plural": "", "kind": ""}
    assert status["conditions"] is None
    assert status["storedVersions"] == ["v1"]


def test_a_version_that_was_stored_cannot_go(calls: Calls):
    calls.post(CRDS, widget_definition("v2"))
    definition = calls.get(ONE).document
    first, two = definition["spec"]["versions"]
    first["storage"], two["storage"] = False, True
    moved = calls.put(ONE, definition).document
    assert moved["status"]["storedVersions"] == ["v1", "v2"]
    moved["spec"]["versions"] = [two]
    refused = calls.put(ONE, moved)
    assert ("status.storedVersions[0]", INVALID) in causes(refused)
    assert "v1 was previously a storage version" in refused.message
    calls.merge(f"{ONE}/status", {"status": {"storedVersions": ["v2"]}})
    assert calls.merge(ONE, {"spec": {"versions": [two]}}).status == 200
    assert calls.get(WIDGETS).status == 404


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"scope": "Cluster"}, "spec.scope"),
        ({"names": {"kind": "Gadget"}}, "spec.names.kind"),
        ({"names": {"plural": "gadgets"}}, "spec.names.plural"),
        ({"group": "other.example.com"}, "spec.group"),
    ],
)
def test_what_a_definition_is_about_never_changes(calls: Calls, patch: dict[str, Any], field: str):
    calls.post(CRDS, widget_definition())
    reply = calls.merge(ONE, {"spec": patch})
    assert (field, INVALID) in causes(reply)
    assert f"{field}: Invalid value" in reply.message
    assert "field is immutable" in reply.message


def named(plural: str, **names: Any) -> dict[str, Any]:
    definition = widget_definition()
    definition["metadata"]["name"] = f"{plural}.example.com"
    definition["spec"]["names"] = {"plural": plural, **names}
    return definition


def conditions(calls: Calls, name: str) -> dict[str, tuple[str, str]]:
    entries = calls.get(f"{CRDS}/{name}.example.com").document["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in entries}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"kind": "Widget"}, "ListKindConflict"),
        ({"kind": "Widget", "listKind": "OtherList"}, "KindConflict"),
        ({"kind": "Gadget", "shortNames": ["wd"]}, "ShortNamesConflict"),
        ({"kind": "Gadget", "singular": "widget"}, "SingularConflict"),
    ],
)
def test_a_definition_with_the_names_of_another_waits_for_them(
    calls: Calls, names: dict[str, Any], reason: str
):
    calls.post(CRDS, widget_definition())
    calls.post(CRDS, named("gadgets", **names))
    assert conditions(calls, "gadgets") == {
        "NamesAccepted": ("False", reason),
        "Established": ("False", "NotAccepted"),
    }
    gadgets = WIDGETS.replace("widgets", "gadgets")
    assert calls.get(gadgets).status == 404
    calls.delete(ONE)
    assert conditions(calls, "gadgets")["Established"][0] == "True"
    assert calls.get(gadgets).status == 200


def test_new_short_names_are_accepted_later_too(calls: Calls):
    calls.post(CRDS, widget_definition())
    calls.merge(ONE, {"spec": {"names": {"shortNames": ["wg"]}}})
    assert calls.get(ONE).document["status"]["acceptedNames"]["shortNames"] == ["wg"]
    (entry, *_) = calls.get("/apis/example.com/v1").document["resources"]
    assert entry["shortNames"] == ["wg"]


VALUES = {
    "type": "object",
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "ip": {"type": "string", "format": "ipv4", "nullable": True},
        "small": {"type": "integer", "format": "int32"},
        "code": {"type": "string", "pattern": "^[[:upper:]]{2}\\z", "maxLength": 3},
        "letters": {"type": "string", "pattern": "\\p{Greek}"},
        "slow": {"type": "string", "pattern": "^(a+)+$"},  # for engines that go back
        "few": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": True},
        "either": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        "odd": {"type": "integer", "not": {"multipleOf": 2}},
    },
}


@pytest.mark.parametrize(
    ("field", "good", "bad", "cause"),
    [
        ("at", "2026-01-01T00:00:00Z", "yesterday", ("spec.v.at", "FieldValueTypeInvalid")),
        ("ip", None, "1.2.3.4.5", ("spec.v.ip", "FieldValueTypeInvalid")),
        ("small", 2**31 - 1, 2**31, ("spec.v.small", "FieldValueTypeInvalid")),
        ("code", "AB", "ab", ("spec.v.code", INVALID)),
        ("code", "AB", "ABCD", ("spec.v.code", "FieldValueTooLong")),
        ("letters", "αβγ", "abc", ("spec.v.letters", INVALID)),
        ("letters", "αβγ", 5, ("spec.v.letters", "FieldValueTypeInvalid")),
        ("slow", "a" * 100_000, "a" * 100_000 + "b", ("spec.v.slow", INVALID)),
        ("few", ["a"], ["a", "b"], ("spec.v.few", "FieldValueTooMany")),
        ("port", "http", [], ("spec.v.port", "FieldValueTypeInvalid")),
        ("either", {"a": "x"}, {"a": "x", "b": "y"}, ("<nil>", INVALID)),
        ("odd", 3, 4, ("<nil>", INVALID)),
    ],
)
def test_values_are_checked_as_the_schema_says(
    calls: Calls, field: str, good: Any, bad: Any, cause: tuple[str, str]
):
    assert calls.post(CRDS, changed(f"{SPEC}.v", VALUES)).status == 201
    assert calls.post(WIDGETS, widget("good", v={field: good})).status == 201
    assert cause in causes(calls.post(WIDGETS, widget("bad", v={field: bad})))


def test_sets_and_keyed_lists_hold_nothing_twice(calls: Calls):
    calls.post(CRDS, widget_definition())
    items = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    reply = calls.post(WIDGETS, widget("w", items=items, tags=["t", "t"]))
    assert causes(reply) == [
        ("spec.items[1]", "FieldValueDuplicate"),
        ("spec.tags[1]", "FieldValueDuplicate"),
    ]
    assert 'spec.items[1]: Duplicate value: {"name":"a"}' in reply.message


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?<=x)", "invalid or unsupported Perl syntax: `(?<=`"),
        ("(x", "missing closing ): `(x`"),
        ("*x", "missing argument to repetition operator: `*`"),
        ("x**", "invalid nested repetition operator: `**`"),
        ("x{2,1}", "invalid repeat count: `{2,1}`"),
        (r"(x)\1", r"invalid escape sequence: `\1`"),
        ("x\\", "trailing backslash at end of expression: ``"),
    ],
)
def test_a_refused_pattern_is_reported_in_the_words_of_go(calls: Calls, pattern: str, why: str):
    reply = calls.post(CRDS, changed(f"{SPEC}.color.pattern", pattern))
    assert (reply.status, f"error parsing regexp: {why}" in reply.message) == (422, True)
