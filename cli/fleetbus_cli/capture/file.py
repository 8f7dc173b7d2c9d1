"""Writes a capture to a file that appears whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from fleetbus.archive.lines import to_line
from fleetbus.errors import CaptureError
from fleetbus_cli.capture.format import CapturedObject, End, Header
from fleetbus_cli.whole_file import whole_file
from fleetbus_proto.events import Event

_LEVEL: Final = 4
"""Level of gzip: 6 takes twice the time for 5 % less."""
_encode = msgspec.json.Encoder().encode


class CaptureWriter:
    """Writes lines and counts them; `write_capture` makes one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.objects = 0
        self.events = 0

    def header(self, header: Header) -> None:
        """Write the first line."""
        self._line(_encode(header))

    def object(self, obj: CapturedObject) -> None:
        """Write an object."""
        self.objects += 1
        self._line(_encode(obj))

    def event(self, event: Event) -> None:
        """Write an event."""
        self.events += 1
        self._line(to_line(event).encode())

    def end(self) -> None:
        """Write the end mark."""
        digest = self._digest.hexdigest()
        self._line(_encode(End(objects=self.objects, events=self.events, sha256=digest)))

    def _line(self, text: bytes) -> None:
        line = text.replace(b"\n", b" ") + b"\n"  # of an object that was stored indented
        self._digest.update(line)
        self._stream.write(line)


@contextmanager
def write_capture(path: Path, *, force: bool = False) -> Generator[CaptureWriter]:
    """Write a capture that appears whole or not at all, for its owner's eyes only.

    Args:
        path: of the file.
        force: replace a file that exists.

    Raises:
        CaptureError: the file exists, or cannot be written.
    """
    check_place(path, force=force)
    try:
        with (
            whole_file(path, replaces=force) as raw,
            # Without name and time: the same content gives the same file.
            gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as stream,
        ):
            writer = CaptureWriter(cast("IO[bytes]", stream))
            yield writer
            writer.end()
    except FileExistsError:
        raise _exists(path) from None
    except OSError as e:
        raise CaptureError(f"{path}: {e.strerror or e}") from e


def check_place(path: Path, *, force: bool) -> None:
    """Check that a capture may be written to a path.

    Raises:
        CaptureError: it may not.
    """
    if path.is_dir():
        raise CaptureError(f"{path}: is a folder; name a file")
    if not force and path.exists():
        raise _exists(path)


def _exists(path: Path) -> CaptureError:
    return CaptureError(f"{path}: exists already; --force replaces it")
