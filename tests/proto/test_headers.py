"""Headers: printable ASCII, reversible, and the deduplication id (B3, B10)."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from fleetbus_proto import headers
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Incarnation, Message, Rank
from fleetbus_proto.subjects import Verb
from support.rows import each_row
from support.wire.samples import MESSAGE_KEY, event
from support.wire.strategies import ANY_TEXT, AUDIT_PAGES, EPOCH_ENDS, EVENTS, MESSAGES, RANKS

REPLACE = msgspec.structs.replace


def build(message: Message) -> dict[str, str]:
    return headers.build(message, MESSAGE_KEY)


def id_of(message: Message) -> str:
    return headers.message_id(message, MESSAGE_KEY)


def _is_live(found: Event) -> bool:
    return found.verb is not Verb.LISTED and not found.final_state_unknown


@given(st.one_of(ANY_TEXT, st.just("")))
@example(" a ")
@example("a\r\nNats-Rollup: all")
@example('"%"')
@example("\\ ")
@example("\ud800")
def test_b10_a_header_value_is_printable_ascii_and_is_read_back(text: str):
    value = headers.encode_value(text)
    assert re.fullmatch(r"[!-~]*", value)
    assert '"' not in value
    assert headers.decode_value(value) == text


def test_b10_readable_text_stays_readable():
    text = "eu1:7:apps/deployments:a(b)[c]{d}<e>\\'~!#$&*+,;=?@^_`|"
    assert headers.encode_value(text) == text
    assert headers.encode_value(text + " é") == text + "%20%C3%A9"


@given(MESSAGES)
def test_b10_every_header_of_every_message_is_printable_ascii(message: Message):
    for name, value in build(message).items():
        assert re.fullmatch(r"[A-Za-z-]+", name)
        assert re.fullmatch(r"[!-~]*", value), name


async def test_b10_the_client_hands_every_value_back_unchanged(nats: Client):
    reported = build(event(name="a b\r\n\té☃%", uid='"u"'))
    subscription = await nats.subscribe("test.headers")
    await nats.publish("test.headers", b"", headers=reported)
    message = await subscription.next_msg(timeout=5)
    assert message.headers == reported


@given(MESSAGES)
def test_the_headers_are_those_of_cloudevents_and_the_trace_is_well_formed(message: Message):
    built = build(message)
    assert built["ce-specversion"] == "1.0"
    assert built["ce-id"] == built["Nats-Msg-Id"]
    assert built["ce-source"] == f"/clusters/{message.cluster}"
    assert built["ce-type"].startswith("dev.fleetbus.")
    assert built["content-type"] == "application/msgpack"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", built["traceparent"])


def test_the_subject_of_the_cloudevent_names_the_object():
    assert build(event())["ce-subject"] == "apps/v1/deployments/prod/web"
    pod = event(group="core", resource="pods", namespace="", name="a b")
    assert build(pod)["ce-subject"] == "v1/pods/a%20b"


@given(EVENTS.filter(_is_live), RANKS)
def test_b3_a_watch_event_has_the_same_id_and_trace_on_both_replicas(seen: Event, rank: Rank):
    # Another replica has its own epochs, clock and body transform run; the change is the same.
    same_change = REPLACE(seen, epoch=rank, observed_at="2031-01-01T00:00:00Z", object=b"{}")
    assert id_of(same_change) == id_of(seen)
    assert build(same_change)["traceparent"] == build(seen)["traceparent"]


@given(EVENTS, RANKS)
def test_b3_a_second_relist_inside_the_window_has_ids_of_its_own(seen: Event, rank: Rank):
    assume(rank != seen.epoch)
    listed = REPLACE(seen, verb=Verb.LISTED)
    swept = REPLACE(seen, verb=Verb.DELETED, final_state_unknown=True)
    for first in (listed, swept):
        assert id_of(REPLACE(first, epoch=rank)) != id_of(first)


@given(EPOCH_ENDS, RANKS)
def test_b3_two_epoch_ends_never_share_an_id(end: EpochEnd, rank: Rank):
    assume(rank != end.epoch)
    assert id_of(REPLACE(end, epoch=rank)) != id_of(end)


@given(AUDIT_PAGES)
def test_b3_two_pages_of_an_audit_never_share_an_id(page: AuditPage):
    other = REPLACE(page, page=page.page + 1)
    assert id_of(other) != id_of(page)


@each_row(
    "change",
    [
        {"cluster": "eu2"},
        {"incarnation": Incarnation(8, "k")},
        {"group": "core"},
        {"resource": "pods"},
        {"uid": "u-2"},
        {"resource_version": "43"},
        {"verb": Verb.DELETED},
        {"verb": Verb.LISTED},
        {"verb": Verb.DELETED, "final_state_unknown": True},
    ],
)
def test_b3_another_change_has_another_id(change: dict[str, object]):
    assert id_of(event(**change)) != id_of(event())


@given(EVENTS, EVENTS)
def test_b3_events_share_an_id_only_if_they_are_the_same_change(one: Event, two: Event):
    def change(found: Event) -> tuple[object, ...]:
        rank = None if _is_live(found) else found.epoch
        place = (found.cluster, found.incarnation.number, found.group, found.resource)
        return (*place, found.uid, found.resource_version, found.verb, rank)

    same = id_of(one) == id_of(two)
    assert same == (change(one) == change(two))


def test_b3_the_id_is_made_as_the_contract_says():
    texts = {
        event(): "eu1:7:apps/deployments:u-1:42:modified",
        event(verb=Verb.LISTED): "eu1:7:apps/deployments:u-1:42:listed:40-1000",
    }
    for message, text in texts.items():
        reported = blake2b(text.encode(), key=MESSAGE_KEY, digest_size=16).hexdigest()
        assert id_of(message) == reported


@given(MESSAGES, st.binary(min_size=1, max_size=64))
def test_b3_nobody_foretells_an_id_without_the_key(message: Message, key: bytes):
    assume(key != MESSAGE_KEY)
    assert headers.message_id(message, key) != id_of(message)


@each_row("headers_found", [None, {}, {"fleetbus-format": "0"}, {"fleetbus-format": "2"}])
def test_b18_another_format_is_refused_before_the_body_is_read(
    headers_found: dict[str, str] | None,
):
    with pytest.raises(MalformedMessage, match="format"):
        headers.check_format(headers_found)


def test_b18_our_own_format_is_accepted():
    headers.check_format(build(event()))
