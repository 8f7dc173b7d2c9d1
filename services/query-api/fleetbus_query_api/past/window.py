"""The window of a question about the past (rule A9), and the older events of an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from fleetbus.archive import Archive, EventFilter, Hole
from fleetbus.bus.connection import Bus
from fleetbus.process.clock import rfc3339
from fleetbus.process.durations import parse_point
from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.errors import HistoryError
from fleetbus_query_api.past.connection import HistoryConnection
from fleetbus_query_api.past.stored_events import StoredEvent
from fleetbus_query_api.past.stream_window import Gap, Window, find_gaps, read_window

_ARCHIVE_READS: Final = 2
"""Questions at a time that read whole chunks of the archive, of 64 MiB and more each (rule A8)."""


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


@dataclass(frozen=True, slots=True)
class Asked:
    """A connection, and the time that a question is about.

    Attributes:
        bus: the connection.
        window: what the events cover.
        at: the time, inside the window.
        older: what a period has before the window, if there is an archive.
    """

    bus: Bus
    window: Window
    at: datetime
    older: OlderEvents | None = None

    @property
    def since(self) -> datetime:
        """Where a period begins."""
        return self.older.start if self.older is not None else self.at


class Windows:
    """Checks the times of questions.

    Args:
        connection: to NATS.
        reader: the snapshot.
        archive: has events that left the stream; None if there is none.
    """

    def __init__(
        self, *, connection: HistoryConnection, reader: SnapshotReader, archive: Archive | None
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._archive = archive
        self._archive_turns = asyncio.Semaphore(_ARCHIVE_READS)

    async def read(self) -> Window:
        """Look up the window.

        Raises:
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        return await read_window(self._connection.bus)

    async def ask(self, text: str) -> Asked:
        """Check a point in time.

        Args:
            text: as `parse_point` takes it.

        Raises:
            InvalidTime: it is malformed.
            OutsideWindow: it is before the window.
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        bus = self._connection.bus
        window = await read_window(bus)
        at = parse_point(text, now=window.end)
        window.require(at)
        return Asked(bus, window, at)

    async def ask_since(self, text: str) -> Asked:
        """Check where a period begins: of what is before the window the archive has the rest.

        Without an archive the period begins with the window.

        Raises: as `ask`, but for `OutsideWindow`.
        """
        bus = self._connection.bus
        window = await read_window(bus)
        at = parse_point(text, now=window.end)
        if at >= window.start or self._archive is None:
            return Asked(bus, window, max(at, window.start))
        older = OlderEvents(self._archive, at, window.start, self._archive_turns)
        return Asked(bus, window, window.start, older)

    def end(self, text: str, past: Asked) -> datetime:
        """Where a period ends that begins at the time of a question; empty means now.

        Raises:
            InvalidTime, HistoryError: it is malformed, or before the beginning.
        """
        if not text:
            return past.window.end
        end = parse_point(text, now=past.window.end)
        if end < past.at:
            raise HistoryError("`until` is before `since`")
        return end

    async def describe(self, past: Asked, clusters: Sequence[str], resource: str) -> dict[str, Any]:
        """The window with the gaps of a resource since the time of a question, for an answer."""
        gaps = await find_gaps(self._reader, dict.fromkeys(clusters, resource), past.since)
        if past.older is None:
            return render_window(past.window, gaps)
        window = replace(past.window, start=past.older.start)
        return render_window(window, [*past.older.gaps, *gaps])


def render_window(window: Window, gaps: Sequence[Gap] = ()) -> dict[str, Any]:
    """Render a window and its gaps."""
    return {
        "from": rfc3339(window.start),
        "to": rfc3339(window.end),
        "gaps": [
            {
                "cluster": gap.cluster or None,
                "from": rfc3339(gap.since) if gap.since is not None else None,
                "to": rfc3339(gap.until),
                "reason": gap.reason,
            }
            for gap in gaps
        ],
    }
