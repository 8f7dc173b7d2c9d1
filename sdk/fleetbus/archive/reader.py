"""Reads an archive: the events of a span of time, in order, and what is missing of them.

Per chunk one request for the index, and one for each run of members that can hold a wanted object;
the next chunks are fetched while one is decoded. A damaged chunk is reported and passed over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec

from fleetbus.archive.chunk import (
    END_BYTES,
    ChunkDamaged,
    Index,
    Member,
    read_end,
    read_index,
    read_member,
)
from fleetbus.archive.coverage import Coverage, Hole, Reason, find_coverage
from fleetbus.archive.filter import EventFilter, key_of
from fleetbus.archive.lines import StoredEvent, read_line, read_place
from fleetbus.archive.names import ROOT, ChunkName, age_of, folder_of, read_day, read_name
from fleetbus.archive.store import Access, ArchiveStore, ObjectGone, open_store

_TAIL: Final = 32 * 1024
"""Read from the end of a chunk at first: holds most indexes, and small chunks whole."""
_AHEAD: Final = 16
"""Chunks that are fetched at the same time, if few events of each are wanted."""
_WHOLE: Final = 2
"""… and if any number may be: a whole chunk is 64 MiB and more in memory."""
_GAP: Final = 256 * 1024
"""Members that are not further apart are read with one request."""
_EVERYTHING: Final = EventFilter()
_MIN: Final = datetime.min.replace(tzinfo=UTC)
_MAX: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Chunk:
    name: ChunkName
    path: str
    size: int


@dataclass(slots=True)
class _Contents:
    """The wanted events of some chunks, and what could not be read."""

    events: dict[int, StoredEvent] = field(default_factory=dict[int, StoredEvent])
    holes: list[Hole] = field(default_factory=list[Hole])


def open_archive(access: Access | str) -> Archive:
    """Open an archive for reading; nothing is contacted yet.

    Args:
        access: how to reach it; or its address, `file:///folder` or `s3://bucket/prefix`.

    Raises:
        ConfigError: the address or a file of it is wrong, or the library is not installed.
    """
    return Archive(open_store(Access(access) if isinstance(access, str) else access))


class Archive:
    """An archive of events, for reading; created by `open_archive`.

    Args:
        store: where it is.
    """

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store

    async def coverage(self, start: datetime, end: datetime) -> Coverage:
        """Find out what the archive covers of a span of time, and each hole in it.

        Damage inside chunks is only found when they are read.

        Args:
            start: aware of its time zone.
            end: likewise.

        Raises:
            ArchiveError: the archive cannot be listed.
        """
        chunks = await self._chunks(start, end)
        return find_coverage([chunk.name for chunk in chunks], start, end)

    async def events(
        self,
        where: EventFilter = _EVERYTHING,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        on_hole: Callable[[Hole], None] = lambda _hole: None,
    ) -> AsyncGenerator[StoredEvent]:
        """Yield the stored events of objects in the order of the stream, each once.

        Args:
            where: which objects.
            start: the earliest time at which NATS stored them; None for all of the archive.
            end: the first time that is too late; None for all.
            on_hole: called for each hole, before the events that follow it.

        Raises:
            ArchiveError: the archive cannot be reached; damaged chunks are holes instead.
        """
        begin, until = start or _MIN, end or _MAX
        chunks = await self._chunks(begin, until)
        if start is not None and end is not None:
            missing = find_coverage([chunk.name for chunk in chunks], start, end).holes
        else:
            missing = _inner_holes(chunks, begin, until)
        for hole in missing:
            on_hole(hole)
        selected = [
            chunk for chunk in chunks if chunk.name.end >= begin and chunk.name.start < until
        ]
        async for contents in self._contents(list(_groups(selected)), where, begin, until):
            for hole in contents.holes:
                on_hole(hole)
            for _, event in sorted(contents.events.items()):
                yield event

    async def _contents(
        self,
        groups: Sequence[Sequence[_Chunk]],
        where: EventFilter,
        start: datetime,
        end: datetime,
    ) -> AsyncGenerator[_Contents]:
        """Fetch ahead, and yield in order."""
        ahead = _WHOLE if where.name is None else _AHEAD
        running = deque[asyncio.Task[_Contents]]()
        try:
            for group in groups:
                body = self._read_group(group, where, start, end)
                running.append(asyncio.create_task(body, name=f"read {group[0].path}"))
                if len(running) >= ahead:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _read_group(
        self, group: Sequence[_Chunk], where: EventFilter, start: datetime, end: datetime
    ) -> _Contents:
        """Read chunks that overlap, because two archivers ran; mostly it is one."""
        contents, intact = _Contents(), list[ChunkName]()
        for chunk in group:
            chunk_contents = await self._read_chunk(chunk, where, start, end)
            contents.events.update(chunk_contents.events)
            contents.holes += chunk_contents.holes
            if not chunk_contents.holes:
                intact.append(chunk.name)
        contents.holes = [hole for hole in contents.holes if not _is_covered(hole, intact)]
        return contents

    async def _read_chunk(
        self, chunk: _Chunk, where: EventFilter, start: datetime, end: datetime
    ) -> _Contents:
        contents = _Contents()
        try:
            await self._read_members(chunk, contents, where, (start, end))
        except (ChunkDamaged, ObjectGone) as e:
            contents.holes.append(_damage(chunk, str(e)))
        return contents

    async def _read_members(
        self,
        chunk: _Chunk,
        contents: _Contents,
        where: EventFilter,
        span: tuple[datetime, datetime],
    ) -> None:
        index, tail = await self._index(chunk)
        members = [member for member in index.members if where.may_match(member.first, member.last)]
        for run in _runs(members):
            begin, until = run[0].offset, run[-1].offset + run[-1].length
            data = await self._bytes(chunk, begin, until, tail)
            some = await asyncio.to_thread(_decode, chunk, run, data, where, span)
            contents.events.update(some.events)
            contents.holes += some.holes

    async def _index(self, chunk: _Chunk) -> tuple[Index, bytes]:
        """The index, and the bytes from the end of the chunk that were read for it."""
        begin = max(0, chunk.size - _TAIL)
        tail = await self._store.read(chunk.path, begin, chunk.size)
        position = read_end(tail)
        if not 0 <= position <= chunk.size - END_BYTES:
            raise ChunkDamaged("the position of its index is outside of it")
        data = await self._bytes(chunk, position, chunk.size, tail)
        index = read_index(data)
        if any(not _is_inside(member, position) for member in index.members):
            raise ChunkDamaged("its index names a member outside of it")
        return index, tail

    async def _bytes(self, chunk: _Chunk, begin: int, end: int, tail: bytes) -> bytes:
        known_from = chunk.size - len(tail)
        if begin >= known_from:
            return tail[begin - known_from : end - known_from]
        return await self._store.read(chunk.path, begin, end)

    async def _chunks(self, start: datetime, end: datetime) -> list[_Chunk]:
        """The chunks from start to end, with those right before and after, in order."""
        await self._store.check_format()
        chunks = list[_Chunk]()
        for stream in await self._store.folders(ROOT):
            for day in _days(await self._store.folders(f"{ROOT}/{stream}"), start, end):
                for path, size in await self._store.list(folder_of(stream, day)):
                    if (name := read_name(path)) is not None:
                        chunks.append(_Chunk(name, path, size))
        return sorted(chunks, key=_order)


def _order(chunk: _Chunk) -> tuple[tuple[str, int], int, int]:
    return age_of(chunk.name.stream), chunk.name.first, chunk.name.last


def _days(folders: Sequence[str], start: datetime, end: datetime) -> list[date]:
    """The days of a stream from start to end, and one more at each side."""
    days = sorted(day for day in map(read_day, folders) if day is not None)
    # A chunk is in the folder of its end, which may be on the day after.
    last = end.date() if end.date() == date.max else end.date() + timedelta(days=1)
    before = [day for day in days if day < start.date()][-1:]
    after = [day for day in days if day > last][:1]
    return [*before, *(day for day in days if start.date() <= day <= last), *after]


def _groups(chunks: Sequence[_Chunk]) -> Iterator[list[_Chunk]]:
    """Chunks whose sequences overlap, together."""
    group, last = list[_Chunk](), 0
    for chunk in chunks:
        if group and (chunk.name.stream != group[0].name.stream or chunk.name.first > last):
            yield group
            group, last = [], 0
        group.append(chunk)
        last = max(last, chunk.name.last)
    if group:
        yield group


def _is_inside(member: Member, end: int) -> bool:
    return 0 <= member.offset < member.offset + member.length <= end


def _runs(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Members that are read with one request."""
    run = list[Member]()
    for member in members:
        if run and member.offset - (run[-1].offset + run[-1].length) > _GAP:
            yield run
            run = []
        run.append(member)
    if run:
        yield run


