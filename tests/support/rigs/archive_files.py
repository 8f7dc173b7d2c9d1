"""Archives written by hand, chunk by chunk, without a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fleetbus.archive import Access, Archive, open_archive
from fleetbus.archive.chunk import Line, write_chunk
from fleetbus.archive.filter import key_of
from fleetbus.archive.lines import to_archive_line
from fleetbus.archive.names import ChunkName, stream_id
from fleetbus.archive.store import open_store
from fleetbus_proto.events import Event
from support.stores.snapshot import Source

BEGIN: Final = datetime(2026, 11, 28, 8, tzinfo=UTC)
STREAM: Final = stream_id("2026-11-28T07:00:00.5Z")
PODS: Final = Source()


def at(minutes: float) -> datetime:
    """So many minutes after the beginning."""
    return BEGIN + timedelta(minutes=minutes)


def pod(number: int, cluster: str = "eu1") -> Event:
    """The event with this sequence, of a pod of its own."""
    return Source(cluster=cluster).added(f"p{number}", number)


class ArchiveFiles:
    """An archive in a folder; a sequence is stored one second after the one before.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._store = open_store(self.access)

    @property
    def access(self) -> Access:
        """Return how to reach it."""
        return Access(f"file://{self.folder}")

    @property
    def archive(self) -> Archive:
        """A reader of it."""
        return open_archive(self.access)

    async def chunk(
        self,
        first: int,
        last: int,
        *,
        stream: str = STREAM,
        events: Iterable[Event] | None = None,
        shift: timedelta = timedelta(),
    ) -> Path:
        """Write the chunk of these sequences; returns its file."""
        stored = list(events) if events is not None else [pod(n) for n in range(first, last + 1)]
        times = [BEGIN + shift + timedelta(seconds=n) for n in range(first - 1, last + 1)]
        lines = [
            Line(key_of(event), number, to_archive_line(event, number, times[number - first + 1]))
            for number, event in enumerate(stored, start=first)
        ]
        name = ChunkName(stream, times[0], times[-1], first, last)
        await self._store.put(name.path, write_chunk(lines))
        return self.folder / name.path
