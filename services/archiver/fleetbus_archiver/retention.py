"""Deletes chunks that are older than is to be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from fleetbus.archive.names import ROOT, read_day, read_name
from fleetbus.archive.store import ArchiveStore
from fleetbus.errors import ArchiveError
from fleetbus_archiver import metrics

log = structlog.get_logger()

_INTERVAL: Final = timedelta(hours=1)
_AT_ONCE: Final = 1000


class Retention:
    """Deletes what is too old, every hour.

    Age is counted from the end of the newest chunk, if that is before now by our clock: neither a
    wrong clock nor an archiver that was away for long empties an archive.

    Args:
        store: the archive.
        keep: how long chunks are kept.
        newest: the end of the newest chunk; None while it is unknown.
    """

    def __init__(
        self, *, store: ArchiveStore, keep: timedelta, newest: Callable[[], datetime | None]
    ) -> None:
        self._store = store
        self._keep = keep
        self._newest = newest

    async def run(self) -> None:
        """Delete until cancelled."""
        while True:
            newest = self._newest()
            if newest is None:
                await asyncio.sleep(1)
                continue
            try:
                await self.delete_before(min(newest, datetime.now(UTC)) - self._keep)
            except ArchiveError as e:
                metrics.ERRORS.labels("delete").inc()
                log.warning("old_chunks_not_deleted", error=str(e))
            await asyncio.sleep(_INTERVAL.total_seconds())

    async def delete_before(self, limit: datetime) -> None:
        """Delete the chunks that end before a time.

        Raises:
            ArchiveError: some may be left.
        """
        for stream in await self._store.folders(ROOT):
            for day in await self._store.folders(f"{ROOT}/{stream}"):
                date = read_day(day)
                if date is not None and date <= limit.date():
                    await self._delete_of(f"{ROOT}/{stream}/{day}", limit)

    async def _delete_of(self, folder: str, limit: datetime) -> None:
        stored = await self._store.list(folder)
        old = [path for path, _ in stored if (name := read_name(path)) and name.end < limit]
        for at in range(0, len(old), _AT_ONCE):
            await self._store.delete(old[at : at + _AT_ONCE])
            metrics.DELETED.inc(len(old[at : at + _AT_ONCE]))
        if old:
            log.info("old_chunks_deleted", folder=folder, chunks=len(old))
