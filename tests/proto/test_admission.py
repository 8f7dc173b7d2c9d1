"""Which messages a reader accepts: rules B8 and B18."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleetbus_proto import codec, headers
from fleetbus_proto.admission import FURTHEST_AHEAD_MS, admit, cluster_of, subject_of
from fleetbus_proto.errors import InvalidName, MalformedMessage, TooFarAhead
from fleetbus_proto.events import EpochEnd, Event, Incarnation, Message, Rank
from fleetbus_proto.subjects import Verb
from support.rows import each_row
from support.wire.samples import GOLDEN, MESSAGE_KEY, event
from support.wire.strategies import MESSAGES

NOW = 1_754_740_900_000
REPLACE = msgspec.structs.replace


def read(message: Message, subject: str = "", now_ms: int = NOW) -> Message:
    on = subject or subject_of(message)
    return admit(on, headers.build(message, MESSAGE_KEY), codec.encode(message), now_ms=now_ms)


@given(MESSAGES)
def test_b8_what_is_published_on_its_own_subject_is_read_back(message: Message):
    assume(not (isinstance(message, EpochEnd) and message.removed))
    assert read(message, now_ms=2**63) == message


@given(MESSAGES, st.sampled_from(list(GOLDEN.values())))
def test_b8_no_message_is_read_on_the_subject_of_another(one: Message, other: Message):
    assume(subject_of(one) != subject_of(other))
    with pytest.raises(MalformedMessage, match="subject"):
        read(one, subject_of(other), now_ms=2**63)


@each_row("field", ["cluster", "group", "resource", "namespace", "name", "verb"])
def test_b8_each_part_of_an_event_is_compared(field: str):
    sent: Any = event()
    with pytest.raises(MalformedMessage, match="subject"):
        read(REPLACE(sent, **{field: Verb.DELETED if field == "verb" else "x"}), subject_of(sent))


@each_row("change", [{"name": ""}, {"cluster": "A"}, {"namespace": "-"}, {"group": ""}])
def test_b8_what_no_subject_can_carry_is_refused(change: dict[str, str]):
    message = REPLACE(event(), **change)
    with pytest.raises(InvalidName):
        subject_of(message)
    with pytest.raises(MalformedMessage):
        read(message, subject_of(event()))


@each_row("message", GOLDEN.values())
def test_b8_numbers_may_be_a_day_ahead_and_no_further(message: Message):
    limit = NOW + FURTHEST_AHEAD_MS
    numbers: list[dict[str, Any]] = [{"incarnation": Incarnation(limit, "u")}]
    if hasattr(message, "epoch"):
        numbers.append({"epoch": Rank("5", limit)})
    for change in numbers:
        read(REPLACE(message, **change))
        with pytest.raises(TooFarAhead, match="more than a day ahead") as refused:
            read(REPLACE(message, **change), now_ms=NOW - 1)
        assert refused.value.number == limit


@each_row(
    ("group", "count"), [("core", 0), ("apps", 0), ("networking.k8s.io", 0), ("example.com", 1)]
)
def test_w17_only_a_type_that_a_crd_can_define_ends_and_without_objects(group: str, count: int):
    end = next(m for m in GOLDEN.values() if isinstance(m, EpochEnd) and m.removed)
    assert read(REPLACE(end, group="example.com", count=0))
    with pytest.raises(MalformedMessage, match="removed"):
        read(REPLACE(end, group=group, count=count))


@given(MESSAGES)
def test_b18_a_refused_message_counts_for_the_cluster_of_its_subject(message: Message):
    assert cluster_of(subject_of(message)) == message.cluster


@given(st.text())
def test_b18_any_subject_names_a_cluster_or_none(subject: str):
    assert isinstance(cluster_of(subject), str)


@each_row(
    "subject",
    ["", "a", "fleetbus.events", "fleetbus.events.eu1", "fleetbus.events.EU1.x", "a.b..c"],
)
def test_b18_a_subject_that_names_no_cluster_is_nobodys(subject: str):
    assert cluster_of(subject) == ""


def test_b18_another_format_or_no_message_is_refused():
    sent = event()
    reported = headers.build(sent, MESSAGE_KEY) | {headers.FORMAT_HEADER: "99"}
    with pytest.raises(MalformedMessage, match="format"):
        admit(subject_of(sent), reported, codec.encode(sent), now_ms=NOW)
    with pytest.raises(MalformedMessage, match="format"):
        admit(subject_of(sent), None, codec.encode(sent), now_ms=NOW)
    with pytest.raises(MalformedMessage, match="not a message"):
        admit(subject_of(sent), headers.build(sent, MESSAGE_KEY), b"\xc1", now_ms=NOW)
    assert isinstance(sent, Event)
