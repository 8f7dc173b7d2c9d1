"""Notice that files changed, by asking for size and time: works on every mount."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta

Signature = tuple[tuple[str, int, int, int], ...]


async def watch_files(
    list_files: Callable[[], Iterable[pathlib.Path]], every: timedelta
) -> AsyncIterator[None]:
    """Yield once at the start and after each change of the set of files or of one of them."""
    seen: Signature | None = None
    while True:
        found = await asyncio.to_thread(_signature, list_files)
        if found != seen:
            seen = found
            yield
        await asyncio.sleep(every.total_seconds())


def _signature(list_files: Callable[[], Iterable[pathlib.Path]]) -> Signature:
    rows: list[tuple[str, int, int, int]] = []
    for path in list_files():
        try:
            stat = path.stat()
        except OSError:
            continue
        rows.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(rows))
