"""Server-side apply: ownership, conflicts, removal."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.support.kube_calls import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    WIDGETS,
    Calls,
    deployment,
    widget,
    widget_definition,
    with_widgets,
)
from fleetbus_emulator.apiserver import Cluster

W = f"{WIDGETS}/w"


@pytest.fixture
def calls() -> Calls:
    return with_widgets()


def owners(document: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [
        (e["manager"], e["operation"], sorted(e["fieldsV1"].get("f:spec", {})))
        for e in document["metadata"].get("managedFields", [])
    ]


def test_an_apply_creates_and_owns_exactly_what_it_says(calls: Calls):
    body = widget("w", color="red", items=[{"name": "a", "value": "1"}], tags=["t"])
    reply = calls.apply(W, body, "m1")
    assert reply.status == 201
    (entry,) = reply.meta["managedFields"]
    assert entry["operation"] == "Apply"
    assert entry["fieldsV1"]["f:spec"] == {
        "f:color": {},
        "f:items": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:value": {}}},
        "f:size": {},
        "f:tags": {'v:"t"': {}},
    }
    assert reply.document["spec"]["replicas"] == 3  # defaulted, and nobody's


def times(document: dict[str, Any]) -> dict[str, str | None]:
    return {e["manager"]: e.get("time") for e in document["metadata"]["managedFields"]}


def test_the_time_of_an_entry_moves_with_the_object_not_with_the_ownership():
    moments = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(1_000))
    calls = Calls(Cluster("alpha", seed=1, clock=lambda: next(moments)))
    calls.post(CRDS, widget_definition())
    first = times(calls.apply(W, widget("w", color="red"), "m1").document)
    shared = times(calls.apply(W, widget("w", color="red"), "m2").document)
    assert shared == {"m1": first["m1"], "m2": None}  # m2 owns something, but has changed nothing
    changed = times(calls.apply(W, widget("w", color="red", replicas=2), "m2").document)
    assert changed["m1"] == first["m1"]
    assert changed["m2"] is not None
    removed = times(calls.merge(W, {"spec": {"color": None}}, fieldManager="u").document)
    assert removed == changed  # who only removes leaves no entry


def test_several_conflicts_are_listed_by_manager(calls: Calls):
    calls.apply(W, widget("w", color="red", note="a"), "m1")
    calls.apply(W, widget("w", color="red"), "m2")
    refused = calls.apply(W, widget("w", color="green", note="b"), "m3")
    assert refused.message == (
        'Apply failed with 3 conflicts: conflicts with "m1":\n- .spec.color\n- .spec.note\n'
        'conflicts with "m2":\n- .spec.color'
    )


def test_another_value_conflicts_and_force_takes_the_field(calls: Calls):
    calls.apply(W, widget("w", color="red"), "m1")
    refused = calls.apply(W, widget("w", color="green"), "m2")
    assert refused.status == 409
    assert refused.message == 'Apply failed with 1 conflict: conflict with "m1": .spec.color'
    assert refused.document["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".spec.color"}
    ]
    forced = calls.apply(W, widget("w", color="green"), "m2", force="true")
    assert forced.document["spec"]["color"] == "green"
    assert owners(forced.document) == [
        ("m1", "Apply", ["f:size"]),
        ("m2", "Apply", ["f:color", "f:size"]),
    ]


def test_a_plain_update_makes_conflicts_too(calls: Calls):
    calls.apply(W, widget("w", color="red"), "m1")
    calls.merge(W, {"spec": {"color": "green"}}, fieldManager="upd")
    refused = calls.apply(W, widget("w", color="red"), "m1")
    assert refused.message.endswith('conflict with "upd" using example.com/v1: .spec.color')
    assert calls.apply(W, widget("w", color="green"), "m1").status == 200


def test_the_same_value_is_shared_and_stays_until_the_last_owner_drops_it(calls: Calls):
    calls.apply(W, widget("w", color="red"), "m1")
    assert calls.apply(W, widget("w", color="red"), "m2").status == 200
    assert calls.apply(W, widget("w"), "m1").document["spec"]["color"] == "red"
    assert "color" not in calls.apply(W, widget("w"), "m2").document["spec"]


def test_keyed_items_and_set_members_come_and_go_by_owner(calls: Calls):
    calls.apply(W, widget("w", items=[{"name": "a", "value": "1"}], tags=["x"]), "m1")
    both = calls.apply(W, widget("w", items=[{"name": "b"}], tags=["y"]), "m2").document["spec"]
    assert [item["name"] for item in both["items"]] == ["a", "b"]
    assert both["tags"] == ["x", "y"]
    less = calls.apply(W, widget("w"), "m1").document["spec"]
    assert [item["name"] for item in less["items"]] == ["b"]
    assert less["tags"] == ["y"]
    none = calls.apply(W, widget("w"), "m2").document["spec"]
    assert "items" not in none
    assert "tags" not in none


def test_an_item_that_its_applier_drops_goes_whole_with_what_was_updated_in_it(calls: Calls):
    items = [{"name": "a", "value": "1"}, {"name": "b"}]
    calls.apply(W, widget("w", items=items), "m1")
    calls.merge(W, {"spec": {"items": [{"name": "a", "value": "2"}, {"name": "b"}]}})
    reply = calls.apply(W, widget("w", items=[{"name": "b"}]), "m1")
    assert reply.document["spec"]["items"] == [{"name": "b"}]
    assert owners(reply.document) == [("m1", "Apply", ["f:items", "f:size"])]


def test_an_item_that_two_apply_stays_when_one_drops_it(calls: Calls):
    calls.apply(W, widget("w", items=[{"name": "a", "value": "1"}]), "m1")
    calls.apply(W, widget("w", items=[{"name": "a"}]), "m2")
    reply = calls.apply(W, widget("w"), "m1")
    assert reply.document["spec"]["items"] == [{"name": "a"}]


def test_an_unkeyed_list_is_one_field(calls: Calls):
    calls.apply(W, widget("w", list=["a"]), "m1")
    refused = calls.apply(W, widget("w", list=["b"]), "m2")
    assert refused.document["details"]["causes"][0]["field"] == ".spec.list"


def test_applying_the_same_again_moves_nothing(calls: Calls):
    first = calls.apply(W, widget("w", color="red"), "m1")
    assert calls.apply(W, widget("w", color="red"), "m1").rv == first.rv


def test_labels_annotations_finalizers_and_owners_are_applied_and_dropped(calls: Calls):
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "q", "uid": "u1"}
    meta: dict[str, Any] = {
        "labels": {"a": "b"},
        "annotations": {"x": "y"},
        "finalizers": ["k.io/f"],
        "ownerReferences": [owner],
    }
    full = calls.apply(W, widget("w", meta), "m")
    assert full.meta["managedFields"][0]["fieldsV1"]["f:metadata"] == {
        "f:annotations": {"f:x": {}},
        "f:finalizers": {'v:"k.io/f"': {}},
        "f:labels": {"f:a": {}},
        "f:ownerReferences": {'k:{"uid":"u1"}': {}},
    }
    less = calls.apply(W, widget("w", {"annotations": {"x": "y"}}), "m").meta
    assert less["annotations"] == {"x": "y"}
    assert not {"labels", "finalizers", "ownerReferences"} & less.keys()


def test_status_is_applied_through_its_own_endpoint(calls: Calls):
    calls.apply(W, widget("w"), "m1")
    body = {**widget("w"), "status": {"phase": "Up"}}
    reply = calls.apply(f"{W}/status", body, "ctl")
    assert reply.document["status"] == {"phase": "Up"}
    (entry,) = [e for e in reply.meta["managedFields"] if e["manager"] == "ctl"]
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {"f:status": {"f:phase": {}}}
    missing = {**widget("none"), "status": {"phase": "Up"}}
    assert calls.apply(f"{WIDGETS}/none/status", missing, "ctl").status == 404


def test_what_an_apply_must_not_carry_is_refused(calls: Calls):
    calls.apply(W, widget("w"), "m1")
    assert calls.apply(W, widget("w"), "").status == 422
    assert calls.apply(W, {"spec": {"size": 3}}, "m1").status == 400
    assert calls.apply(W, widget("w", {"managedFields": [{"manager": "q"}]}), "m1").status == 400
    assert calls.apply(W, widget("w", {"resourceVersion": "1"}), "m1").status == 409
    assert calls.merge(W, {}, force="true").status == 422


def test_managed_fields_can_be_cleared(calls: Calls):
    calls.apply(W, widget("w"), "m1")
    reply = calls.merge(W, {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in reply.meta


def test_container_ports_are_keyed_by_port_and_protocol_which_defaults_to_tcp(calls: Calls):
    body = deployment("d")
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"containerPort": 80}]
    reply = calls.apply(f"{DEPLOYMENTS}/d", body, "m")
    spec = reply.meta["managedFields"][0]["fieldsV1"]["f:spec"]
    owned = spec["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:ports"]
    assert list(owned) == ['k:{"containerPort":80,"protocol":"TCP"}']
    assert calls.apply(f"{DEPLOYMENTS}/d", body, "m").rv == reply.rv


def test_replicas_left_to_an_autoscaler_survive_the_next_apply(calls: Calls):
    path = f"{DEPLOYMENTS}/d"
    calls.apply(path, deployment("d"), "m")
    calls.merge(f"{path}/scale", {"spec": {"replicas": 7}}, fieldManager="hpa")
    assert calls.apply(path, deployment("d"), "m").document["spec"]["replicas"] == 7
    refused = calls.apply(path, deployment("d", replicas=1), "m")
    assert refused.status == 409
    assert '"hpa" with subresource "scale"' in refused.message


def test_a_config_maps_keys_are_owned_one_by_one(calls: Calls):
    path = f"{CONFIGMAPS}/c"

    def body(**data: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}

    calls.apply(path, body(a="1"), "m1")
    calls.apply(path, body(b="2"), "m2")
    assert calls.apply(path, body(), "m1").document["data"] == {"b": "2"}


_COLORS = st.sampled_from(["red", "green"])
_NOTES = st.sampled_from(["x", "y"])
_TAGS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True)
_VALUES = st.sampled_from(["1", "2"])


@st.composite
def _fields(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {"color": draw(_COLORS), "note": draw(_NOTES), "tags": draw(_TAGS)}
    items = {name: draw(_VALUES) for name in ("a", "b") if draw(st.booleans())}
    fields["items"] = [{"name": name, "value": value} for name, value in items.items()]
    return {name: value for name, value in fields.items() if value and draw(st.booleans())}


_MANAGERS = st.sampled_from(["m1", "m2", "m3"])
_STEPS = st.lists(st.tuples(_MANAGERS, st.booleans(), _fields()), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STEPS)
def test_applies_of_three_managers_keep_the_books_true(
    steps: list[tuple[str, bool, dict[str, Any]]],
):
    calls = with_widgets()
    for manager, force, fields in steps:
        before = calls.get(W)
        reply = calls.apply(
            W, widget("w", **fields), manager, **({"force": "true"} if force else {})
        )
        if reply.status == 409:
            assert not force
            assert calls.get(W).document == before.document
            continue
        spec = reply.document["spec"]
        for name in ("color", "note"):
            owned = any(f"f:{name}" in fields for _, _, fields in owners(reply.document))
            assert owned == (name in spec)
        assert set(fields.get("tags", [])) <= set(spec.get("tags", []))
        again = calls.apply(W, widget("w", **fields), manager)
        assert again.rv == reply.rv
