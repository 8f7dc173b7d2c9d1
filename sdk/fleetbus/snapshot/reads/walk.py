"""Iterates over large keys in chunks: over the keys of a resource in order, over a hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

CHUNK = 1_000


class Range(NamedTuple):
    """Bounds of ZRANGEBYLEX."""

    low: bytes
    high: bytes


EVERYTHING = Range(b"-", b"+")


def range_of(namespace: str | None, name: str | None = None) -> Range:
    """The range of one namespace, or of one object; all keys without a namespace."""
    if namespace is None:
        return EVERYTHING
    start = f"[{namespace}/{name or ''}".encode()
    if name is not None:
        return Range(start, start)
    return Range(start, f"({namespace}0".encode())  # "0" is the byte after "/"


async def walk_members(
    redis: Redis, zset: str, bounds: Range = EVERYTHING, *, chunk: int = CHUNK
) -> AsyncIterator[list[bytes]]:
    """Yield the members of a ZSET with equal scores by name; some may be removed meanwhile."""
    low = bounds.low
    while True:
        raw = await redis.zrangebylex(zset, low, bounds.high, start=0, num=chunk)
        members = cast("list[bytes]", raw)
        if members:
            yield members
        if len(members) < chunk:
            return
        low = b"(" + members[-1]


async def scan_hash(
    redis: Redis, name: str, *, chunk: int, match: str | None = None
) -> AsyncIterator[dict[bytes, bytes]]:
    """Yield the fields of a HASH in batches; some may come twice, or change meanwhile."""
    cursor = -1
    while cursor:
        cursor, fields = cast(
            "tuple[int, dict[bytes, bytes]]",
            await redis.hscan(name, max(cursor, 0), match=match, count=chunk),
        )
        yield fields
