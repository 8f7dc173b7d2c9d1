"""One chunk: gzip members of sorted JSON lines, and an index that plain `zcat` does not show.

The lines are sorted by object and then by sequence, and cut into members of about 128 KiB. The
index names the first and the last object of each member and where it begins, so a reader fetches
the one or two members that can hold an object. Like the blocks of BGZF, the index is in the extra
field of gzip members without content, which every reader of gzip skips:

    member … member  index member …  end member (34 bytes)

An index member carries a part of the index, compressed JSON, in the subfield `FX`; the end member
carries the position of the first index member, 8 bytes little-endian, in the subfield `FT`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fleetbus.archive.filter import Key
from fleetbus.errors import ArchiveError

VERSION: Final = 1
MEMBER_BYTES: Final = 128 * 1024
"""Size of the lines in one member, before compression: more compress a little better, less are read
for one object."""
END_BYTES: Final = 34
_LEVEL: Final = 6
MOST_UNPACKED: Final = 64 * 1024**2
"""Limit of a decompressed member or index, which have a few megabytes: what is stored may be
anything."""
_PART: Final = 60_000
"""Size of the part of the index in one member; a subfield holds less than 64 KiB."""
_EXTRA: Final = 4
_HEADER: Final = struct.Struct("<4sIBB")
_SUBFIELD: Final = struct.Struct("<H2sH")
_EMPTY: Final = b"\x03\x00" + bytes(8)
"""A deflate block without content, a CRC of 0 and a length of 0."""
_GZIP: Final = 16 + zlib.MAX_WBITS


class ChunkDamaged(ArchiveError):
    """The bytes of a chunk are not as they were written."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chunk, without a newline."""

    key: Key
    sequence: int
    text: bytes


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A gzip member of the chunk."""

    offset: int
    length: int
    events: int
    first: Key
    """The first object in it."""
    last: Key


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """The members of a chunk, in order."""

    version: int
    events: int
    bytes: int
    """Size of all lines, before compression."""
    members: list[Member]


_decoder = msgspec.json.Decoder(Index)


def write_chunk(lines: Iterable[Line]) -> bytes:
    """Compress the lines into a chunk."""
    data, members, size = bytearray(), list[Member](), 0
    for group in _groups(sorted(lines, key=lambda line: (line.key, line.sequence))):
        text = b"".join(line.text + b"\n" for line in group)
        packed = _compress(text)
        members.append(Member(len(data), len(packed), len(group), group[0].key, group[-1].key))
        data += packed
        size += len(text)
    index = Index(VERSION, sum(member.events for member in members), size, members)
    return bytes(data + _index_members(index, len(data)))


def read_end(tail: bytes) -> int:
    """The position of the index, from the last bytes of a chunk.

    Raises:
        ChunkDamaged: the chunk does not end as a chunk does: it is cut, or damaged.
    """
    end = tail[-END_BYTES:]
    extra = _extra_of(end, b"FT")
    if extra is None or len(end) != END_BYTES:
        raise ChunkDamaged("it does not end with the position of its index: cut or damaged")
    return int.from_bytes(extra, "little")


def read_index(data: bytes) -> Index:
    """Decode the index, from where it begins to the end of the chunk.

    Raises:
        ChunkDamaged: it is damaged, or of a later version.
    """
    packed, at = bytearray(), 0
    while (extra := _extra_of(data[at:], b"FX")) is not None:
        packed += extra
        at += _member_length(extra)
    try:
        index = _decoder.decode(_unpack(packed, zlib.MAX_WBITS))
    except (zlib.error, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise ChunkDamaged(f"its index is damaged: {e}") from e
    if index.version != VERSION:
        raise ChunkDamaged(
            f"it has format version {index.version}, and this release knows {VERSION}: read it with"
            " the newer fleetbus that wrote it"
        )
    return index


def read_member(data: bytes) -> list[bytes]:
    """The lines of one member.

    Raises:
        ChunkDamaged: it is damaged.
    """
    try:
        text = _unpack(data, _GZIP)
    except zlib.error as e:
        raise ChunkDamaged(f"a gzip member is damaged: {e}") from e
    return text.split(b"\n")[:-1]


def _unpack(data: bytes | bytearray, window: int) -> bytes:
    unpack = zlib.decompressobj(window)
    text = unpack.decompress(data, MOST_UNPACKED)
    if not unpack.eof:
        raise ChunkDamaged("a part of it is cut, or unpacks to more than any chunk has")
    return text


def _groups(lines: Sequence[Line]) -> Iterator[list[Line]]:
    group, size = list[Line](), 0
    for line in lines:
        group.append(line)
        size += len(line.text) + 1
        if size >= MEMBER_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _compress(text: bytes) -> bytes:
    pack = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return pack.compress(text) + pack.flush()


def _index_members(index: Index, offset: int) -> bytes:
    packed = zlib.compress(msgspec.json.encode(index), 9)
    parts = [packed[at : at + _PART] for at in range(0, len(packed), _PART)]
    encoded = b"".join(_empty_member(b"FX", piece) for piece in parts)
    return encoded + _empty_member(b"FT", offset.to_bytes(8, "little"))


def _empty_member(name: bytes, extra: bytes) -> bytes:
    header = _HEADER.pack(b"\x1f\x8b\x08" + bytes([_EXTRA]), 0, 0, 0xFF)
    subfield = _SUBFIELD.pack(len(extra) + _EXTRA, name, len(extra))
    return header + subfield + extra + _EMPTY


def _member_length(extra: bytes) -> int:
    return _HEADER.size + _SUBFIELD.size + len(extra) + len(_EMPTY)


def _extra_of(data: bytes, name: bytes) -> bytes | None:
    """The subfield of the empty member with which the data begins; None if it is another."""
    if len(data) < END_BYTES - 8 or data[:4] != b"\x1f\x8b\x08" + bytes([_EXTRA]):
        return None
    total, subfield, length = _SUBFIELD.unpack_from(data, _HEADER.size)
    begin = _HEADER.size + _SUBFIELD.size
    extra = data[begin : begin + length]
    is_whole = len(extra) == length and total == length + _EXTRA
    return extra if subfield == name and is_whole else None
