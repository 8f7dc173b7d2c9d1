"""Decodes the bodies of objects, which may be anything, and matches them with selectors."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus.kube.field_paths import TooManyValues
from fleetbus.kube.json_fields import mapping
from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry
from fleetbus.snapshot.guard import read_terms
from fleetbus_proto.events import UNREADABLE
from fleetbus_query_api.responses.render import body_of

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


def matches_entry(entry: Entry, labels: LabelSelector | None, fields: FieldSelector) -> bool:
    """Whether an object matches.

    Raises:
        UnreadableBody: the body is missing or cannot be decoded, so that nobody knows; or a field
            has too many values.
    """
    if not labels and not fields:
        return True
    tree = decode(body_of(entry))
    try:
        return fields.matches(tree) and (
            not labels or labels.matches(mapping(tree, "metadata", "labels"))
        )
    except TooManyValues as e:
        raise UnreadableBody from e
