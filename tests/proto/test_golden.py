"""The golden vectors in proto/golden: a change in one of them is a change of the protocol.

`make golden` writes them anew.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast, get_args

import msgpack
import msgspec
import pytest

from fleetbus_proto import codec, headers
from fleetbus_proto.calls import (
    Failed,
    Frame,
    FrameToAgent,
    FrameToCaller,
    Head,
    Open,
    Working,
    decode_to_agent,
    decode_to_caller,
    encode_frame,
)
from fleetbus_proto.distribution import (
    decode_distribution_event,
    encode_distribution_event,
)
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.subjects import (
    answers_subject,
    api_subject,
    decode_token,
    encode_token,
    epochs_subject,
    event_subject,
)
from fleetbus_proto.subjects import status_subject as heartbeat_subject
from support.rows import each_row
from support.wire.frames import FRAMES, INSTANCE
from support.wire.samples import DISTRIBUTION, GOLDEN, MESSAGE_KEY

FOLDER = Path(__file__).parents[2] / "proto" / "golden"
TOKENS = [
    "web",
    "kube-root-ca.crt",
    "system:node",
    "a_b",
    "a b",
    "100%",
    "*",
    ">",
    "..",
    "-",
    "\u00fc",
    "\u2603",
    "\U0001f600",
    "\x00",
    "\r\n",
    "\x7f",
    "UPPER",
    "~!@#$&'()+,;=[]",
]


def _subject(message: Message) -> str:
    if isinstance(message, Heartbeat):
        return heartbeat_subject(message.cluster, message.replica)
    if isinstance(message, Event):
        m = message
        return event_subject(m.cluster, m.group, m.resource, m.namespace, m.name, m.verb)
    return epochs_subject(message.cluster, message.group, message.resource)


def _readable(message: Message) -> dict[str, Any]:
    """The content of the .json file, with the object's bytes as base64."""
    return {
        "subject": _subject(message),
        "headers": headers.build(message, MESSAGE_KEY),
        "body": json.loads(msgspec.json.encode(message)),
    }


def _readable_frame(frame: Frame) -> dict[str, Any]:
    """The same of a frame, which has no headers; data and bodies are base64."""
    to_caller = isinstance(frame, Head | Working | Failed)
    subject = answers_subject("eu1", frame.id) if to_caller else api_subject("eu1", INSTANCE)
    if isinstance(frame, Open):
        subject = api_subject("eu1")
    return {"subject": subject, "body": json.loads(msgspec.json.encode(frame))}


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True) + "\n"


def _token_rows() -> list[dict[str, str]]:
    return [{"text": text, "token": encode_token(text)} for text in TOKENS]


@pytest.fixture
def golden(update_golden: bool) -> Path:
    """The folder of vectors, freshly written if that was asked for."""
    if update_golden:
        for old in (*FOLDER.glob("*.msgpack"), *FOLDER.glob("*.json")):
            old.unlink()
        for name, message in GOLDEN.items():
            (FOLDER / f"{name}.json").write_text(_text(_readable(message)), encoding="ascii")
            (FOLDER / f"{name}.msgpack").write_bytes(codec.encode(message))
        for name, frame in FRAMES.items():
            (FOLDER / f"{name}.json").write_text(_text(_readable_frame(frame)), encoding="ascii")
            (FOLDER / f"{name}.msgpack").write_bytes(encode_frame(frame))
        (FOLDER / "distribution.json").write_bytes(encode_distribution_event(DISTRIBUTION))
        (FOLDER / "tokens.json").write_text(_text(_token_rows()), encoding="ascii")
    return FOLDER


def test_there_is_one_vector_for_each_sample_and_no_other_file(golden: Path):
    names = (*GOLDEN, *FRAMES)
    expected = {f"{name}{suffix}" for name in names for suffix in (".json", ".msgpack")}
    expected |= {"distribution.json", "tokens.json"}
    assert {path.name for path in golden.iterdir()} == expected


@each_row("name", sorted(FRAMES))
def test_a_frame_is_encoded_and_read_as_in_its_vectors(golden: Path, name: str):
    frame, body = FRAMES[name], (golden / f"{name}.msgpack").read_bytes()
    decode = decode_to_caller if isinstance(frame, Head | Working | Failed) else decode_to_agent
    assert encode_frame(frame) == body
    assert decode(body) == frame
    text = (golden / f"{name}.json").read_text(encoding="ascii")
    assert text == _text(_readable_frame(frame))


def test_every_kind_and_every_optional_field_of_a_frame_has_a_vector():
    used = {type(f): set[str]() for f in FRAMES.values()}
    for frame in FRAMES.values():
        defaults = {f.name: f.default for f in msgspec.structs.fields(frame)}
        used[type(frame)] |= {n for n in defaults if getattr(frame, n) != defaults[n]}
    kinds = get_args(FrameToAgent) + get_args(FrameToCaller)
    for kind in kinds:
        assert used[kind] == {f.name for f in msgspec.structs.fields(kind)}, kind.__name__


def test_what_the_distributor_tells_is_encoded_byte_for_byte_as_in_its_vector(golden: Path):
    body = (golden / "distribution.json").read_bytes()
    assert encode_distribution_event(DISTRIBUTION) == body
    assert decode_distribution_event(body) == DISTRIBUTION


@each_row("name", sorted(GOLDEN))
def test_a_message_is_encoded_byte_for_byte_as_in_its_vector(golden: Path, name: str):
    assert codec.encode(GOLDEN[name]) == (golden / f"{name}.msgpack").read_bytes()


@each_row("name", sorted(GOLDEN))
def test_a_vector_is_read_and_written_back_byte_for_byte(golden: Path, name: str):
    body = (golden / f"{name}.msgpack").read_bytes()
    assert codec.decode(body) == GOLDEN[name]
    assert codec.encode(codec.decode(body)) == body


@each_row("name", sorted(GOLDEN))
def test_subject_headers_and_fields_are_those_of_the_readable_vector(golden: Path, name: str):
    text = (golden / f"{name}.json").read_text(encoding="ascii")
    assert text == _text(_readable(GOLDEN[name]))


@each_row("name", sorted(GOLDEN))
def test_the_readable_vector_packed_by_another_library_is_the_same_message(golden: Path, name: str):
    # Not byte for byte: msgpack has several ways to write the length of a map.
    body = json.loads((golden / f"{name}.json").read_text(encoding="ascii"))["body"]
    if isinstance(body.get("object"), str):
        body["object"] = base64.b64decode(body["object"])
    assert codec.decode(cast("Any", msgpack).packb(body)) == GOLDEN[name]


def test_the_tokens_are_those_of_their_vector(golden: Path):
    rows = json.loads((golden / "tokens.json").read_text(encoding="ascii"))
    assert rows == _token_rows()
    assert [decode_token(row["token"]) for row in rows] == TOKENS


def test_every_kind_of_message_and_every_optional_field_has_a_vector():
    fields_by_type: dict[type, set[str]] = {}
    for message in GOLDEN.values():
        defaults = {f.name: f.default for f in msgspec.structs.fields(message)}
        reported = {n for n, default in defaults.items() if getattr(message, n) != default}
        fields_by_type.setdefault(type(message), set()).update(reported)
    assert set(fields_by_type) == {Event, EpochEnd, AuditPage, Heartbeat}
    for kind in (Event, EpochEnd):
        assert fields_by_type[kind] == {f.name for f in msgspec.structs.fields(kind)}


def test_the_object_bytes_of_the_vectors_are_json():
    for message in GOLDEN.values():
        if isinstance(message, Event) and message.object is not None:
            assert isinstance(json.loads(message.object), dict)
