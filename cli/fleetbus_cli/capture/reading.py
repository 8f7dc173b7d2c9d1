"""Reads a capture, in parts of one line, and refuses one that is not whole."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from fleetbus.archive.lines import read_line
from fleetbus.errors import CaptureError
from fleetbus_cli.capture.format import FORMAT, MAX_LINE, VERSION, CapturedObject, End, Header
from fleetbus_proto.events import Event

_T = TypeVar("_T")
_OBJECT: Final = b'{"type":"object.v1"'
_END: Final = b'{"type":"end.v1"'
_header = msgspec.json.Decoder(Header)
_object = msgspec.json.Decoder(CapturedObject)
_end = msgspec.json.Decoder(End)


class _Kind(msgspec.Struct):
    """The part of a header that tells a capture from another file."""

    format: str = ""
    version: int = 0


_kind = msgspec.json.Decoder(_Kind)


class Capture:
    """A capture that is whole; its objects and events may be read more than once.

    Attributes:
        path: of the file.
        header: the first line.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header

    @classmethod
    def open(cls, path: Path) -> Self:
        """Check a file from its first line to its last; nothing of it is kept in memory.

        Raises:
            CaptureError: it cannot be read, is no capture or of a newer format, or is not whole.
        """
        lines = _lines(path)
        header = _read_header(path, next(lines, b""))
        digest, objects, events = hashlib.sha256(), 0, 0
        digest.update(header.line)
        for line in lines:
            if line.startswith(_END):
                end = _decode(path, _end, line)
                actual = End(objects=objects, events=events, sha256=digest.hexdigest())
                _check_end(path, end, actual, remainder=next(lines, b""))
                return cls(path, header.value)
            digest.update(line)
            is_object = line.startswith(_OBJECT)
            objects, events = objects + is_object, events + (not is_object)
        raise _truncated(path)

    def objects(self) -> Iterator[CapturedObject]:
        """Yield the objects in the order of the file.

        Raises:
            CaptureError: the file has changed since it was opened.
        """
        for line in self._content():
            if not line.startswith(_OBJECT):
                return
            yield _decode(self.path, _object, line)

    def events(self) -> Iterator[Event]:
        """Yield the events, the oldest first; raises as `objects` does."""
        for line in self._content():
            if line.startswith(_OBJECT):
                continue
            try:
                yield read_line(line)
            except msgspec.DecodeError as e:
                raise CaptureError(f"{self.path}: a line is neither object nor event: {e}") from e

    def _content(self) -> Iterator[bytes]:
        lines = _lines(self.path)
        next(lines, b"")
        for line in lines:
            if line.startswith(_END):
                return
            yield line


class _HeaderLine(msgspec.Struct):
    line: bytes
    value: Header


def _read_header(path: Path, line: bytes) -> _HeaderLine:
    try:
        kind = _kind.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CaptureError(f"{path}: is not a capture of fleetbus") from e
    if kind.format != FORMAT:
        raise CaptureError(f"{path}: is not a capture of fleetbus")
    if kind.version > VERSION:
        raise CaptureError(
            f"{path}: is of format {kind.version}, and this fleetbus reads up to {VERSION}:"
            " open it with a newer release"
        )
    return _HeaderLine(line, _decode(path, _header, line))


def _check_end(path: Path, end: End, actual: End, *, remainder: bytes) -> None:
    if remainder:
        raise CaptureError(f"{path}: has more lines after its end mark")
    if end != actual:
        raise CaptureError(
            f"{path}: is damaged: its end mark does not fit its {actual.objects} objects and"
            f" {actual.events} events"
        )


def _decode(path: Path, decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CaptureError(f"{path}: a line is malformed: {e}") from e


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines with their newlines; the memory of one line."""
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n"):
                    raise _truncated(path)
                yield line
    except EOFError as e:
        raise _truncated(path) from e
    except gzip.BadGzipFile as e:
        raise CaptureError(f"{path}: is not a capture of fleetbus, or is damaged") from e
    except zlib.error as e:
        raise CaptureError(f"{path}: is damaged: {e}") from e
    except OSError as e:
        raise CaptureError(f"{path}: {e.strerror or e}") from e


def _truncated(path: Path) -> CaptureError:
    return CaptureError(f"{path}: is truncated: its end mark is missing; copy or capture it again")
