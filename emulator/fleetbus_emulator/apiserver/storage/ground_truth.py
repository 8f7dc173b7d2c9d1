"""The ground truth: every committed write of one cluster, numbered, for checkers.

Memory holds the latest writes; a file, if one is given, holds all. Numbers are the cursor, because
revisions go back when a backup is restored. An entry never changes.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import orjson
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from io import FileIO
    from pathlib import Path

log = structlog.get_logger()

MARK_EVERY = 1_000  # lines of the file from one remembered offset to the next

CommitType = Literal["ADDED", "MODIFIED", "DELETED", "ROLLED_BACK"]


class Commit(NamedTuple):
    """One committed write.

    Attributes:
        number: Counts the entries of the log, from 1.
        rv: The cluster's revision after it; a DELETED object's last resourceVersion.
        before: The object's resourceVersion before it; None for ADDED. For ROLLED_BACK the
            cluster's revision before.
        type: ROLLED_BACK is no write: the cluster returned to its state at `rv`, and the fields
            that name an object are empty.
        agent: The User-Agent of the request; empty for writes from within the process.
    """

    number: int
    time: datetime
    type: CommitType
    rv: int
    before: int | None
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    agent: str = ""

    def to_json(self) -> bytes:
        """The entry as one line of JSON, without the line's end."""
        return orjson.dumps(self._asdict())


def commit_from_json(line: bytes | str) -> Commit:
    """Read an entry.

    Raises:
        ValueError: It is none.
    """
    try:
        fields: dict[str, Any] = orjson.loads(line)
        fields["time"] = datetime.fromisoformat(fields["time"])
        return Commit(**fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no entry of a ground truth: {line!r}") from error


class Forgotten(LookupError):
    """Entries that were asked for are no longer known.

    Attributes:
        oldest: The number of the oldest entry that is known.
    """

    def __init__(self, oldest: int) -> None:
        super().__init__(f"entries before number {oldest} are forgotten")
        self.oldest = oldest


class GroundTruth:
    """The log.

    Args:
        capacity: How many entries memory holds.

    Attributes:
        record_problem: Why the file that was asked for is not written any more; empty if it is.
    """

    def __init__(self, capacity: int) -> None:
        self.entries: deque[Commit] = deque(maxlen=capacity)
        self.listeners: set[Callable[[], None]] = set()
        self.last = 0  # the number of the latest entry
        self.record_problem = ""
        self._record: _Record | None = None

    def append(self, commit: Commit) -> None:
        """Add the entry that has the next number."""
        self.last = commit.number
        self.entries.append(commit)
        if self._record is not None:
            self._write(commit, self._record)
        for listener in tuple(self.listeners):
            listener()

    def _write(self, commit: Commit, record: _Record) -> None:
        try:
            record.append(commit)
        except (OSError, ValueError) as error:  # the disk is full, or the file was closed
            # The write is committed, and subscribers are still to be notified: `record_problem` and
            # the log report that the record has stopped.
            self._record = None
            self.record_problem = f"{record.path} ends before number {commit.number}: {error}"
            log.error("ground_truth_record_stopped", problem=self.record_problem)  # noqa: TRY400

    def after(self, number: int, limit: int = 1_000) -> list[Commit]:
        """The entries behind one, oldest first.

        Raises:
            Forgotten: The next entry is not known any more.
        """
        oldest = self.last - len(self.entries) + 1
        if number + 1 >= oldest:
            return after(self.entries, number, limit)
        if self._record is not None and number + 1 >= self._record.first:
            return self._record.after(number, limit)
        raise Forgotten(oldest)

    @contextmanager
    def recording(self, path: Path) -> Generator[None]:
        """Write all entries to a file, those that memory holds first, while the context lasts.

        Each is a line of JSON; it reaches the file before the write is answered. If one cannot be
        written, the file ends with the line before it and `record_problem` says why.

        Raises:
            RuntimeError: They are being written to a file already.
            OSError: The file cannot be opened, or cannot take what memory holds.
        """
        if self._record is not None:
            raise RuntimeError("this ground truth is being recorded already")
        with path.open("wb", buffering=0) as file:
            record = _Record(path, file, first=self.last - len(self.entries) + 1)
            for commit in self.entries:
                record.append(commit)
            self._record, self.record_problem = record, ""
            try:
                yield
            finally:
                self._record = None


class _Record:
    """The file, with the offsets at which to begin reading."""

    def __init__(self, path: Path, file: FileIO, *, first: int) -> None:
        self.first = first
        self.path = path
        self._file = file
        self._marks: list[int] = []
        self._size = 0
        self._count = 0

    def append(self, commit: Commit) -> None:
        line = commit.to_json() + b"\n"
        self._write(line)
        if self._count % MARK_EVERY == 0:
            self._marks.append(self._size)
        self._size += len(line)
        self._count += 1

    def _write(self, line: bytes) -> None:
        """Write a line, whole or not at all."""
        written = 0
        try:
            while written < len(line):  # the last one before a disk is full may be cut
                written += self._file.write(line[written:])
        except OSError:
            if written:
                self._file.truncate(self._size)
            raise

    def after(self, number: int, limit: int) -> list[Commit]:
        position = number + 1 - self.first
        with self.path.open("rb") as file:
            file.seek(self._marks[position // MARK_EVERY])
            skipped = position % MARK_EVERY
            return [commit_from_json(line) for line in islice(file, skipped, skipped + limit)]


class Numbered(Protocol):
    """An entry of a log without gaps."""

    @property
    def number(self) -> int:
        """Its place in the log."""
        ...


Entry = TypeVar("Entry", bound=Numbered)


def after(entries: deque[Entry], number: int, limit: int) -> list[Entry]:
    """The entries behind a number, oldest first; those that the deque lost are left out."""
    if not entries:
        return []
    missing = entries[-1].number - number
    count = len(entries)
    if missing <= 0:
        return []
    if missing <= count // 2:  # who follows the log is near its end
        newest: Iterable[Entry] = islice(reversed(entries), missing)
        return list(newest)[::-1][:limit]
    skipped = max(0, count - missing)
    return list(islice(entries, skipped, skipped + limit))
