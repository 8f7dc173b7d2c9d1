"""The bodies of registrations: read back, and what is none."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from fleetbus_proto.errors import InvalidName
from fleetbus_proto.registration import (
    MAX_REGISTRATION_BYTES,
    Registration,
    RegistrationAnswer,
    SignedRegistration,
    decode_answer,
    decode_registration,
    decode_signed,
    encode_registration,
)
from fleetbus_proto.subjects import registration_subject
from support.rows import each_row
from support.wire import asyncapi

KEY = "UCY6Q7FOBH7PIE6D5LOI5BVHZKFXHDHDCO2XKCU7XMYWL3SSWDFRZEUR"
INNER = Registration(cluster="eu1", key=KEY, uid="0d8f", instance="agent-1")
SIGNED = SignedRegistration(
    body=encode_registration(INNER), signed_by=KEY, signature=b"\x00\xff", proof=b"\x01"
)
ANSWER = RegistrationAnswer(state="pending", message="fleetbus clusters accept eu1")


def test_what_is_sent_is_what_the_document_says_and_can_be_read_back():
    schemas = {"components": yaml.safe_load(asyncapi.text())["components"]}
    for message, decode in (
        (INNER, decode_registration),
        (SIGNED, decode_signed),
        (ANSWER, decode_answer),
    ):
        body = encode_registration(message)
        assert decode(body) == message
        newer = json.dumps(json.loads(body) | {"added": "in a later version"}).encode()
        assert decode(newer) == message
        schema = schemas["components"]["schemas"][type(message).__name__]
        jsonschema.validate(json.loads(body), {**schema, **schemas})


@each_row("body", [b"", b"\xff", b"[]", b"{}", b'{"key": 1}', b"[" * 9999])
def test_what_is_no_registration_is_none(body: bytes):
    assert decode_signed(body) is None
    assert decode_registration(body) is None
    assert decode_answer(body) is None


def test_a_registration_is_small():
    large = SignedRegistration(
        body=b"x" * MAX_REGISTRATION_BYTES, signed_by=KEY, signature=b"", proof=b""
    )
    assert decode_signed(encode_registration(large)) is None


def test_the_subject_of_a_registration_names_one_cluster():
    assert registration_subject("eu1") == "fleetbus.registration.eu1"
    for wrong in ("*", ">", "eu1.x", ""):
        with pytest.raises(InvalidName):
            registration_subject(wrong)
