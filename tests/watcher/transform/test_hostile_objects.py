"""Hostile objects one by one, and sound ones after random damage: rules W16, S1, P2, W8."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import orjson
import pytest

from fleetbus.errors import KubeError
from fleetbus.kube.list_watch.reflect import WatchEvent, WatchType, _read_line  # pyright: ignore[reportPrivateUsage]
from fleetbus.kube.list_watch.split import ItemSplitter, LineSplitter, cut_object
from fleetbus_proto import codec, headers
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import event_subject, parse_event_subject
from fleetbus_proto.versions import is_comparable
from fleetbus_watcher.errors import Unpublishable
from fleetbus_watcher.transform.rules import Rule
from fleetbus_watcher.transform.transform import transform_of
from fleetbus_watcher.transform.translate import Origin, from_list, from_watch
from support.hostile.objects import (
    BOOKMARK,
    CANARY,
    LAST_APPLIED,
    NO_EVENTS,
    Fate,
    Hostile,
    corpus,
    damaged,
    document,
    watch_line,
)
from support.rows import each_row
from support.wire.samples import MESSAGE_KEY

KEY = "core/configmaps"
HIDING = Rule(resource=KEY, redact=("data[secret*]", "metadata.labels.x"), drop=("data.gone[*].a",))
RANK = Rank("100", 5)
SEEDS = (1, 2, 3)


def origin(*rules: Rule) -> Origin:
    return Origin(
        cluster="eu1",
        incarnation=Incarnation(7, "uid"),
        resource=parse_resource("v1/configmaps"),
        kind="ConfigMap",
        scope="",
        is_selective=False,
        transform=transform_of(rules, KEY),
    )


ORIGINS = (origin(), origin(HIDING))


def fate_of(event: Event) -> Fate:
    """Return what becomes of an event, checked as a publisher and a reader would."""
    try:
        subject = event_subject(
            "eu1", "core", "configmaps", event.namespace, event.name, event.verb
        )
        body = codec.encode(event)
    except InvalidName:
        return Fate.LOST
    assert len(headers.build(event, MESSAGE_KEY)["Nats-Msg-Id"]) < 20_000
    if len(event.name) > 4096:
        return Fate.LOST
    assert codec.decode(body) == event
    assert parse_event_subject(subject).name == event.name
    assert event.name
    assert event.uid.isprintable()
    assert is_comparable(event.resource_version)
    assert (event.object is None) == (event.degraded == "unreadable")
    if event.object is None or len(event.object) > 8 * 2**20:
        return Fate.DEGRADED
    tree = json.loads(event.object, parse_int=float, parse_constant=_refuse)
    assert "managedFields" not in tree["metadata"]
    assert LAST_APPLIED.decode() not in (tree["metadata"].get("annotations") or {})
    return Fate.WHOLE


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


def lost(error: Unpublishable) -> Fate:
    assert CANARY.decode() not in str(error)
    return Fate.LOST


def listed(body: bytes, of: Origin) -> Fate:
    try:
        return fate_of(from_list(msgspec.Raw(body), of, RANK))
    except Unpublishable as e:
        return lost(e)


def read(line: bytes) -> WatchEvent:
    return _read_line(line)


def watched(line: bytes, of: Origin) -> Fate:
    change = read(line)
    if change.type is WatchType.UNREADABLE:
        assert (change.object, change.resource_version) == (None, "")
        return Fate.LOST
    assert is_comparable(change.resource_version)
    if change.type is WatchType.BOOKMARK:
        return Fate.WHOLE
    try:
        return fate_of(from_watch(change, of, RANK))
    except Unpublishable as e:
        return lost(e)


@each_row("hostile", corpus())
def test_w16_each_hostile_object_meets_its_fate_in_a_list_and_in_a_watch(hostile: Hostile):
    for of in ORIGINS:
        assert listed(hostile.body, of) is hostile.fate
        assert watched(watch_line(hostile.body), of) is hostile.fate
        assert watched(watch_line(hostile.body, b"DELETED"), of) is hostile.fate


@each_row("title", NO_EVENTS)
def test_w16_a_line_that_tells_nothing_sure_is_unreadable(title: str):
    splitter = LineSplitter()
    lines = splitter.feed(
        NO_EVENTS[title] + b"\n\n\r\n" + BOOKMARK.replace(b"VERSION", b"9") + b"\n"
    )
    assert splitter.too_long == (title == "a line over 32 MiB")
    kinds = [read(line).type for line in lines]
    assert kinds[-1] is WatchType.BOOKMARK
    assert set(kinds[:-1]) <= {WatchType.UNREADABLE}
    assert len(kinds) + splitter.too_long >= 2


def test_w16_an_error_event_that_cannot_be_read_is_raised_as_one():
    for status in (b'{"code":410,"x":NaN}', b'{"code":"410"}', b"{}"):
        with pytest.raises(KubeError):
            read(b'{"type":"ERROR","object":' + status + b"}")


@each_row("seed", SEEDS)
def test_w16_no_damage_to_a_line_costs_more_than_its_event(seed: int):
    random = Random(seed)
    full = document("a", "12", data=b'{"secret":"x","gone":[{"a":1}],"b":{"c":[1.0,"\\u00e9"]}}')
    line = watch_line(full, b"ADDED")
    fates = dict.fromkeys(Fate, 0)
    for _ in range(500):
        hurt = damaged(random, line)
        for line_part in LineSplitter().feed(hurt + b"\n"):
            for of in ORIGINS:
                try:
                    fate = watched(line_part, of)
                except KubeError:
                    assert b"ERROR" in line_part
                    continue
                fates[fate] += 1
                if _is_sound(line_part):
                    assert fate is Fate.WHOLE, line_part
    assert all(fates.values()), fates


def _is_sound(line: bytes) -> bool:
    """Whether a strict decoder and the rules of Kubernetes find nothing wrong with it."""
    try:
        event: Any = orjson.loads(line)
        metadata = event["object"]["metadata"]
        texts = [metadata[field] for field in ("name", "resourceVersion")]
        texts += [metadata.get(field, "") for field in ("namespace", "uid")]
        annotations = metadata.get("annotations", {})
        return (
            event["type"] in {"ADDED", "MODIFIED", "DELETED"}
            and all(isinstance(text, str) and text.isprintable() for text in texts)
            and bool(metadata["name"])
            and metadata.get("namespace") not in {"-", ""}
            and is_comparable(metadata["resourceVersion"])
            and isinstance(annotations, dict | None)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


@each_row("seed", SEEDS)
def test_w8_a_damaged_list_is_refused_or_holds_what_it_says(seed: int):
    """Damage may spoil items, but none may go unseen: their number stays, or the list is none."""
    random = Random(seed)
    head = b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":['
    items = [document(f"i{n}", str(n)) for n in range(4)]
    taken = 0
    for _ in range(300):
        place = random.randrange(len(items))
        hurt = [*items[:place], damaged(random, items[place]), *items[place + 1 :]]
        splitter = ItemSplitter()
        items_read = splitter.feed(head + b",".join(hurt) + b"]}")
        if splitter.is_complete:
            taken += 1
            assert b"".join(items_read).startswith(b"".join(items[:place]))
            assert b"".join(items_read).endswith(b"".join(items[place + 1 :]))
    assert taken > 50


@each_row("between", [b"", b",,", b",1,", b',"x",', b",[],", b",null,", b", garbage ,", b"}{"])
def test_w8_a_list_with_more_than_objects_between_its_brackets_is_none(between: bytes):
    splitter = ItemSplitter()
    splitter.feed(b'{"kind":"PodList","items":[{"a":1}' + between + b'{"b":2}],"x":[1]}')
    assert not splitter.is_complete
    twice = ItemSplitter()
    twice.feed(b'{"items":[{"a":1}],"items":[]}')
    assert not twice.is_complete


def test_w16_chunks_may_end_at_each_byte_of_a_hostile_list_and_of_a_watch():
    small = [each.body for each in corpus() if each.is_framed and len(each.body) < 400][::4]
    tail = b'],"kind":"ConfigMapList","metadata":{"resourceVersion":"5","x":[{"items":[]}]}}'
    full = b'{"apiVersion":"v1","items":[' + b" ,\n".join(small) + tail
    lines = b"\r\n".join([*map(watch_line, small), b"", b"tail"])
    for at in range(0, len(full), 13):
        splitter = ItemSplitter()
        items_read = [*splitter.feed(full[:at]), *splitter.feed(full[at:])]
        assert (items_read, splitter.is_complete) == (small, True)
        assert json.loads(splitter.skeleton)["metadata"]["x"] == [{"items": []}]
    by_byte, one_by_one = ItemSplitter(), LineSplitter()
    assert [i for at in range(len(full)) for i in by_byte.feed(full[at : at + 1])] == small
    assert json.loads(by_byte.skeleton)["kind"] == "ConfigMapList"
    items_read = [line for at in range(len(lines)) for line in one_by_one.feed(lines[at : at + 1])]
    assert items_read == LineSplitter().feed(lines)


@each_row("tail", [b'\\"', b'"\\', b'"', b'{"', b"[{", b"]}"])
def test_w16_no_text_costs_its_length_squared(tail: bytes):
    document_ = b'{"items":[{"a":"' + tail * 100_000
    assert cut_object(document_) == {}
    splitter = ItemSplitter()
    splitter.feed(document_)
    assert not splitter.is_complete
