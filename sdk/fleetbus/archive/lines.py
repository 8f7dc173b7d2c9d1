"""Events as JSON lines, as `fleetbus events -o json` writes them and as the archive holds them.

A line of the archive has two more fields, `sequence` and `storedAt`; readers of plain lines ignore
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from fleetbus_proto.events import UNREADABLE, Event

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NULL: Final = b"null"
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_any_value = msgspec.json.Decoder(msgspec.Raw)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


class _Place(msgspec.Struct, frozen=True, rename="camel"):
    sequence: int
    stored_at: Annotated[datetime, msgspec.Meta(tz=True)]


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
    """Encode an event as one line of JSON, without a newline.

    The object is unchanged, but for line breaks, which become spaces. Nobody has validated what
    came from the bus: an object that is not JSON is left out, and the event marked as degraded
    (rule W16). Otherwise whoever may publish for one cluster could write lines, or fields, that
    name another one.
    """
    return _encoder.encode(_builtins(event)).decode()


def to_archive_line(event: Event, sequence: int, stored_at: datetime) -> bytes:
    """Encode an event with its place in the stream, without a newline; otherwise as `to_line`."""
    fields = _builtins(event)
    fields["sequence"] = sequence
    fields["storedAt"] = stored_at
    return _encoder.encode(fields)


def read_line(line: str | bytes) -> Event:
    """Decode the event of a line, its object byte for byte as recorded.

    Raises:
        msgspec.DecodeError: it is not an event; `msgspec.ValidationError` is one of these.
    """
    try:
        fields = _fields.decode(line)
        body = bytes(fields.pop("object", _NULL))
        values: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        event = msgspec.convert({**values, "object": None}, Event)
    except (RecursionError, UnicodeDecodeError) as e:
        raise msgspec.DecodeError(str(e)) from e
    return msgspec.structs.replace(event, object=None if body == _NULL else body)


def read_place(line: bytes) -> tuple[int, datetime]:
    """Decode the sequence and the time of a line of the archive.

    Raises:
        msgspec.DecodeError: it has none, or a time without a zone.
    """
    try:
        place = _place.decode(line)
    except (RecursionError, UnicodeDecodeError) as e:
        raise msgspec.DecodeError(str(e)) from e
    return place.sequence, place.stored_at


def _builtins(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event, builtin_types=(bytes,))
    body = event.object
    if body is not None and not _is_json(body):
        body = None
        fields["degraded"] = event.degraded or UNREADABLE
    fields["object"] = msgspec.Raw(body.translate(_BREAKS)) if body is not None else None
    return fields


def _is_json(body: bytes) -> bool:
    """Whether it is exactly one value in UTF-8: the decoder does not look into its strings."""
    try:
        _any_value.decode(body)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
