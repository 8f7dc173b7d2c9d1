"""Reading an archive: in order, each event once, and every hole by its name."""

from __future__ import annotations

import gzip
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus.archive import Archive, EventFilter, Hole, Reason, open_archive
from fleetbus.archive.chunk import Line, Member, write_chunk
from fleetbus.archive.filter import key_of
from fleetbus.archive.lines import to_archive_line
from fleetbus.archive.names import stream_id
from fleetbus.archive.store import Access
from fleetbus.errors import ArchiveError, ConfigError
from support.rigs.archive_files import STREAM, ArchiveFiles, at, pod
from support.rows import each_row
from support.stores.snapshot import Source

OTHER = stream_id("2026-11-28T09:00:00Z")


@pytest.fixture
def files(tmp_path: Path) -> ArchiveFiles:
    return ArchiveFiles(tmp_path / "archive")


async def read(
    archive: Archive, where: EventFilter | None = None, **span: datetime
) -> tuple[list[int], list[Hole]]:
    """The sequences of the events, and the holes."""
    holes = list[Hole]()
    events = archive.events(where or EventFilter(), on_hole=holes.append, **span)
    return [event.sequence async for event in events], holes


async def test_events_come_in_the_order_of_the_stream_with_their_sequence_and_time(
    files: ArchiveFiles,
) -> None:
    await files.chunk(11, 20)
    await files.chunk(1, 10)
    events = [event async for event in files.archive.events()]
    assert [event.sequence for event in events] == list(range(1, 21))
    assert [event.event for event in events] == [pod(number) for number in range(1, 21)]
    assert events[0].stored_at == at(1 / 60)
    assert {event.stream for event in events} == {STREAM}


async def test_the_tenth_generation_of_a_stream_comes_after_the_ninth(files: ArchiveFiles) -> None:
    created = "2026-11-28T07:00:00.5Z"
    for generation in range(1, 12):
        first = 10 * generation
        name = stream_id(created, generation)
        await files.chunk(first, first + 9, stream=name, shift=timedelta(minutes=generation))
    sequences, _ = await read(files.archive)
    assert sequences == list(range(10, 120))
    coverage = await files.archive.coverage(at(0), at(60))
    assert [span.first for span in coverage.spans] == list(range(10, 120, 10))


async def test_filters_by_cluster_group_resource_namespace_name_and_time(
    files: ArchiveFiles,
) -> None:
    nodes = Source(group="core", resource="nodes")
    deployments = Source(cluster="us1", group="apps", resource="deployments")
    await files.chunk(
        1,
        6,
        events=[
            pod(1),
            pod(2, "us1"),
            nodes.added("n1", 3, namespace=""),
            deployments.added("web", 4, namespace="shop"),
            deployments.added("web", 5, namespace="prod"),
            deployments.added('a"b', 6, namespace="prod"),
        ],
    )
    for where, numbers in {
        EventFilter(cluster="us1"): [2, 4, 5, 6],
        EventFilter(group="core"): [1, 2, 3],
        EventFilter(resource="deployments"): [4, 5, 6],
        EventFilter(namespace=""): [3],
        EventFilter(name="web"): [4, 5],
        EventFilter(name='a"b'): [6],
        EventFilter("us1", "apps", "deployments", "shop", "web"): [4],
        EventFilter(cluster="eu"): [],
    }.items():
        assert await read(files.archive, where) == (numbers, [])
    sequences, _ = await read(files.archive, start=at(2 / 60), end=at(4 / 60))
    assert sequences == [2, 3]


async def test_an_archive_without_holes_is_covered_by_one_span(files: ArchiveFiles) -> None:
    for first in (1, 101, 201):
        await files.chunk(first, first + 99)
    coverage = await files.archive.coverage(at(1), at(4))
    assert coverage.is_complete
    (span,) = coverage.spans
    assert (span.first, span.last, span.chunks, span.stream) == (1, 300, 3, STREAM)


async def test_a_missing_chunk_is_a_hole_with_its_times_and_sequences(files: ArchiveFiles) -> None:
    await files.chunk(1, 60)
    gone = await files.chunk(61, 120)
    await files.chunk(121, 180)
    gone.unlink()
    expected = Hole(at(1), at(2), Reason.MISSING, STREAM, 61, 120)
    assert (await files.archive.coverage(at(0), at(3))).holes == [expected]
    sequences, holes = await read(files.archive)
    assert sequences == [*range(1, 61), *range(121, 181)]
    assert holes == [expected]


