"""The protobuf descriptors that a kubectl binary carries, as evidence for our own field table."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from fleetbus_emulator.apiserver.encoding.protobuf_wire import WireError, read_fields

# Field numbers of descriptor.proto.
FILE_PACKAGE, FILE_MESSAGE = 2, 4
MESSAGE_NAME, MESSAGE_FIELD, MESSAGE_NESTED = 1, 2, 3
FIELD_NAME, FIELD_NUMBER, FIELD_LABEL, FIELD_TYPE, FIELD_TYPE_NAME = 1, 3, 4, 5, 6
REPEATED, MESSAGE = 3, 11
SCALARS = {3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
LONGEST_FILE = 400_000


@dataclass(frozen=True)
class Described:
    name: str
    number: int
    type: str
    repeated: bool


def descriptors(binary: Path) -> dict[str, dict[int, Described]]:
    """The fields of every message of k8s.io by number; the entries of maps are messages too."""
    types: dict[str, dict[int, Described]] = {}
    data = binary.read_bytes()
    for start in re.finditer(rb"\x1f\x8b\x08", data):
        unpacker = zlib.decompressobj(31)
        try:
            raw = unpacker.decompress(data[start.start() : start.start() + LONGEST_FILE])
            if unpacker.eof and b"k8s.io" in raw:
                types |= _messages_of_file(raw)
        except (zlib.error, WireError, UnicodeDecodeError):
            continue  # three bytes that look like the beginning of a gzip stream
    return types


def _all(data: bytes, number: int) -> list[bytes]:
    return [v for n, v in read_fields(data) if n == number and isinstance(v, bytes)]


def _text(data: bytes, number: int) -> str:
    return next((value.decode() for value in _all(data, number)), "")


def _number(data: bytes, number: int) -> int:
    return next((v for n, v in read_fields(data) if n == number and isinstance(v, int)), 0)


def _messages_of_file(data: bytes) -> dict[str, dict[int, Described]]:
    package = _text(data, FILE_PACKAGE)
    messages: dict[str, dict[int, Described]] = {}
    for message in _all(data, FILE_MESSAGE):
        name = f"{package}.{_text(message, MESSAGE_NAME)}"
        messages[name] = _fields(message)
        for nested in _all(message, MESSAGE_NESTED):
            messages[f"{name}.{_text(nested, MESSAGE_NAME)}"] = _fields(nested)
    return messages


def _fields(message: bytes) -> dict[int, Described]:
    described = [
        Described(
            name=_text(field, FIELD_NAME),
            number=_number(field, FIELD_NUMBER),
            type=SCALARS.get(_number(field, FIELD_TYPE)) or _text(field, FIELD_TYPE_NAME)[1:],
            repeated=_number(field, FIELD_LABEL) == REPEATED,
        )
        for field in _all(message, MESSAGE_FIELD)
    ]
    return {field.number: field for field in described}
