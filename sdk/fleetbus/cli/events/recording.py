"""Events as lines of JSON: what `fleetbus events -o json` writes and `fleetbus replay` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fleetbus.errors import ConfigError
from fleetbus_proto.events import Event

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def to_line(event: Event) -> str:
    """An event as JSON, its object as it is; without an end of line."""
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    fields["object"] = msgspec.Raw(event.object) if event.object is not None else None
    return msgspec.json.encode(fields).decode()


def read_line(line: str | bytes) -> Event:
    """The event of a line, its object byte for byte as it was.

    Raises:
        msgspec.DecodeError: it is no event; `msgspec.ValidationError` is one of these.
    """
    fields = _fields.decode(line)
    body = bytes(fields.pop("object", b"null"))
    found: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    event = msgspec.convert({**found, "object": None}, Event)
    return msgspec.structs.replace(event, object=None if body == b"null" else body)


def read_recording(name: str, lines: Iterable[str]) -> Iterator[Event]:
    """The events of a file.

    Raises:
        ConfigError: a line is no event; the message has its number. Or the file is no text.
    """
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):  # an unreadable message, as it was told
                yield _read_numbered(name, number, line)
    except UnicodeDecodeError as e:
        raise ConfigError(f"{name}: not a recording: {e}") from e


def _read_numbered(name: str, number: int, line: str) -> Event:
    try:
        return read_line(line)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{name}:{number}: not an event: {e}") from e
