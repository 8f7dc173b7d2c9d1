"""The archive of events: chunks of gzipped JSON lines in a folder or an S3-compatible bucket.

The archiver writes it; `open_archive` reads it. docs/archive.md describes the format for readers in
any language. Names of chunks tell what is covered and what is missing; each chunk has an index, so
that the history of one object is read without reading everything.

Needs the extra `fleetbus[archive]`; importing this package does not load the library behind it.
"""

from fleetbus.archive.coverage import Coverage, Hole, Reason, Span
from fleetbus.archive.filter import EventFilter
from fleetbus.archive.lines import StoredEvent
from fleetbus.archive.reader import Archive, open_archive
from fleetbus.archive.store import Access

__all__ = [
    "Access",
    "Archive",
    "Coverage",
    "EventFilter",
    "Hole",
    "Reason",
    "Span",
    "StoredEvent",
    "open_archive",
]
