"""Polls files for changes of size and time, which works on every kind of mount."""

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

    A change counts once two polls in a row agree: the beginning of a half-written file may be
    valid, and would look like a fleet that lost clusters.
    """
    reported: Signature | None = None
    before: Signature | None = None
    while True:
        signature = await asyncio.to_thread(signature_of, list_files)
        if reported is None or (signature == before and signature != reported):
            reported = signature
            yield
        before = signature
        await asyncio.sleep(every.total_seconds())


def signature_of(list_files: Callable[[], Iterable[pathlib.Path]]) -> Signature:
    """Name, time, size and inode of the files that exist."""
    rows: list[tuple[str, int, int, int]] = []
    for path in list_files():
        try:
            stat = path.stat()
        except OSError:
            continue
        rows.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(rows))
