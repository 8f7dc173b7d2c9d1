"""Frames of calls through an agent: each is read back, and nothing that arrives crashes a side."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_proto import calls, subjects
from fleetbus_proto.calls import Body, Credit, FrameToAgent, FrameToCaller, Open
from fleetbus_proto.errors import InvalidName, MalformedMessage
from support.rows import each_row
from support.wire.frames import CALL, FRAMES, IDS, INSTANCE, TO_AGENT, TO_CALLER
from support.wire.strategies import CLUSTERS

_plain = msgspec.msgpack.Decoder()


def _changed(frame: calls.Frame, **fields: object) -> bytes:
    body: dict[str, Any] = _plain.decode(calls.encode_frame(frame))
    return msgspec.msgpack.encode({k: v for k, v in (body | fields).items() if v is not None})


@given(TO_AGENT)
def test_every_frame_for_an_agent_is_read_back(frame: FrameToAgent):
    body = calls.encode_frame(frame)
    assert calls.decode_to_agent(body) == frame
    assert calls.encode_frame(calls.decode_to_agent(body)) == body


@given(TO_CALLER)
def test_every_frame_for_a_caller_is_read_back(frame: FrameToCaller):
    body = calls.encode_frame(frame)
    assert calls.decode_to_caller(body) == frame
    unpacked: Any = cast("Any", msgpack).unpackb(body)
    assert calls.decode_to_caller(cast("Any", msgpack).packb(unpacked)) == frame


@given(st.binary(max_size=200))
def test_nothing_that_arrives_raises_anything_else(body: bytes):
    for decode in (calls.decode_to_agent, calls.decode_to_caller):
        with suppress(MalformedMessage):
            decode(body)
    calls.identify(body)


def test_fields_of_a_later_release_are_ignored():
    frame = FRAMES["call-open-get"]
    assert calls.decode_to_agent(_changed(frame, priority=3)) == frame


def test_a_frame_of_an_unknown_kind_is_refused_and_still_says_which_call_it_is_about():
    body = _changed(FRAMES["call-cancel"], type="cancel.v2")
    with pytest.raises(MalformedMessage, match=r"cancel\.v2"):
        calls.decode_to_agent(body)
    assert calls.identify(body) == (CALL, "cancel.v2")
    assert calls.identify(_changed(FRAMES["call-cancel"], id="a.b.>")) == ("", "cancel.v1")
    assert calls.identify(b"\xc1") == ("", "")


@each_row(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        _changed(Body(id=CALL, seq=1, data=b""), data=bytes(calls.CHUNK_BYTES + 1)),
        _changed(Credit(id=CALL), bytes=-1),
        _changed(Credit(id=CALL), bytes=2**60),
        _changed(Open(id=CALL, method="GET", path="/"), id="a" * 200),
        _changed(Open(id=CALL, method="GET", path="/"), id=None),
        _changed(Open(id=CALL, method="GET", path="/"), query=["a"]),
        _changed(Open(id=CALL, method="GET", path="/"), query={"a": "b" * calls.MAX_FRAME_BYTES}),
    ],
)
def test_a_malformed_or_oversized_frame_is_refused(body: bytes):
    with pytest.raises(MalformedMessage):
        calls.decode_to_agent(body)


def test_a_text_that_utf_8_cannot_represent_is_refused_before_it_is_sent():
    with pytest.raises(MalformedMessage, match="Unicode"):
        calls.encode_frame(Open(id=CALL, method="GET", path="/\ud800"))


# --- subjects -----------------------------------------------------------------------------------


@given(CLUSTERS, IDS)
def test_s3_the_answers_of_a_call_have_one_subject_in_the_space_of_their_cluster(
    cluster: str, call: str
):
    subject = subjects.answers_subject(cluster, call)
    assert subject.startswith(f"fleetbus.answers.{cluster}.")
    assert subjects.parse_answers_subject(subject) == (cluster, call)
    assert len(subject.split(".")) == 6


@each_row(
    "call",
    [
        "",
        "a",
        "a.b",
        "a.b.",
        ".a.b",
        "a..b",
        "a.b.c.d",
        "a.b.*",
        ">.a.b",
        "a b.c.d",
        "A.b.c",
        "a.b.c\r\n",
        "é.a.b",
    ],
)
def test_s3_no_id_of_a_call_leads_to_another_subject(call: str):
    with pytest.raises(InvalidName):
        subjects.answers_subject("eu1", call)
    with pytest.raises(InvalidName):
        subjects.parse_answers_subject(f"fleetbus.answers.eu1.{call}")


def test_a_call_goes_to_all_agents_and_what_follows_it_to_the_one_that_took_it():
    assert subjects.api_subject("eu1") == "fleetbus.api.eu1"
    assert subjects.api_subject("eu1", INSTANCE) == f"fleetbus.api.eu1.{INSTANCE}"
    assert subjects.api_subject("eu1", subjects.EVERY_AGENT) == "fleetbus.api.eu1.every-agent"
    assert not subjects.is_instance(subjects.EVERY_AGENT)
    assert subjects.answers_filter("worker.1a") == "fleetbus.answers.*.worker.1a.>"
    for wrong in ("a.b", "*", "A", "a" * 40, "a b"):
        with pytest.raises(InvalidName):
            subjects.api_subject("eu1", wrong)
    for wrong in ("", "a", "a.b.c", "a.*", "*", "Ä.b", ">"):
        with pytest.raises(InvalidName):
            subjects.answers_filter(wrong)
    for wrong in ("", "fleetbus.answers.eu1", "fleetbus.answers.eu1.a.b", "x.answers.eu1.a.b.c"):
        with pytest.raises(InvalidName):
            subjects.parse_answers_subject(wrong)
