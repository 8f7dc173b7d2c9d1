"""The protobuf wire format: a message as numbered values, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10


class WireError(Exception):
    """The bytes are no protobuf message."""


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order, as (number, value).

    A varint is a number without sign; anything else is its bytes.

    Raises:
        WireError: The bytes are no message.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"field number 0 at byte {position}")
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == BYTES:
            length, position = _varint(data, position)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise WireError(f"wire type {kind} at byte {position}")
        if position + length > len(data):
            raise WireError(f"the message ends within field {number}")
        yield number, data[position : position + length]
        position += length


def read_varints(data: bytes) -> list[int]:
    """The numbers of a packed list.

    Raises:
        WireError: The last one is cut off.
    """
    numbers: list[int] = []
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        numbers.append(value)
    return numbers


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            return value, position + index + 1
    raise WireError(f"no number at byte {position}")


def write_field(number: int, value: int | str | bytes) -> bytes:
    """A field: a number as a varint, a string or a message with its length."""
    if isinstance(value, int):
        return _written(number << 3 | VARINT) + _written(value)
    data = value.encode() if isinstance(value, str) else value
    return _written(number << 3 | BYTES) + _written(len(data)) + data


def _written(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte, the highest says that more follows
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
