"""Continue tokens of pages that are sorted or selected by fields."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

import msgspec

from fleetbus.snapshot import ExpiredToken, InvalidToken

MAX_TOKEN: Final = 8192
"""Characters: it has the texts of the last object that the list is sorted by."""
_DIGEST: Final = 8


class FieldPosition(msgspec.Struct, frozen=True, array_like=True, tag="f1"):
    """The last object of a page: the values that it was sorted by, and its key."""

    generation: str
    version: int
    """Version of the snapshot, before the first object of the first page was read."""
    question: bytes
    ranks: list[tuple[int, int | float | str]]
    cluster: str
    key: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FieldPosition)


def digest_question(*parts: str) -> bytes:
    """Tell one question from another."""
    return hashlib.blake2b(_encoder.encode(parts), digest_size=_DIGEST).digest()


def write_token(position: FieldPosition) -> str:
    """Encode a position as an opaque string for URLs."""
    return base64.urlsafe_b64encode(_encoder.encode(position)).rstrip(b"=").decode()


def read_token(token: str, generation: str, version: int, question: bytes) -> FieldPosition:
    """Decode a token of this store generation and question.

    Args:
        token: from a client, who may have written anything.
        generation: of the store.
        version: of the snapshot, at present.
        question: its digest.

    Raises:
        InvalidToken: it is malformed, or was issued for a different query.
        ExpiredToken: it belongs to another generation of the store.
    """
    padding = "=" * (-len(token) % 4)
    try:
        raw = base64.b64decode(token[:MAX_TOKEN] + padding, altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError) as e:
        raise InvalidToken(
            f"invalid continue token {token[:40]!r}, or one of a list in another order"
        ) from e
    if position.question != question:
        raise InvalidToken(
            "the continue token was issued for a different query; only limit may change"
        )
    if position.generation != generation or position.version > version:
        raise ExpiredToken("the continue token has expired: the store was lost since; list again")
    return position
