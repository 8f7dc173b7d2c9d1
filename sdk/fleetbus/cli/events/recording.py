"""Events as JSON lines, as `fleetbus events -o json` writes and `fleetbus replay` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fleetbus.errors import ConfigError
from fleetbus_proto.events import Event

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def to_line(event: Event) -> str:
    """Encode an event as one line of JSON with its object unchanged, without a newline."""
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    fields["object"] = msgspec.Raw(event.object) if event.object is not None else None
    return msgspec.json.encode(fields).decode()


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


def read_recording(name: str, lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a file.

    Raises:
        ConfigError: a line is not an event (the message has its number), or not UTF-8.
    """
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith(
                "#"
            ):  # `fleetbus events` writes an invalid message as a comment
                yield _read_numbered(name, number, line)
    except UnicodeDecodeError as e:
        raise ConfigError(f"{name}: not a recording: {e}") from e


def _read_numbered(name: str, number: int, line: str) -> Event:
    try:
        return read_line(line)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{name}:{number}: not an event: {e}") from e
