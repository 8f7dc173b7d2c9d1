"""Finds out from the names of chunks which spans of time an archive covers, and its holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from fleetbus.archive.names import ChunkName


class Reason(StrEnum):
    """Why events are missing."""

    MISSING = "missing"
    """Between two chunks of one stream: deleted, or dropped by the stream before the archiver read
    them."""
    REPLACED = "stream replaced"
    """Another stream began; what the older one held at its end may not have been archived."""
    DAMAGED = "damaged"
    """A chunk, or a part of it, cannot be read."""
    BEFORE = "before the archive"
    """Older than the archive, or deleted by its retention."""
    NOT_YET = "not archived yet"


@dataclass(frozen=True, slots=True)
class Hole:
    """Events of a span of time that the archive cannot give."""

    start: datetime
    end: datetime
    reason: Reason
    stream: str = ""
    """The stream that the sequences are of; empty if there is none."""
    first: int | None = None
    """The first missing sequence; None if it is unknown."""
    last: int | None = None
    """The last one; None if it is unknown."""
    detail: str = ""
    """Which chunk, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time that chunks without a gap cover."""

    start: datetime
    end: datetime
    stream: str
    first: int
    last: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which events from start to end are in the archive, and which are not."""

    spans: list[Span]
    holes: list[Hole]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.holes


def find_coverage(chunks: Sequence[ChunkName], start: datetime, end: datetime) -> Coverage:
    """Find out what these chunks cover from start to end.

    Args:
        chunks: those of the span, sorted by stream and first sequence, with one more at each side.
        start: UTC.
        end: UTC.
    """
    spans = _spans(chunks)
    inside = [span for span in spans if span.end >= start and span.start <= end]
    holes = [_cut(hole, start, end) for hole in _holes(spans, start, end)]
    return Coverage(inside, [hole for hole in holes if hole.start < hole.end])


def _spans(chunks: Iterable[ChunkName]) -> list[Span]:
    spans = list[Span]()
    for chunk in chunks:
        last = spans[-1] if spans else None
        if last is not None and last.stream == chunk.stream and chunk.first <= last.last + 1:
            spans[-1] = replace(
                last,
                start=min(last.start, chunk.start),
                end=max(last.end, chunk.end),
                last=max(last.last, chunk.last),
                chunks=last.chunks + 1,
            )
        else:
            spans.append(Span(chunk.start, chunk.end, chunk.stream, chunk.first, chunk.last, 1))
    return spans


def _holes(spans: Sequence[Span], start: datetime, end: datetime) -> Iterator[Hole]:
    if not spans:
        yield Hole(start, end, Reason.BEFORE)
        return
    yield Hole(start, spans[0].start, Reason.BEFORE, spans[0].stream, last=spans[0].first - 1)
    for before, after in pairwise(spans):
        yield from _between(before, after)
    newest = spans[-1]
    yield Hole(newest.end, end, Reason.NOT_YET, newest.stream, first=newest.last + 1)


def _between(before: Span, after: Span) -> Iterator[Hole]:
    # The clock of the server may have been set back in between.
    early, late = min(before.end, after.start), max(before.end, after.start)
    if before.stream == after.stream:
        yield Hole(early, late, Reason.MISSING, before.stream, before.last + 1, after.first - 1)
        return
    yield Hole(early, late, Reason.REPLACED, before.stream, before.last + 1, None, after.stream)
    if after.first > 1:
        missing = (1, after.first - 1)
        yield Hole(early, late, Reason.MISSING, after.stream, *missing, "the stream's beginning")


def _cut(hole: Hole, start: datetime, end: datetime) -> Hole:
    return replace(hole, start=max(hole.start, start), end=min(hole.end, end))
