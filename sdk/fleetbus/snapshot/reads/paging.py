"""Continue tokens: the position at which the next page of a list starts.

A position is a key, not an offset, so that changes between two pages neither hide nor repeat other
objects. A token also carries the version of the first page: a watch from there misses nothing that
changed while the pages were read (rule A5).
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

import msgspec

from fleetbus.errors import FleetbusError

if TYPE_CHECKING:
    from fleetbus.snapshot.reads.versions import Version


MAX_TOKEN: Final = 2048
"""Characters of a token; ours have less than 1,000, however long a name is."""


class InvalidToken(FleetbusError, ValueError):
    """The continue token was not issued by this API."""


class ExpiredToken(FleetbusError):
    """The continue token was issued before the store was lost (rule P13); list again."""


class Position(msgspec.Struct, frozen=True, array_like=True, tag="p2"):
    """The last key of a page, in the order (cluster, key)."""

    generation: str
    version: int
    """Version of the snapshot, before the first row of the first page."""
    cluster: str = ""
    key: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Position)


def write_token(position: Position) -> str:
    """Encode a position as an opaque string for URLs."""
    return base64.urlsafe_b64encode(_encoder.encode(position)).rstrip(b"=").decode()


def read_token(token: str, current: Version) -> Position:
    """Decode a token of this content of the store.

    Args:
        token: from a client, who may have written anything.
        current: the version of the snapshot, read before.

    Raises:
        InvalidToken: it is malformed.
        ExpiredToken: the store was lost since, or its last writes.
    """
    position = _decode(token) if len(token) <= MAX_TOKEN else None
    if position is None or position.version < 0:
        raise InvalidToken(f"invalid continue token {token[:40]!r}: use that of the page before")
    if position.generation != current.generation or position.version > current.number:
        raise ExpiredToken("the continue token has expired: the store was lost since; list again")
    return position


def _decode(token: str) -> Position | None:
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