def _decode(
    chunk: _Chunk,
    run: Sequence[Member],
    data: bytes,
    where: EventFilter,
    span: tuple[datetime, datetime],
) -> _Contents:
    contents = _Contents()
    start = run[0].offset
    for member in run:
        begin = member.offset - start
        problem: Exception | None = None
        try:
            lines = read_member(data[begin : begin + member.length])
        except ChunkDamaged as e:
            problem, lines = e, []
        for line in lines:
            try:
                _take(contents, line, where, span, chunk.name.stream)
            except msgspec.DecodeError as e:
                problem = problem or e  # the other lines are of other events
        if problem is not None:
            objects = " to ".join("/".join(key) for key in (member.first, member.last))
            contents.holes.append(_damage(chunk, f"{problem}; objects {objects}"))
    return contents


def _take(
    contents: _Contents,
    line: bytes,
    where: EventFilter,
    span: tuple[datetime, datetime],
    stream: str,
) -> None:
    if where.name is not None and msgspec.json.encode(where.name) not in line:
        return  # most lines of a member are of other objects, and decoding is dear
    sequence, stored_at = read_place(line)
    if not span[0] <= stored_at < span[1]:
        return
    event = read_line(line)
    if where.matches(key_of(event)):
        contents.events[sequence] = StoredEvent(event, sequence, stored_at, stream)


def _damage(chunk: _Chunk, problem: str) -> Hole:
    name = chunk.name
    detail = f"{chunk.path}: {problem}"
    return Hole(name.start, name.end, Reason.DAMAGED, name.stream, name.first, name.last, detail)


def _is_covered(hole: Hole, intact: Sequence[ChunkName]) -> bool:
    first, last = hole.first or 0, hole.last or 0
    return any(chunk.first <= first and last <= chunk.last for chunk in intact)


def _inner_holes(chunks: Sequence[_Chunk], start: datetime, end: datetime) -> list[Hole]:
    """The holes between chunks: an open end of the span has none."""
    holes = find_coverage([chunk.name for chunk in chunks], start, end).holes
    return [hole for hole in holes if hole.reason in (Reason.MISSING, Reason.REPLACED)]
