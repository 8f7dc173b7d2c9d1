"""Divides the rows of a page into reads of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetbus.snapshot.reads.point_reads import MOST, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fleetbus.snapshot.reads.picking import Picked
    from fleetbus_proto.keys import SnapshotKeys

_BYTES: Final = 1024 * 1024
"""Size of the bodies in one request: what the server sends, and this process receives, while others
wait."""
_UNMEASURED: Final = 8 * 1024
"""Bytes that a row is taken to have whose body nobody has measured."""


def split_rows(rows: Sequence[Picked]) -> Iterator[Sequence[Picked]]:
    """Divide rows into chunks that are read at once."""
    start, size = 0, 0
    for at, row in enumerate(rows):
        size += row.size or _UNMEASURED
        if at > start and (size > _BYTES or at - start >= MOST):
            yield rows[start:at]
            start, size = at, row.size or _UNMEASURED
    if start < len(rows):
        yield rows[start:]


def place_rows(keys: SnapshotKeys, resource: str, rows: Sequence[Picked]) -> Iterator[Place]:
    """Where the snapshot keeps the rows."""
    current: tuple[str, str, str, int] = ("", "", "", 0)
    for row in rows:
        if row.cluster != current[0]:
            current = (
                row.cluster,
                keys.guards(row.cluster, resource),
                keys.bodies(row.cluster, resource),
                keys.shard_of(row.cluster),
            )
        _, guards, bodies, shard = current
        yield Place(guards, bodies, row.key, shard)
