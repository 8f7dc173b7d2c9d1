"""Objects are cut, never rebuilt: rules S1, W6, W16."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.kube.list_watch.listing import read_map
from fleetbus.kube.list_watch.reflect import WatchEvent, WatchType
from fleetbus_proto.events import Incarnation, Rank
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from fleetbus_watcher.errors import Unpublishable
from fleetbus_watcher.transform.transform import transform_of
from fleetbus_watcher.transform.translate import Origin, from_list, from_watch
from support.rows import each_row

ORIGIN = Origin(
    cluster="eu1",
    incarnation=Incarnation(7, "uid"),
    resource=parse_resource("v1/pods"),
    kind="Pod",
    scope="",
    is_selective=False,
    transform=transform_of((), "core/pods"),
)
RANK = Rank("100", 5)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
METADATA = (
    b'{"name":"a","namespace":"n","uid":"u","resourceVersion":"12","generation":1.50,'
    b'"annotations":{"x":"\\u00e9<&","' + LAST_APPLIED.encode() + b'":"{\\"secret\\":1}"},'
    b'"managedFields":[{"manager":"kubectl"}]}'
)
BODY = b'"metadata":' + METADATA + b',"spec":{"b": 1.0,"a" :[ ]}}'
WATCHED = b'{"kind":"Pod","apiVersion":"v1",' + BODY
LISTED = b"{" + BODY


def change(obj: bytes, kind: WatchType = WatchType.MODIFIED) -> WatchEvent:
    fields = read_map(obj)
    return WatchEvent(kind, fields, read_map(fields["metadata"]), "12")


def test_every_byte_that_stays_is_as_the_server_sent_it():
    event = from_watch(change(WATCHED), ORIGIN, RANK)
    assert event.object == (
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u",'
        b'"resourceVersion":"12","generation":1.50,"annotations":{"x":"\\u00e9<&"}},'
        b'"spec":{"b": 1.0,"a" :[ ]}}'
    )
    assert (event.namespace, event.name, event.uid) == ("n", "a", "u")
    assert (event.resource_version, event.verb) == ("12", Verb.MODIFIED)
    assert (event.degraded, event.epoch) == ("", RANK)


def test_a_listed_item_has_the_bytes_of_the_watched_object():
    watched = from_watch(change(WATCHED), ORIGIN, RANK)
    listed = from_list(msgspec.Raw(LISTED), ORIGIN, RANK)
    assert listed.object == watched.object
    assert listed.verb is Verb.LISTED


def test_s1_the_last_applied_annotation_goes_and_leaves_no_empty_map():
    obj = {"metadata": {"name": "a", "resourceVersion": "1", "annotations": {LAST_APPLIED: "x"}}}
    item = msgspec.Raw(json.dumps({"kind": "Pod", "apiVersion": "v1", **obj}).encode())
    event = from_list(item, ORIGIN, RANK)
    assert event.object is not None
    assert json.loads(event.object)["metadata"] == {"name": "a", "resourceVersion": "1"}


def test_s1_an_escaped_spelling_of_the_annotation_goes_too():
    spelled = LAST_APPLIED.replace(".", "\\u002e").encode()
    item = msgspec.Raw(LISTED.replace(LAST_APPLIED.encode(), spelled))
    event = from_list(item, ORIGIN, RANK)
    assert event.object is not None
    assert b"secret" not in event.object


TEMPLATES = dataclasses.replace(
    ORIGIN,
    resource=parse_resource("fleetbus.dev/v1alpha1/multiclusterresources"),
    kind="MultiClusterResource",
    transform=transform_of((), "fleetbus.dev/multiclusterresources"),
)
CANARY = "Y2FuYXJ5"
SECRET = {"apiVersion": "v1", "kind": "Secret", "data": {"p": CANARY}}
VARIABLE = SECRET | {"kind": "${vars.kind}"}
PLAIN = SECRET | {"kind": "ConfigMap"}


def of_templates(spec: object) -> msgspec.Raw:
    obj = {"kind": "x", "apiVersion": "y", "metadata": {"name": "a", "resourceVersion": "1"}}
    return msgspec.Raw(json.dumps(obj | {"spec": spec, "status": {"ok": True}}).encode())


def patch(path: str, value: object) -> object:
    action = [{"op": "replace", "path": path, "value": value}]
    return {"clusters": [{"name": "t1", "action": action}]}


@each_row(
    "spec",
    [
        {"template": SECRET},
        {"templates": [{"kind": "Pod"}, SECRET]},
        {"template": SECRET | {"data": {"p": "${vars.p}"}}, "vars": {"p": CANARY}},
        {"template": SECRET | {"data": {}}, "customize": patch("/data/p", CANARY)},
        {"template": {"kind": "List", "items": [SECRET]}},
        {"template": {"kind": "Pod", "metadata": {"annotations": {"kept": json.dumps(SECRET)}}}},
        {"template": {"kind": "ConfigMap", "data": {"x.yaml": f"kind: Secret\ndata: {CANARY}"}}},
        {"template": {"kind": "MultiClusterResource", "spec": {"template": SECRET}}},
        {"template": VARIABLE, "vars": {"kind": "Secret"}},
        {"template": VARIABLE},
        {"template": PLAIN, "customize": patch("/kind", "Sec${vars.ret}")},
        {"template": PLAIN, "customize": patch("", ["x"])},
        {"template": PLAIN, "customize": patch("/items/0", ["kind=Sec${vars.ret}"])},
        {"template": {"${vars.k}": "Sec${vars.ret}", "data": CANARY}, "vars": {"k": "kind"}},
        {"template": PLAIN, "customize": {"clusters": [{"merge": {"kind": "Secret"}}]}},
    ],
)
def test_s1_no_value_of_a_secret_in_a_template_is_published(spec: dict[str, object]):
    item = of_templates(spec | {"placement": {"clusters": [{"name": "t1"}]}})
    fields = read_map(item)
    watched = WatchEvent(WatchType.DELETED, fields, read_map(fields["metadata"]), "1")
    for event in (
        from_list(item, TEMPLATES, RANK),
        from_watch(watched, TEMPLATES, RANK),
    ):
        assert event.object is not None
        assert CANARY.encode() not in event.object
        body = json.loads(event.object)
        assert body["spec"] == {"placement": {"clusters": [{"name": "t1"}]}}
        assert body["status"] == {"ok": True}


def test_s1_an_escaped_spelling_of_the_kind_does_not_hide_it():
    item = bytes(of_templates({"template": SECRET})).replace(b'"Secret"', b'"Secr\\u0065t"')
    event = from_list(msgspec.Raw(item), TEMPLATES, RANK)
    assert event.object is not None
    assert CANARY.encode() not in event.object


@each_row("spec", [None, {}, {"template": PLAIN, "customize": patch("/a/b", 1)}])
def test_templates_that_are_no_secrets_stay_as_they_are(spec: object):
    item = of_templates(spec)
    event = from_list(item, TEMPLATES, RANK)
    assert event.object is not None
    assert json.loads(event.object) == json.loads(bytes(item))


def test_s1_a_spec_that_cannot_be_looked_through_goes_without_its_body():
    deep: list[object] = []
    for spec in ("text", {"template": deep}):
        item = bytes(of_templates(spec)).replace(b"[]", b"[" * 5000 + b"]" * 5000)
        event = from_list(msgspec.Raw(item), TEMPLATES, RANK)
        assert (event.object, event.degraded) == (None, "unreadable")


def test_w6_a_deletion_seen_through_a_selector_is_marked():
    selective = dataclasses.replace(ORIGIN, is_selective=True)
    assert from_watch(change(WATCHED, WatchType.DELETED), selective, RANK).left_selection
    assert not from_watch(change(WATCHED, WatchType.MODIFIED), selective, RANK).left_selection
    assert not from_watch(change(WATCHED, WatchType.DELETED), ORIGIN, RANK).left_selection


@each_row(
    "item",
    [
        LISTED.replace(b'{"b": 1.0', b'{"b":"\xff\xfe"'),
        LISTED.replace(b'"spec":{', b'"spec":{"deep":' + b"[" * 5000 + b"]" * 5000 + b","),
        LISTED.replace(b'"annotations":{"x":"\\u00e9<&",', b'"annotations":[{"x":1}],"y":{'),
    ],
)
def test_w16_an_object_that_cannot_be_transformed_goes_without_its_body(item: bytes):
    event = from_list(msgspec.Raw(item), ORIGIN, RANK)
    assert event.object is None
    assert event.degraded == "unreadable"
    assert (event.name, event.namespace, event.resource_version) == ("a", "n", "12")


@each_row(
    "item",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"metadata":null}',
        b'{"metadata":{"name":5,"resourceVersion":"1"}}',
        b'{"metadata":{"resourceVersion":"1"}}',
        b'{"metadata":{"name":"a"}}',
        b'{"metadata":{"name":"\xff","resourceVersion":"1"}}',
        b'{"metadata":{"name":"\\ud800","resourceVersion":"1"}}',
    ],
)
def test_w16_an_object_without_a_readable_key_is_refused(item: bytes):
    with pytest.raises(Unpublishable):
        from_list(msgspec.Raw(item), ORIGIN, RANK)


@given(st.binary(max_size=60), st.integers(0, len(LISTED)))
def test_w16_no_damage_raises_anything_but_unpublishable(damage: bytes, at: int):
    item = LISTED[:at] + damage + LISTED[at + len(damage) :]
    try:
        event = from_list(msgspec.Raw(item), ORIGIN, RANK)
    except Unpublishable:
        return
    assert event.object is None or event.object.decode()
