"""The sources of answers about the past."""

from __future__ import annotations

from dataclasses import dataclass

from fleetbus.archive import Archive
from fleetbus_query_api.history.runs import RunReads
from fleetbus_query_api.past.connection import HistoryConnection


@dataclass(frozen=True, slots=True)
class HistorySources:
    """The sources of answers about the past.

    Attributes:
        connection: to NATS.
        runs: the last runs of controllers.
        archive: events that left the stream; None if there is none.
    """

    connection: HistoryConnection
    runs: RunReads
    archive: Archive | None = None
