"""Selectors: what they select, and how a bad one is refused."""

from typing import Any

import pytest

from emulator.support.kube_calls import CONFIGMAPS, Calls, config_map
from fleetbus_emulator.apiserver import ApiError, Cluster
from fleetbus_emulator.apiserver.read.selectors import parse_fields, parse_labels
from fleetbus_emulator.apiserver.types.builtin import PODS
from fleetbus_emulator.apiserver.types.served import Served


def selects(selector: str, **labels: str) -> bool:
    matches = parse_labels(selector)
    return matches is None or matches({"metadata": {"labels": labels}})


SELECTING = (
    *("", " ", "a", "a=1", "a==1", "a = 1", "a in (1,2)", "a in(1)", "a in (,1)", "a>0", "a<2"),
    *("b!=1", "!b", "! b", "b notin (1)", "a=1,!b", "empty=", "empty in ()"),
    *("in=x", "in in (x)", "notin"),
)


@pytest.mark.parametrize("selector", SELECTING)
def test_a_selector_selects(selector: str):
    assert selects(selector, a="1", empty="", notin="in", **{"in": "x"})


@pytest.mark.parametrize(
    "selector",
    ["b", "!a", "a!=1", "a=2", "a=", "a notin (1)", "a>1", "a<1", "b>0", "a,b", "a in ()"],
)
def test_a_selector_does_not_select(selector: str):
    assert not selects(selector, a="1")


REQUIREMENT = "unable to parse requirement: "


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("a b", f"{REQUIREMENT}found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in 1", f"{REQUIREMENT}found '1' expected: '('"),
        ("a in (1", f"{REQUIREMENT}found '', expected: ',' or ')'"),
        ("a in (1 2)", f"{REQUIREMENT}found '2', expected: ',' or ')'"),
        ("a in (=)", f"{REQUIREMENT}found '=', expected: ',', ')' or identifier"),
        ("a==!", f"{REQUIREMENT}found '!', expected: identifier"),
        ("!", f"{REQUIREMENT}found '', expected: identifier"),
        ("a=1,", "found '', expected: identifier after ','"),
        ("a=1 b", "found 'b', expected: ',' or 'end of string'"),
        ("!a=1", "found '=', expected: ',' or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
    ],
)
def test_a_selector_that_cannot_be_parsed_is_reported_where(selector: str, why: str):
    with pytest.raises(ApiError) as caught:
        parse_labels(selector)
    assert (caught.value.code, caught.value.message) == (400, why)


@pytest.mark.parametrize(
    ("selector", "begins"),
    [
        ("a=-x", 'values[0][a]: Invalid value: "-x": a valid label must be an empty string or'),
        ("a in (ok,-x)", 'values[0][a]: Invalid value: "-x": a valid label must be'),
        ("a/b/c", '<nil>: Invalid value: "a/b/c": a qualified name must consist of'),
        ("/a=1", '<nil>: Invalid value: "/a": prefix part must be non-empty'),
        ("a>b", "values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an"),
    ],
)
def test_labels_in_a_selector_must_be_labels(selector: str, begins: str):
    with pytest.raises(ApiError) as caught:
        parse_labels(selector)
    assert caught.value.message.startswith(REQUIREMENT + begins)


SERVED_PODS = Served(PODS, PODS.versions["v1"])


def fields(selector: str, obj: dict[str, Any]) -> bool:
    matches = parse_fields(selector, SERVED_PODS)
    return matches is None or matches(obj)


def test_field_selectors_compare_texts():
    pod = {"metadata": {"name": "a,b=c"}, "spec": {"hostNetwork": True}, "status": {}}
    assert fields(r"metadata.name=a\,b\=c", pod)
    assert fields("spec.hostNetwork=true,,status.phase=", pod)
    assert fields("status.phase!=Running,metadata.name!=x", pod)
    assert not fields("metadata.name==a", pod)


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("spec.size=1", "field label not supported: spec.size"),
        (r"metadata.name=\x", r"invalid field selector: invalid escape sequence: \x"),
        ("metadata.name=a=b", "invalid field selector: unescaped character in value: ="),
    ],
)
def test_a_bad_field_selector_is_reported_why(selector: str, why: str):
    with pytest.raises(ApiError) as caught:
        parse_fields(selector, SERVED_PODS)
    assert (caught.value.code, caught.value.message) == (400, why)


def test_bad_names_and_keys_get_a_cause_each():
    calls = Calls(Cluster("alpha", seed=1))
    meta = {"labels": {"a/b/c": "x y"}, "annotations": {"/A": ""}, "finalizers": ["Bad/x"]}
    reply = calls.post(CONFIGMAPS, config_map("BAD_", meta))
    assert reply.status == 422
    assert [cause["field"] for cause in reply.document["details"]["causes"]] == [
        "metadata.name",
        "metadata.labels",
        "metadata.labels",
        "metadata.annotations",
        "metadata.finalizers",
    ]


def test_annotations_may_not_be_larger_than_256_kib_together():
    calls = Calls(Cluster("alpha", seed=1))
    fits = config_map("a", {"annotations": {"a": "x" * 131_071, "b": "x" * 131_071}})
    assert calls.post(CONFIGMAPS, fits).status == 201
    fits["metadata"]["annotations"]["b"] += "x"
    fits["metadata"]["name"] = "b"
    reply = calls.post(CONFIGMAPS, fits)
    assert "metadata.annotations: Too long: may not be more than 262144 bytes" in reply.message


def test_a_bad_prefix_of_a_generated_name_is_refused_and_a_dash_at_its_end_is_not():
    calls = Calls(Cluster("alpha", seed=1))
    assert calls.post(CONFIGMAPS, {"metadata": {"generateName": "a-"}}).status == 201
    reply = calls.post(CONFIGMAPS, {"metadata": {"generateName": "A_"}})
    assert [cause["field"] for cause in reply.document["details"]["causes"]] == [
        "metadata.generateName",
        "metadata.name",
    ]
