"""Events as JSON lines, as `fleetbus events -o json` writes them and as the archive holds them.

A line of the archive has two more fields, `sequence` and `storedAt`; readers of plain lines ignore
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from fleetbus_proto.events import Event

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    sequence: int
    stored_at: datetime


_place = msgspec.json.Decoder(_Place)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, and when and where the stream stored it."""

    event: Event
    sequence: int
    """Its number in the stream."""
    stored_at: datetime
    """UTC, by the clock of the NATS server."""
    stream: str
    """The identity of the stream: sequences of different streams cannot be compared."""


def from_nanoseconds(stored: int) -> datetime:
    """The time of so many nanoseconds since 1970, in UTC, cut to microseconds."""
    return _EPOCH + timedelta(microseconds=stored // 1000)


def to_line(event: Event) -> str:
    """Encode an event as one line of JSON with its object unchanged, without a newline."""
    return _encoder.encode(_builtins(event)).decode()


def to_archive_line(event: Event, sequence: int, stored_at: datetime) -> bytes:
    """Encode an event with its place in the stream, without a newline."""
    fields = _builtins(event)
    fields["sequence"] = sequence
    fields["storedAt"] = stored_at
    return _encoder.encode(fields)


def read_line(line: str | bytes) -> Event:
    """Decode the event of a line, its object byte for byte as recorded.

    Raises:
        msgspec.DecodeError: it is not an event; `msgspec.ValidationError` is one of these.
    """
    fields = _fields.decode(line)
    body = bytes(fields.pop("object", b"null"))
    found: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    event = msgspec.convert({**found, "object": None}, Event)
    return msgspec.structs.replace(event, object=None if body == b"null" else body)


def read_place(line: bytes) -> tuple[int, datetime]:
    """Decode the sequence and the time of a line of the archive.

    Raises:
        msgspec.DecodeError: it has none.
    """
    found = _place.decode(line)
    return found.sequence, found.stored_at


def _builtins(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event, builtin_types=(bytes,))
    fields["object"] = msgspec.Raw(event.object) if event.object is not None else None
    return fields
