"""Encodes and decodes messages as msgpack."""

from __future__ import annotations

from typing import Final

import msgspec

from fleetbus_proto.errors import InvalidName, MalformedMessage
from fleetbus_proto.events import Message

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message; equal messages have equal bytes.

    Raises:
        InvalidName: a string has a lone surrogate, which UTF-8 cannot represent.
    """
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError as e:
        raise InvalidName(f"a string of the message is not valid Unicode: {e}") from e


def decode(body: bytes) -> Message:
    """Decode a message; unknown fields are ignored, so that newer writers can add some.

    Raises:
        MalformedMessage: too large, not msgpack, an unknown type, or a field of the wrong type.
    """
    if len(body) > MAX_BODY_BYTES:
        raise MalformedMessage(f"a body of {len(body)} bytes is over {MAX_BODY_BYTES}")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise MalformedMessage(f"not a message of this contract: {e}") from e
