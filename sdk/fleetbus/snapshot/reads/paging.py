"""Continue tokens: the position at which the next page of a list starts."""

from __future__ import annotations

import base64
import binascii

import msgspec

from fleetbus.errors import FleetbusError


class InvalidToken(FleetbusError, ValueError):
    """The continue token was not issued by this API."""


class ExpiredToken(FleetbusError):
    """The continue token was issued before the store was lost (rule P13); list again."""


class Position(msgspec.Struct, frozen=True, array_like=True, tag="p1"):
    """The last key of a page, in the order (cluster, key)."""

    generation: str
    cluster: str
    key: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Position)


def write_token(position: Position) -> str:
    """Encode a position as an opaque string for URLs."""
    return base64.urlsafe_b64encode(_encoder.encode(position)).rstrip(b"=").decode()


def read_token(token: str, generation: str) -> Position:
    """Decode a token of this store generation.

    Raises:
        InvalidToken: it is malformed.
        ExpiredToken: it belongs to another generation of the store.
    """
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError) as e:
        raise InvalidToken(f"invalid continue token {token[:40]!r}") from e
    if position.generation != generation:
        raise ExpiredToken("the continue token has expired: the store was lost since; list again")
    return position
