"""Continue tokens of pages that are sorted or selected by fields, or are of the past."""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from fleetbus.snapshot import ExpiredToken, InvalidToken

MAX_TOKEN: Final = 8192
"""Characters: it has the texts of the last object that the list is sorted by."""
_DIGEST: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_encoder = msgspec.msgpack.Encoder()


class _Position(msgspec.Struct, frozen=True, array_like=True):
    def to_token(self) -> str:
        """Encode the position as an opaque string for URLs."""
        return base64.urlsafe_b64encode(_encoder.encode(self)).rstrip(b"=").decode()


class FieldPosition(_Position, frozen=True, array_like=True, tag="f1"):
    """The last object of a page: the values that it was sorted by, and its key."""

    generation: str
    version: int
    """Version of the snapshot, before the first object of the first page was read."""
    question: bytes
    ranks: list[tuple[int, int | float | str]]
    cluster: str
    key: bytes


class PastPosition(_Position, frozen=True, array_like=True, tag="h1"):
    """The last candidate that a page of the past looked at: all pages are of the same time."""

    generation: str
    """Generation of the snapshot."""
    at: int
    """The time that the list is of, in microseconds since 1970."""
    question: bytes
    cluster: str
    key: bytes

    @property
    def time(self) -> datetime:
        """The time that the list is of."""
        return _EPOCH + self.at * _MICROSECOND


_P = TypeVar("_P", FieldPosition, PastPosition)


def microseconds(time: datetime) -> int:
    """A time as `PastPosition.at` has it."""
    return (time - _EPOCH) // _MICROSECOND


def digest_question(*parts: str) -> bytes:
    """Tell one question from another."""
    return hashlib.blake2b(_encoder.encode(parts), digest_size=_DIGEST).digest()


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
    position = _decode(token, FieldPosition, question, "in another order")
    if position.generation != generation or position.version > version:
        raise ExpiredToken("the continue token has expired: the store was lost since; list again")
    return position


def read_past_token(token: str, question: bytes) -> PastPosition:
    """Decode a token of this question, from a client who may have written anything.

    Raises:
        InvalidToken: it is malformed, or was issued for a different query.
    """
    return _decode(token, PastPosition, question, "of another time")


def _decode(token: str, kind: type[_P], question: bytes, other_list: str) -> _P:
    padding = "=" * (-len(token) % 4)
    try:
        raw = base64.b64decode(token[:MAX_TOKEN] + padding, altchars=b"-_", validate=True)
        position = msgspec.msgpack.decode(raw, type=kind)
        if isinstance(position, PastPosition):
            _ = position.time
    except (binascii.Error, ValueError, OverflowError, msgspec.DecodeError) as e:
        raise InvalidToken(
            f"invalid continue token {token[:40]!r}, or one of a list {other_list}"
        ) from e
    if position.question != question:
        raise InvalidToken(
            "the continue token was issued for a different query; only limit may change"
        )
    return position
