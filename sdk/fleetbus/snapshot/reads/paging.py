"""Continue tokens: where the next page of a list starts."""

from __future__ import annotations

import base64
import binascii

import msgspec

from fleetbus.errors import FleetbusError


class InvalidToken(FleetbusError, ValueError):
    """The continue token was not made by this API."""


class ExpiredToken(FleetbusError):
    """The continue token belongs to a store that was lost since (rule P13); list again."""


class Position(msgspec.Struct, frozen=True, array_like=True, tag="p1"):
    """The last key that was looked at, in the order (cluster, key)."""

    generation: str
    cluster: str
    key: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Position)


def write_token(position: Position) -> str:
    """An opaque text for URLs."""
    return base64.urlsafe_b64encode(_encoder.encode(position)).rstrip(b"=").decode()


def read_token(token: str, generation: str) -> Position:
    """Read a token of this store generation.

    Raises:
        InvalidToken: it is garbage.
        ExpiredToken: it comes from another generation of the store.
    """
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError) as e:
        raise InvalidToken(f"the continue token {token[:40]!r} is not one of ours") from e
    if position.generation != generation:
        raise ExpiredToken("the continue token is of a store that was lost since; list again")
    return position