async def test_before_the_archive_and_after_its_end_there_are_holes_that_say_so(
    files: ArchiveFiles,
) -> None:
    await files.chunk(61, 120)
    before, after = (await files.archive.coverage(at(-5), at(9))).holes
    assert before == Hole(at(-5), at(1), Reason.BEFORE, STREAM, None, 60)
    assert after == Hole(at(2), at(9), Reason.NOT_YET, STREAM, 121, None)
    (all_of_it,) = (await files.archive.coverage(at(-9), at(-8))).holes
    assert all_of_it.reason is Reason.BEFORE
    (none_yet,) = (await files.archive.coverage(at(8), at(9))).holes
    assert none_yet.reason is Reason.NOT_YET


async def test_an_empty_archive_is_one_hole(files: ArchiveFiles) -> None:
    assert (await files.archive.coverage(at(0), at(1))).holes == [Hole(at(0), at(1), Reason.BEFORE)]
    assert await read(files.archive) == ([], [])


async def test_another_stream_is_a_hole_with_both_names_and_what_its_beginning_lacks(
    files: ArchiveFiles,
) -> None:
    await files.chunk(1, 60)
    await files.chunk(5, 60, stream=OTHER, shift=timedelta(minutes=90))
    replaced, missing = (await files.archive.coverage(at(0), at(91))).holes
    begin = at(90) + timedelta(seconds=4)
    assert replaced == Hole(at(1), begin, Reason.REPLACED, STREAM, 61, None, OTHER)
    assert missing.reason is Reason.MISSING
    assert (missing.stream, missing.first, missing.last) == (OTHER, 1, 4)
    places = [(event.stream, event.sequence) async for event in files.archive.events()]
    assert places == [(STREAM, n) for n in range(1, 61)] + [(OTHER, n) for n in range(5, 61)]


async def test_chunks_of_weeks_are_found_without_a_look_at_the_other_days(
    files: ArchiveFiles,
) -> None:
    for day in range(40):
        first = 10 * day + 1
        await files.chunk(first, first + 9, shift=timedelta(days=day))
    start, end = at(0) + timedelta(days=20), at(5) + timedelta(days=21)
    sequences, holes = await read(files.archive, start=start, end=end)
    assert sequences == list(range(201, 221))
    assert holes == []


async def test_the_clock_of_the_server_going_back_loses_no_event_and_makes_no_hole(
    files: ArchiveFiles,
) -> None:
    await files.chunk(1, 60)
    back = timedelta(hours=-9)  # also to the day before
    await files.chunk(61, 120, shift=back)
    assert await read(files.archive) == (list(range(1, 121)), [])
    sequences, _ = await read(files.archive, start=at(1) + back, end=at(3) + back)
    assert sequences == list(range(61, 121))


async def test_two_archivers_that_stored_the_same_double_nothing(files: ArchiveFiles) -> None:
    await files.chunk(1, 60)
    await files.chunk(31, 90)
    await files.chunk(91, 95)
    await files.chunk(31, 90, shift=timedelta(milliseconds=7))
    assert await read(files.archive) == (list(range(1, 96)), [])


@pytest.mark.parametrize("damage", ["cut", "empty", "no chunk", "wrong byte", "plain gzip"])
async def test_a_damaged_chunk_is_a_hole_and_the_rest_is_read(
    files: ArchiveFiles, damage: str
) -> None:
    await files.chunk(1, 60)
    path = await files.chunk(61, 120)
    await files.chunk(121, 180)
    data = path.read_bytes()
    path.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "empty": b"",
            "no chunk": b"x" * 5000,
            "wrong byte": data[:100] + bytes([data[100] ^ 0xFF]) + data[101:],
            "plain gzip": gzip.compress(b"{}\n"),
        }[damage]
    )
    sequences, (hole,) = await read(files.archive)
    assert sequences == [*range(1, 61), *range(121, 181)]
    assert (hole.reason, hole.first, hole.last) == (Reason.DAMAGED, 61, 120)
    assert (hole.start, hole.end) == (at(1), at(2))
    assert path.name in hole.detail


