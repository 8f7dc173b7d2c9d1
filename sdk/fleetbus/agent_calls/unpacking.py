"""Unpacks the body of an answer piece by piece, however much it unpacks to (rule S7)."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Self

from fleetbus.kube.connection.response import BrokenOff

_PIECE: Final = 256 * 1024
"""Bytes that are unpacked at a time: a few hundred microseconds."""
_AUTOMATIC: Final = zlib.MAX_WBITS + 32
"""gzip or zlib, by the header."""


class Unpacked:
    """The body of an answer, unpacked.

    Args:
        next_chunk: returns the next packed piece; empty at the end.
    """

    def __init__(self, next_chunk: Callable[[], Awaitable[bytes]]) -> None:
        self._next_chunk = next_chunk
        self._unpack = zlib.decompressobj(_AUTOMATIC)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._unpack.eof:
            packed = self._unpack.unconsumed_tail or await self._next_chunk()
            if not packed:
                raise BrokenOff("the body ended before its time")
            try:
                if piece := self._unpack.decompress(packed, _PIECE):
                    return piece
            except zlib.error as e:
                raise BrokenOff(f"the body cannot be unpacked: {e}") from e
        if await self._next_chunk():
            raise BrokenOff("the body goes on after its end")
        raise StopAsyncIteration


class Plain:
    """The body of an answer that is not packed.

    Args:
        next_chunk: returns the next piece; empty at the end.
    """

    def __init__(self, next_chunk: Callable[[], Awaitable[bytes]]) -> None:
        self._next_chunk = next_chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._next_chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk


def unpacked(encoding: str, next_chunk: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """The body of an answer with this Content-Encoding.

    Raises:
        BrokenOff: nobody asked for this encoding.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return Plain(next_chunk)
    if encoding in ("gzip", "deflate"):
        return Unpacked(next_chunk)
    raise BrokenOff(f"the body is packed as {encoding[:100]!r}")
