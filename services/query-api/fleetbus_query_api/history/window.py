"""The window of a question about the past, as answers name it (rule A9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetbus.bus.connection import Bus
from fleetbus.history.errors import HistoryError
from fleetbus.history.times import parse_point
from fleetbus.history.window import Gap, Window, find_gaps, read_window
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.history.connection import HistoryConnection


@dataclass(frozen=True, slots=True)
class Asked:
    """A connection, and the time that a question is about.

    Attributes:
        bus: the connection.
        window: what the events cover.
        at: the time, inside the window.
    """

    bus: Bus
    window: Window
    at: datetime


class Windows:
    """Checks the times of questions.

    Args:
        connection: to NATS.
        reader: the snapshot.
    """

    def __init__(self, *, connection: HistoryConnection, reader: SnapshotReader) -> None:
        self._connection = connection
        self._reader = reader

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
            HistoryError: it is malformed.
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
        """Check where a period begins: that of the window is taken, if it is asked for more.

        Raises: as `ask`, but for `OutsideWindow`.
        """
        bus = self._connection.bus
        window = await read_window(bus)
        return Asked(bus, window, max(parse_point(text, now=window.end), window.start))

    def end(self, text: str, past: Asked) -> datetime:
        """Where a period ends that begins at the time of a question; empty means now.

        Raises:
            HistoryError: it is malformed, or before the beginning.
        """
        if not text:
            return past.window.end
        end = parse_point(text, now=past.window.end)
        if end < past.at:
            raise HistoryError("`until` is before `since`")
        return end

    async def describe(
        self, window: Window, clusters: Sequence[str], resource: str, since: datetime
    ) -> dict[str, Any]:
        """The window with the gaps of a resource since a time, for an answer."""
        gaps = await find_gaps(self._reader, dict.fromkeys(clusters, resource), since)
        return render_window(window, gaps)


def render_window(window: Window, gaps: Sequence[Gap] = ()) -> dict[str, Any]:
    """Render a window and its gaps."""
    return {
        "from": rfc3339(window.start),
        "to": rfc3339(window.end),
        "gaps": [
            {
                "cluster": gap.cluster or None,
                "from": None,
                "to": rfc3339(gap.until),
                "reason": gap.reason,
            }
            for gap in gaps
        ],
    }
