"""Divides the messages of one round into chunks: one, unless the stream has lost some in between.

A chunk claims every event from its first to its last sequence. Sequences that were not delivered
are mostly messages that are no events. But if the stream has dropped its beginning meanwhile, those
before its new beginning may have been events (rule B17): then the chunk ends before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from fleetbus.archive.chunk import Line
from fleetbus_archiver.position import Position


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that is not acknowledged yet."""

    sequence: int
    stored_at: datetime
    reply: str
    line: Line | None
    """None if it is not a valid event."""


@dataclass(slots=True)
class Segment:
    """The messages of one chunk, before it is written."""

    first: int
    last: int
    messages: list[PendingMessage] = field(default_factory=list[PendingMessage])


@dataclass(frozen=True, slots=True)
class Division:
    """The chunks of one round, and how many messages are missing between them at most."""

    segments: list[Segment]
    lost: int


def divide(
    messages: Sequence[PendingMessage],
    *,
    archived: int,
    delivered: int,
    until: int,
    stream_first: int,
) -> Division:
    """Divide the messages of a round.

    Args:
        messages: all that were delivered since the last chunk, sorted by sequence.
        archived: the last sequence that stored chunks cover.
        delivered: up to here all events were delivered.
        until: the last sequence that is covered now, if nothing was lost.
        stream_first: the first sequence that the stream still had after the delivery.
    """
    segments, lost = [Segment(archived + 1, delivered)], 0
    for message in messages:
        missing = _missing(segments[-1].last, message.sequence, stream_first)
        if missing:
            lost += missing
            segments.append(Segment(segments[-1].last + missing + 1, message.sequence))
        segments[-1].messages.append(message)
        segments[-1].last = max(segments[-1].last, message.sequence)
    missing = _missing(segments[-1].last, until + 1, stream_first)
    if missing:
        lost += missing
        segments.append(Segment(segments[-1].last + missing + 1, until))
    segments[-1].last = max(segments[-1].last, until)
    return Division([segment for segment in segments if segment.last >= segment.first], lost)


def times_of(
    segment: Segment, position: Position, covered: datetime | None
) -> tuple[datetime, datetime]:
    """From when until when a chunk covers the stream.

    Args:
        segment: what is in it.
        position: the end of the chunk before.
        covered: until when it covers the stream, if that is known.
    """
    times = [message.stored_at for message in segment.messages]
    if covered is not None:
        times.append(covered)
    follows = segment.first == position.archived + 1 and position.end is not None
    before = [position.end] if follows and position.end is not None else []
    # Without a message and a time it is what came before a gap.
    end = max(times or before or [datetime.now(UTC)])
    return min(chain(times, before, [end])), end


def _missing(last: int, following: int, stream_first: int) -> int:
    """Count the messages between two sequences the stream may have dropped undelivered."""
    return max(0, min(following, stream_first) - last - 1)