async def test_a_damaged_member_costs_its_objects_only(files: ArchiveFiles) -> None:
    path = await files.chunk(1, 3000)
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF  # in the first of several members
    path.write_bytes(bytes(data))
    sequences, (hole,) = await read(files.archive)
    assert 1500 < len(sequences) < 3000
    assert sequences == sorted(sequences)
    assert "objects core/pods/eu1/prod/p1 to " in hole.detail
    last = EventFilter("eu1", "core", "pods", "prod", "p999")  # and so in the last member
    assert await read(files.archive, last) == ([999], [])


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"sequence":5}',
        b'{"sequence":5,"storedAt":"2026-11-28T08:00:05"}',
        b'{"sequence":5,"storedAt":"2026-11-28T08:00:05Z","object":' + b"[" * 100_000,
        b'{"sequence":5,"storedAt":"2026-11-28T08:00:05Z","name":"\xff"}',
    ],
    ids=lambda text: text[:50],
)
async def test_a_damaged_line_costs_its_event_only(files: ArchiveFiles, text: bytes) -> None:
    times = [at(number / 60) for number in range(61)]
    lines = [
        Line(key_of(pod(n)), n, text if n == 5 else to_archive_line(pod(n), n, times[n]))
        for n in range(1, 61)
    ]
    path = await files.chunk(1, 60)
    path.write_bytes(write_chunk(lines))
    sequences, (hole,) = await read(files.archive)
    assert sequences == [*range(1, 5), *range(6, 61)]
    assert (hole.reason, hole.first, hole.last) == (Reason.DAMAGED, 1, 60)


@pytest.mark.parametrize("shift", [-1, 10**9])
async def test_an_index_that_leads_out_of_its_chunk_is_damage(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    await files.chunk(1, 60)

    def moved(offset: int, *fields: Any) -> Member:
        return Member(offset + shift, *fields)

    with monkeypatch.context() as hostile:
        hostile.setattr("fleetbus.archive.chunk.Member", moved)
        await files.chunk(61, 120)
    sequences, (hole,) = await read(files.archive)
    assert sequences == [*range(1, 61)]
    assert "its index names a member outside of it" in hole.detail


async def test_a_member_that_unpacks_to_more_than_any_chunk_has_is_damage(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await files.chunk(1, 1)
    path.write_bytes(write_chunk([Line(key_of(pod(1)), 1, b" " * 3 * 1024**2)]))
    monkeypatch.setattr("fleetbus.archive.chunk.MOST_UNPACKED", 1024**2)
    _, (hole,) = await read(files.archive)
    assert "unpacks to more than any chunk has" in hole.detail


async def test_a_damaged_chunk_that_another_one_covers_is_no_hole(files: ArchiveFiles) -> None:
    await files.chunk(1, 60)
    path = await files.chunk(1, 60, shift=timedelta(milliseconds=3))
    path.write_bytes(b"")
    assert await read(files.archive) == (list(range(1, 61)), [])


async def test_a_chunk_of_a_later_format_is_a_hole_that_names_its_version(
    files: ArchiveFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("fleetbus.archive.chunk.VERSION", 2)
        data = write_chunk([])
    path = await files.chunk(1, 60)
    path.write_bytes(data)
    _, (hole,) = await read(files.archive)
    assert "format version 2, and this release knows 1" in hole.detail


async def test_a_chunk_that_is_deleted_while_it_is_read_is_a_hole(files: ArchiveFiles) -> None:
    for first in range(1, 301, 10):
        await files.chunk(first, first + 9)
    holes, sequences = list[Hole](), list[int]()
    async for event in files.archive.events(on_hole=holes.append):
        if not sequences:
            shutil.rmtree(files.folder / "v1" / STREAM)
        sequences.append(event.sequence)
    assert sequences[0] == 1
    assert len(holes) > 20
    assert all("is gone" in hole.detail for hole in holes)


async def test_a_folder_that_cannot_be_read_is_an_error_and_no_hole(files: ArchiveFiles) -> None:
    path = await files.chunk(1, 60)
    path.unlink()
    path.mkdir()  # and so no file
    (path / "x").touch()
    assert await read(files.archive) == ([], [])
    day = path.parent
    shutil.rmtree(day)
    day.symlink_to(day)
    with pytest.raises(ArchiveError, match=r"cannot list v1"):
        await read(files.archive)


@each_row(
    ("url", "message"),
    [
        ("/var/archive", "an archive is file:///folder or s3://bucket/prefix"),
        ("file://host/folder", "an archive is file:///folder"),
        ("gs://bucket", "an archive is file:///folder"),
        ("s3://key:secret@bucket", "s3://…@bucket: an archive is"),
        ("file:///nowhere/at/all", "/nowhere/at/all"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_allowed(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_archive(Access(url))
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)
