"""The names of chunks tell the stream, the span of time and the sequences."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetbus.archive.names import ChunkName, read_day, read_name, stream_id

CREATED = "2026-11-28T07:00:00.5Z"
NAME = ChunkName(
    stream_id(CREATED),
    datetime(2026, 11, 28, 23, 58, 0, 1_999, tzinfo=UTC),
    datetime(2026, 11, 29, 0, 3, 0, 1_001, tzinfo=UTC),
    1000,
    2000,
)


def test_a_name_reads_back_with_its_span_widened_to_milliseconds() -> None:
    assert NAME.path == (
        "v1/20261128T070000500000000Z/2026-11-29/20261128T235800001Z-20261129T000300002Z-"
        "00000000000000001000-00000000000000002000.jsonl.gz"
    )
    name = read_name(NAME.path)
    assert name is not None
    assert (name.stream, name.first, name.last) == (NAME.stream, 1000, 2000)
    assert name.start <= NAME.start
    assert name.end >= NAME.end
    assert name.path == NAME.path


def test_other_files_are_no_chunks() -> None:
    for path in (
        "",
        "v1/x",
        f"{NAME.path}#1",
        f"v2/{NAME.path[3:]}",
        NAME.path.replace("20261128T2358", "20261328T2358"),
        NAME.path.rsplit("/", 1)[-1],
    ):
        assert read_name(path) is None
    assert read_day("v1/a/2026-11-28") == datetime(2026, 11, 28, tzinfo=UTC).date()
    assert read_day("v1/a/lost+found") is None


def test_streams_sort_by_age_and_by_how_often_they_lost_their_end() -> None:
    ids = [
        stream_id("2026-11-28T07:00:00Z"),
        stream_id("2026-11-28T07:00:00.000000001Z"),
        stream_id(CREATED),
        stream_id(CREATED, 2),
        stream_id("2026-11-28T07:00:01Z"),
    ]
    assert ids == sorted(ids)
    with pytest.raises(ValueError, match="not when a stream was created"):
        stream_id("yesterday")
