"""Decodes the bodies of objects, which may be anything."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus.snapshot.guard import read_terms
from fleetbus_proto.events import UNREADABLE

BROKEN: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Errors of a body that cannot be decoded, as for a number beyond a double."""

_object: Final = msgspec.json.Decoder(dict[str, Any])


class UnreadableBody(Exception):
    """The body is missing or cannot be decoded, so that nobody knows what is in its fields."""


def decode(body: bytes) -> dict[str, Any]:
    """Decode a whole object.

    Raises:
        UnreadableBody: there is none, or it is malformed, like a number beyond a double; or it is
            no object.
    """
    if not body:
        raise UnreadableBody
    try:
        return _object.decode(body)
    except BROKEN as e:
        raise UnreadableBody from e


def why_degraded(body: bytes, reason: str) -> str:
    """Why the body of an event is missing or incomplete, as the snapshot would say it (rule W16).

    Answers are made of such bytes, and nobody has validated what is on the stream: what is
    unreadable may add objects of other clusters to an answer.

    Args:
        body: JSON from the stream; empty if there is none.
        reason: what the event itself says; empty for nothing.
    """
    return UNREADABLE if body and read_terms(body) is None else reason
