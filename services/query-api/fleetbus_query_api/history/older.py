"""Events that have left the stream, from the archive."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime

from fleetbus.archive import Archive, EventFilter, Hole
from fleetbus.history.stored_events import StoredEvent
from fleetbus.history.window import Gap


@dataclass(slots=True)
class OlderEvents:
    """The events of a question that the stream has no more.

    Attributes:
        archive: where they are.
        start: the first time that is asked for.
        end: where the stream begins.
        gaps: what the archive lacks of that, once it was read.
    """

    archive: Archive
    start: datetime
    end: datetime
    gaps: list[Gap] = field(default_factory=list[Gap])

    async def read(self, where: EventFilter) -> AsyncGenerator[StoredEvent]:
        """Yield events in the order of the stream.

        Raises:
            ArchiveError: the archive cannot be reached.
        """
        holes: list[Hole] = []
        async for one in self.archive.events(
            where, start=self.start, end=self.end, on_hole=holes.append
        ):
            yield StoredEvent(one.event, one.sequence, one.stored_at)
        self.gaps += [
            Gap("", hole.end, f"the archive: {hole.reason}", since=hole.start) for hole in holes
        ]
