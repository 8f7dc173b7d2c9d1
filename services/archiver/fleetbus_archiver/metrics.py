"""The metrics of the archiver."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

EVENTS: Final = Counter("fleetbus_archive_events_total", "Events in stored chunks.")
BYTES: Final = Counter(
    "fleetbus_archive_bytes_total",
    "Bytes in stored chunks: lines, and as stored, compressed.",
    ["form"],
)
CHUNKS: Final = Counter("fleetbus_archive_chunks_total", "Stored chunks.")
DELETED: Final = Counter(
    "fleetbus_archive_deleted_chunks_total", "Chunks that were older than is to be kept."
)
ERRORS: Final = Counter(
    "fleetbus_archive_errors_total",
    "Failed attempts: to read the bus, to store a chunk, to delete old ones.",
    ["step"],
)
LOST: Final = Counter(
    "fleetbus_archive_lost_messages_total",
    "Messages that the stream dropped before they were archived, at most: some may be no events.",
)
REJECTED: Final = Counter(
    "fleetbus_archive_rejected_messages_total", "Messages that are no valid events; not archived."
)
LAG_MESSAGES: Final = Gauge(
    "fleetbus_archive_lag_messages", "Messages that are not in a stored chunk yet."
)
LAG_SECONDS: Final = Gauge(
    "fleetbus_archive_lag_seconds",
    "Time since which nothing is archived; 0 if there is nothing to archive.",
)
LAST_CHUNK: Final = Gauge(
    "fleetbus_archive_last_chunk_timestamp_seconds", "When the last chunk was stored."
)
FORMS: Final = ("lines", "stored")
STEPS: Final = ("read", "store", "delete")


def create() -> None:
    """Create the series at 0, so that a rate has a start."""
    for form in FORMS:
        BYTES.labels(form)
    for step in STEPS:
        ERRORS.labels(step)
