"""Files of events as JSON lines, as `fleetbus events -o json` writes and `replay` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fleetbus.archive.lines import read_line
from fleetbus.errors import ConfigError
from fleetbus_proto.events import Event


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
