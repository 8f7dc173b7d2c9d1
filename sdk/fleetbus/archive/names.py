"""The names of chunks, which alone show what the archive holds.

    v1/<stream>/<day>/<from>-<to>-<first sequence>-<last sequence>.jsonl.gz

A chunk holds every event of the stream from its first to its last sequence, also if the first and
last event in it have others: the stream holds messages that are no events. So the next chunk of the
same stream begins with the next sequence, or something is missing. Times are those at which NATS
stored the messages; the day is that of the end. Names sort by time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

ROOT: Final = "v1"
SUFFIX: Final = ".jsonl.gz"
_ROOTS: Final = re.compile(r"v[0-9]{1,9}")
_TIME: Final = "%Y%m%dT%H%M%S"
_NAME: Final = re.compile(r"(\d{8}T\d{9}Z)-(\d{8}T\d{9}Z)-(\d{1,20})-(\d{1,20})\.jsonl\.gz")
_CREATED: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z")
_GENERATION: Final = re.compile(r"[0-9]{1,9}")
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ChunkName:
    """The name of a chunk: the time and the sequences that it covers.

    Args:
        stream: the identity of the stream, see `stream_id`.
        start: from when the stream is covered, UTC: the end of the chunk before, if there is one.
        end: until when.
        first: the first sequence that is covered.
        last: the last one.
    """

    stream: str
    start: datetime
    end: datetime
    first: int
    last: int

    @property
    def path(self) -> str:
        """The path of the chunk in the archive; times are widened to whole milliseconds."""
        start, end = _text(self.start), _text(self.end + _MILLISECOND - timedelta(microseconds=1))
        day = folder_of(self.stream, self.end.date())
        return f"{day}/{start}-{end}-{self.first:020}-{self.last:020}{SUFFIX}"


def stream_id(created: str, generation: int = 1) -> str:
    """The identity of a stream; `age_of` sorts it by age.

    Args:
        created: when it was created, as NATS says it: RFC 3339 with nanoseconds, UTC.
        generation: counts how often the stream has lost its end, and so used numbers twice.
    """
    match = _CREATED.fullmatch(created)
    if match is None:
        raise ValueError(f"{created!r} is not when a stream was created")
    year, month, day, hour, minute, second, fraction = match.groups(default="")
    text = f"{year}{month}{day}T{hour}{minute}{second}{fraction:0<9}Z"
    return text if generation == 1 else f"{text}.{generation}"


def age_of(stream: str) -> tuple[str, int]:
    """When a stream was created, as its identity says it, and its generation; sorts by age."""
    created, _, generation = stream.partition(".")
    return created, int(generation) if _GENERATION.fullmatch(generation) else 1


def folder_of(stream: str, day: date) -> str:
    """The folder of the chunks that end on this day."""
    return f"{ROOT}/{stream}/{day.isoformat()}"


def read_name(path: str) -> ChunkName | None:
    """Parse the path of a chunk; None if it is the path of something else."""
    parts = path.split("/")
    match = _NAME.fullmatch(parts[-1])
    if len(parts) != 4 or parts[0] != ROOT or match is None:  # noqa: PLR2004 -- as above
        return None
    try:
        start, end = _time(match[1]), _time(match[2])
    except ValueError:
        return None
    return ChunkName(parts[1], start, end, int(match[3]), int(match[4]))


def is_newer_root(folder: str) -> bool:
    """Whether a folder of the archive has chunks in a format that this release does not know."""
    return _ROOTS.fullmatch(folder) is not None and int(folder[1:]) > int(ROOT[1:])


def read_day(folder: str) -> date | None:
    """The day of a folder of chunks; None if it is another folder."""
    try:
        return date.fromisoformat(folder.rsplit("/", 1)[-1])
    except ValueError:
        return None


def _text(time: datetime) -> str:
    return f"{time.astimezone(UTC).strftime(_TIME)}{time.microsecond // 1000:03}Z"


def _time(text: str) -> datetime:
    seconds = datetime.strptime(text[:15], _TIME).replace(tzinfo=UTC)
    return seconds + int(text[15:18]) * _MILLISECOND
