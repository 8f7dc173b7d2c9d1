"""Bodies: what we write every reader reads, and nothing that arrives can crash ours (B18)."""

from __future__ import annotations

from typing import Any, cast

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_proto import codec
from fleetbus_proto.errors import InvalidName, MalformedMessage
from fleetbus_proto.events import Message
from support.rows import each_row
from support.wire.samples import event
from support.wire.strategies import MESSAGES

_plain = msgspec.msgpack.Decoder()


def _raw(**fields: object) -> bytes:
    """An event's body with fields changed, added, or (None) left out."""
    body: dict[str, Any] = _plain.decode(codec.encode(event()))
    return msgspec.msgpack.encode({k: v for k, v in (body | fields).items() if v is not None})


@given(MESSAGES)
def test_every_message_is_read_back(message: Message):
    body = codec.encode(message)
    assert codec.decode(body) == message
    assert codec.encode(codec.decode(body)) == body


@given(MESSAGES)
def test_the_msgpack_library_reads_the_same_values(message: Message):
    body = codec.encode(message)
    unpacked: Any = cast("Any", msgpack).unpackb(body)
    assert unpacked == _plain.decode(body)
    assert isinstance(unpacked.get("object"), bytes | None)


@given(MESSAGES)
def test_bodies_of_the_msgpack_library_are_read_too(message: Message):
    unpacked: Any = cast("Any", msgpack).unpackb(codec.encode(message))
    assert codec.decode(cast("Any", msgpack).packb(unpacked)) == message


def test_field_names_on_the_wire_are_camel_case_and_defaults_are_left_out():
    assert list(_plain.decode(codec.encode(event()))) == [
        "type",
        "cluster",
        "incarnation",
        "group",
        "version",
        "resource",
        "kind",
        "namespace",
        "name",
        "uid",
        "resourceVersion",
        "verb",
        "epoch",
        "observedAt",
        "object",
    ]


def test_an_unknown_field_of_a_newer_writer_is_ignored():
    assert codec.decode(_raw(mood={"deep": [1, 2, {"er": None}]})) == event()


@each_row(
    "change",
    [
        {"type": "event.v2"},
        {"type": "unheard"},
        {"type": 1},
        {"type": None},
        {"cluster": None},
        {"cluster": 7},
        {"verb": "patched"},
        {"object": "text, not bytes"},
        {"epoch": "40"},
        {"incarnation": {"number": "7", "uid": "k"}},
        {"incarnation": {"number": 2**63 + 0.5, "uid": "k"}},
        {"finalStateUnknown": "yes"},
    ],
)
def test_b18_a_wrong_field_is_a_malformed_message(change: dict[str, object]):
    with pytest.raises(MalformedMessage):
        codec.decode(_raw(**change))


@given(MESSAGES, st.data())
def test_b18_no_prefix_of_a_body_is_a_message(message: Message, data: st.DataObject):
    body = codec.encode(message)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedMessage):
        codec.decode(body[:cut])


@given(st.binary(max_size=300))
def test_b18_random_bytes_are_malformed_and_nothing_worse(body: bytes):
    with pytest.raises(MalformedMessage):
        codec.decode(body)


@given(MESSAGES, st.data())
def test_b18_a_flipped_byte_is_malformed_or_another_message_and_nothing_worse(
    message: Message, data: st.DataObject
):
    body = bytearray(codec.encode(message))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    try:
        codec.decode(bytes(body))
    except MalformedMessage:
        return


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\x91" * 1_000_000 + b"\xc0", id="lists a million deep"),
        pytest.param(b"\x81\xa1a" * 1_000_000 + b"\xc0", id="maps a million deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="a map of four billion"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="bytes of 4 GiB"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="text of 4 GiB"),
        pytest.param(b"\xc1", id="the byte that msgpack never uses"),
        pytest.param(b"", id="a name without a value"),
    ],
)
@pytest.mark.parametrize("field", [b"\xa4mood", b"\xa6object", b"\xa4name"])
def test_b18_hostile_shapes_are_malformed_and_cost_no_memory(field: bytes, tail: bytes):
    body = codec.encode(event(object=None))
    assert body[:3] == b"\xde\x00\x0f"  # a map of fifteen: write one more
    hostile = b"\xde\x00\x10" + body[3:] + field + tail
    with pytest.raises(MalformedMessage):
        codec.decode(hostile)


def test_b18_bytes_after_the_message_are_malformed():
    with pytest.raises(MalformedMessage, match="trailing"):
        codec.decode(codec.encode(event()) + b"\xc0")


def test_b18_text_that_is_not_utf_8_is_malformed():
    body = codec.encode(event(name="\x00\x00"))
    with pytest.raises(MalformedMessage):
        codec.decode(body.replace(b"\xa2\x00\x00", b"\xa2\xff\xff"))


def test_b18_a_body_over_the_limit_is_refused_unread():
    with pytest.raises(MalformedMessage, match="over 16777216"):
        codec.decode(bytes(codec.MAX_BODY_BYTES + 1))


def test_a_name_that_utf_8_cannot_carry_is_an_invalid_name():
    with pytest.raises(InvalidName, match="Unicode"):
        codec.encode(event(name="\ud800"))


def test_the_objects_bytes_are_carried_as_they_are():
    text = b'{"b":1.0,  "a":[1e400, "\\u00e9\xc3\xa9"]}\n'
    decoded = codec.decode(codec.encode(event(object=text)))
    assert decoded == event(object=text)
