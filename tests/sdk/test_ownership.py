"""The owner mark: what is written, what is read, and that nothing half-readable counts (D4, D5)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import (
    ADMIRALTY_OWNER_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_UID_LABEL,
    Owner,
    field_manager,
    is_owned_by,
    owner_of,
    parse_owner,
    set_owner,
)
from support.rows import each_row

_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
OWNERS = st.builds(
    Owner,
    api_version=_TEXT,
    kind=_TEXT,
    namespace=_TEXT | st.just(""),
    name=_TEXT,
    uid=st.uuids().map(str),
    cluster_name=_TEXT,
    controller=st.booleans(),
    block_owner_deletion=st.booleans(),
    hub=_TEXT | st.just(""),
)
PLAIN: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "namespace": "prod",
    "name": "web",
    "uid": "u-1",
    "clusterName": "eu1",
    "controller": True,
    "blockOwnerDeletion": True,
    "hub": "h",
}


def _marked(text: str, annotation: str = OWNER_ANNOTATION) -> dict[str, Any]:
    return {"metadata": {"labels": {OWNER_UID_LABEL: "u-1"}, "annotations": {annotation: text}}}


@given(OWNERS)
@settings(deadline=None)
def test_every_owner_is_read_back_from_the_object(owner: Owner):
    child = set_owner({}, owner)
    assert owner_of(child) == owner
    assert is_owned_by(child, owner.uid)
    assert child["metadata"]["labels"] == {OWNER_UID_LABEL: owner.uid}


def test_the_annotation_has_the_eight_fields_of_the_seed_and_the_hub():
    assert json.loads(parse_owner(json.dumps(PLAIN)).to_json()) == PLAIN


def test_the_mark_keeps_the_labels_and_annotations_that_are_there():
    child: dict[str, Any] = {"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}}
    set_owner(child, parse_owner(json.dumps(PLAIN)))
    assert child["metadata"]["labels"] == {"app": "web", OWNER_UID_LABEL: "u-1"}
    assert set(child["metadata"]["annotations"]) == {"a", OWNER_ANNOTATION}


def test_the_mark_can_be_put_where_labels_and_annotations_are_null():
    child: dict[str, Any] = {"metadata": {"labels": None, "annotations": None}}
    assert is_owned_by(set_owner(child, parse_owner(json.dumps(PLAIN))), "u-1")


def test_an_owner_is_made_from_an_object_and_its_cluster():
    obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u-9"}}
    owner = Owner.of(obj, "eu1", hub="h")
    assert owner == Owner("v1", "Node", "", "n", "u-9", "eu1", hub="h")


def test_the_mark_of_multicluster_controller_is_read():
    mark = {k: v for k, v in PLAIN.items() if k != "hub"}
    child = _marked(json.dumps(mark), ADMIRALTY_OWNER_ANNOTATION)
    assert owner_of(child) == Owner("apps/v1", "Deployment", "prod", "web", "u-1", "eu1")
    assert is_owned_by(child, "u-1")


def test_our_own_mark_wins_over_that_of_multicluster_controller():
    child = _marked(json.dumps(PLAIN))
    other = json.dumps(PLAIN | {"uid": "u-2"})
    child["metadata"]["annotations"][ADMIRALTY_OWNER_ANNOTATION] = other
    owner = owner_of(child)
    assert owner is not None
    assert owner.uid == "u-1"


@each_row("obj", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"annotations": None}}])
def test_an_object_without_a_mark_has_no_owner(obj: dict[str, Any]):
    assert owner_of(obj) is None
    assert not is_owned_by(obj, "u-1")


@each_row("field", ["apiVersion", "kind", "name", "uid", "clusterName"])
@each_row("value", [None, "", 7, ["u-1"], {"a": 1}])
def test_d4_a_field_that_is_missing_or_no_text_makes_the_mark_malformed(field: str, value: object):
    with pytest.raises(MalformedOwner, match=field):
        parse_owner(json.dumps(PLAIN | {field: value}))


@pytest.mark.parametrize("field", ["controller", "blockOwnerDeletion"])
def test_d4_a_flag_that_is_neither_true_nor_false_makes_the_mark_malformed(field: str):
    with pytest.raises(MalformedOwner, match=field):
        parse_owner(json.dumps(PLAIN | {field: "false"}))
    without = {k: v for k, v in PLAIN.items() if k != field}
    assert parse_owner(json.dumps(without)) == parse_owner(json.dumps(PLAIN))


@each_row("text", ["", "{", "null", "[]", '"text"', "7", "{'a': 1}", "[" * 5000])
def test_d4_an_unreadable_annotation_is_malformed_and_owns_nothing(text: str):
    with pytest.raises(MalformedOwner):
        parse_owner(text)
    assert not is_owned_by(_marked(text), "u-1")


@given(st.text(max_size=60))
@settings(deadline=None)
def test_d4_no_annotation_makes_the_reader_fail_otherwise(text: str):
    try:
        owner_of(_marked(text))
    except MalformedOwner:
        return


def test_d5_label_and_annotation_must_agree_before_an_object_counts_as_owned():
    only_label = {"metadata": {"labels": {OWNER_UID_LABEL: "u-1"}}}
    only_annotation = {"metadata": {"annotations": {OWNER_ANNOTATION: json.dumps(PLAIN)}}}
    copied_label = _marked(json.dumps(PLAIN | {"uid": "u-2"}))
    for obj in (only_label, only_annotation, copied_label):
        assert not is_owned_by(obj, "u-1")
    assert is_owned_by(_marked(json.dumps(PLAIN)), "u-1")


def test_d5_an_empty_uid_owns_nothing():
    obj = {
        "metadata": {
            "labels": {OWNER_UID_LABEL: ""},
            "annotations": {OWNER_ANNOTATION: json.dumps(PLAIN | {"uid": ""})},
        }
    }
    assert not is_owned_by(obj, "")


def test_each_hub_has_a_field_manager_of_its_own_that_kubernetes_accepts():
    names = {field_manager(f"hub-{number}") for number in range(1000)}
    assert len(names) == 1000
    assert all(re.fullmatch(r"fleetbus-[0-9a-f]{10}", name) for name in names)
    assert field_manager("hub") == field_manager("hub")
