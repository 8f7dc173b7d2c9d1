"""Acknowledgements of JetStream for published messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec


class ApiRefusal(msgspec.Struct, frozen=True):
    """Why JetStream did not store a message."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct, frozen=True):
    """The outcome for one message: stored when `error` is None."""

    seq: int = 0
    duplicate: bool = False
    error: ApiRefusal | None = None


Settle = Callable[[Ack], None]
"""Called once for each message, from the event loop; must not block and must not raise."""

GAVE_UP: Final = Ack(error=ApiRefusal(description="no acknowledgement in time"))
PERMANENT: Final = 400
"""The code for what is wrong with the message itself; 503 and the like pass."""
_UNAVAILABLE: Final = 503
_decoder = msgspec.json.Decoder(Ack)


def read_ack(data: bytes) -> Ack:
    """Decode an answer to a published message; an unreadable one counts as a passing error."""
    if not data:  # the body of "no responders", status 503
        return Ack(error=ApiRefusal(_UNAVAILABLE, description="no stream"))
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as e:
        return Ack(error=ApiRefusal(_UNAVAILABLE, description=f"unreadable answer: {e}"))
