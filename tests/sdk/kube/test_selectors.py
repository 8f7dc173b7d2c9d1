"""Label and field selectors read what kubectl writes, and say clearly what they cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.kube.selectors import FieldSelector, InvalidSelector, LabelSelector
from support.rows import each_row

LABELS = {"app": "web", "tier": "front", "empty": "", "example.com/team": "a.b_c-d", "cores": "010"}


@each_row(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier == front ", True),
        ("app=web,tier=back", False),
        ("app!=web", False),
        ("app!=db", True),
        ("absent!=web", True),
        ("absent=web", False),
        ("app", True),
        ("absent", False),
        ("!absent", True),
        ("! absent", True),
        ("!app", False),
        ("app in (web,db)", True),
        ("app in ( web )", True),
        ("app in (db)", False),
        ("absent in (web)", False),
        ("app notin (db,cache)", True),
        ("app notin (web)", False),
        ("absent notin (web)", True),
        ("empty=", True),
        ("empty", True),
        ("empty in (,x)", True),
        ("app=", False),
        ("empty!=", False),
        ("example.com/team=a.b_c-d", True),
        ("in in (x)", False),
        ("notin", False),
        ("app in (web),!absent,tier", True),
        ("cores>9", True),
        ("cores > 10", False),
        ("cores<11,cores>9", True),
        ("cores<10", False),
        ("app>1", False),
        ("empty<1", False),
        ("absent<1", False),
    ],
)
def test_label_selectors_match_as_kubectl_does(text: str, matches: bool):
    assert LabelSelector.parse(text).matches(LABELS) is matches


@each_row("text", [
        "=web", "app=web=x", "app web", "app in web", "app in (web", "app in", ",", "app,", "!",
        "!!a", "app=web,,b", "(app)", "app=we b", "-app", "app=-web", "app=" + "x" * 64,
        "x" * 64, "/app",
        "Ex.com/app", "a/b/c", "app=a/b", "app)", "app>", "app>x", "app>-1", "app>1.5",
        "app>1_0", "app><1", ">1", "app>=1", "a=é",
        "app>9223372036854775808",
    ])  # fmt: skip
def test_an_unreadable_label_selector_is_refused_with_its_text(text: str):
    with pytest.raises(InvalidSelector) as caught:
        LabelSelector.parse(text)
    assert repr(text) in str(caught.value)


@given(st.text(alphabet="ab1/.-_=!,()<> inotE", max_size=24))
def test_parsing_never_fails_otherwise_and_the_printed_form_means_the_same(text: str):
    try:
        selector = LabelSelector.parse(text)
    except InvalidSelector:
        return
    assert LabelSelector.parse(str(selector)) == selector


def test_index_terms_and_the_rest_cover_the_selector():
    selector = LabelSelector.parse("app=web,tier in (a),env in (x,y),!old")
    assert selector.terms == ("app=web", "tier=a")
    assert str(selector.rest) == "env in (x,y),!old"
    assert not LabelSelector.parse("app=web").rest


def test_the_object_form_means_the_same():
    spec: dict[str, Any] = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["front", "back"]},
            {"key": "app", "operator": "NotIn", "values": ["db"]},
            {"key": "empty", "operator": "Exists"},
            {"key": "absent", "operator": "DoesNotExist", "values": []},
        ],
    }
    selector = LabelSelector.from_spec(spec)
    assert selector.matches(LABELS)
    text = "app=web,tier in (back,front),app!=db,empty,!absent"
    assert selector == LabelSelector.parse(text)
    assert LabelSelector.from_spec({}).matches({})
    assert LabelSelector.from_spec({"matchLabels": None}) == LabelSelector()


WRONG_SPECS: list[dict[str, Any]] = [
    {"matchLabel": {}},
    {"matchLabels": {"a b": "c"}},
    {"matchExpressions": ["a"]},
    {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]},
    {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
    {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
    {"matchExpressions": [{"operator": "Exists"}]},
]


@each_row("spec", WRONG_SPECS)
def test_a_wrong_object_form_is_refused(spec: dict[str, Any]):
    with pytest.raises(InvalidSelector):
        LabelSelector.from_spec(spec)


TREE: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "prod"},
    "status": {"phase": "Running", "ready": True, "restarts": 3, "none": None},
    "spec": {"odd": "a,b=c\\d"},
}


@each_row(
    ("text", "matches"),
    [
        ("", True),
        ("status.phase=Running", True),
        ("status.phase==Running", True),
        (".status.phase=Running", True),
        ("status.phase!=Running", False),
        ("status.phase!=Failed,metadata.name=web", True),
        ("status.phase=Running,metadata.name=db", False),
        ("status.ready=true,,status.restarts=3,", True),
        ("status.none=", True),
        ("status.absent=", True),
        ("status.absent!=x", True),
        ("status.phase.deeper=", True),
        ("status.absent=x", False),
        (r"spec.odd=a\,b\=c\\d", True),
        (r"spec.odd!=a\,b\=c\\d,metadata.name=web", False),
        ("status.phase in (Failed, Running)", True),
        ("status.phase in (Failed,Pending),metadata.name=web", False),
        ("status.phase notin (Failed,Pending),metadata.name=web", True),
        ("status.absent in (x,)", False),
        ("status.absent notin (x)", True),
    ],
)
def test_field_selectors_match_fields_of_the_tree(text: str, matches: bool):
    assert FieldSelector.parse(text).matches(TREE) is matches


@each_row(
    "text",
    ["a", "a,b=c", "=b", "a=b=c", "a=b\\", "a b=c", "!a=b", "a..b=c", "a[=b", "[0]=b", "a in b"],
)
def test_an_unreadable_field_selector_is_refused(text: str):
    with pytest.raises(InvalidSelector, match="field selector"):
        FieldSelector.parse(text)


def test_a_requirement_prints_as_it_is_written():
    text = "a=b,c!=d,e in (f,g),h notin (i,j),k,!l"
    assert str(LabelSelector.parse(text)) == text
