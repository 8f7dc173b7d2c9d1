"""Events that have left the stream, from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from fleetbus.archive import Archive, EventFilter, Hole
from fleetbus_query_api.past.stored_events import StoredEvent
from fleetbus_query_api.past.stream_window import Gap


@dataclass(slots=True)
class OlderEvents:
    """The events of a question that the stream has no more.

    Attributes:
        archive: where they are.
        start: the first time that is asked for.
        end: where the stream begins.
        turns: of the process; whole chunks are in memory while events of any name are read.
        gaps: what the archive lacks of that, once it was read.
    """

    archive: Archive
    start: datetime
    end: datetime
    turns: asyncio.Semaphore
    gaps: list[Gap] = field(default_factory=list[Gap])

    async def read(self, where: EventFilter) -> AsyncGenerator[StoredEvent]:
        """Yield events in the order of the stream.

        Raises:
            ArchiveError: the archive cannot be reached.
        """
        # Of one object the archive reads small parts only.
        async with self.turns if where.name is None else nullcontext():
            async for stored in self._read(where):
                yield stored

    async def _read(self, where: EventFilter) -> AsyncGenerator[StoredEvent]:
        holes: list[Hole] = []
        async for archived in self.archive.events(
            where, start=self.start, end=self.end, on_hole=holes.append
        ):
            yield StoredEvent(archived.event, archived.sequence, archived.stored_at)
        self.gaps += [
            Gap("", hole.end, f"the archive: {hole.reason}", since=hole.start) for hole in holes
        ]
