"""Continue tokens of lists as of a time: all pages are of the same time."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fleetbus.snapshot import InvalidToken
from fleetbus_query_api.requests.paging import MAX_TOKEN

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class PastPosition(msgspec.Struct, frozen=True, array_like=True, tag="h1"):
    """The last candidate that a page looked at."""

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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PastPosition)


def microseconds(time: datetime) -> int:
    """A time as `PastPosition.at` has it."""
    return (time - _EPOCH) // _MICROSECOND


def write_past_token(position: PastPosition) -> str:
    """Encode a position as an opaque string for URLs."""
    return base64.urlsafe_b64encode(_encoder.encode(position)).rstrip(b"=").decode()


def read_past_token(token: str, question: bytes) -> PastPosition:
    """Decode a token of this question, from a client who may have written anything.

    Raises:
        InvalidToken: it is malformed, or was issued for a different query.
    """
    padding = "=" * (-len(token) % 4)
    try:
        raw = base64.b64decode(token[:MAX_TOKEN] + padding, altchars=b"-_", validate=True)
        position = _decoder.decode(raw)
        _ = position.time
    except (binascii.Error, ValueError, OverflowError, msgspec.DecodeError) as e:
        raise InvalidToken(
            f"invalid continue token {token[:40]!r}, or one of a list of another time"
        ) from e
    if position.question != question:
        raise InvalidToken(
            "the continue token was issued for a different query; only limit may change"
        )
    return position
