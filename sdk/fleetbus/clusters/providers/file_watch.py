"""Notice that files changed, by asking for size and time: works on every mount."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import timedelta

Signature = tuple[tuple[str, int, int, int], ...]


async def watch_files(
    list_files: Callable[[], Iterable[pathlib.Path]], every: timedelta
) -> AsyncGenerator[None]:
    """Yield once at the start and after each change of the set of files or of one of them.

    A change is told when two looks have seen the same: the beginning of a file that is still being
    written may be valid, and would be a fleet that lost clusters.
    """
    told: Signature | None = None
    before: Signature | None = None
    while True:
        found = await asyncio.to_thread(signature_of, list_files)
        if told is None or (found == before and found != told):
            told = found
            yield
        before = found
        await asyncio.sleep(every.total_seconds())


def signature_of(list_files: Callable[[], Iterable[pathlib.Path]]) -> Signature:
    """Name, time, size and inode of those that exist."""
    rows: list[tuple[str, int, int, int]] = []
    for path in list_files():
        try:
            stat = path.stat()
        except OSError:
            continue
        rows.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(rows))
