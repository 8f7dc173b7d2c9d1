"""The bytes of a chunk: plain gzip for everybody, and parts for who knows the index."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess

import pytest

from fleetbus.archive.chunk import (
    END_BYTES,
    MEMBER_BYTES,
    ChunkDamaged,
    Index,
    Line,
    read_end,
    read_index,
    read_member,
    write_chunk,
)
from fleetbus.archive.filter import EventFilter, Key, key_of
from fleetbus.archive.lines import from_nanoseconds, read_line, read_place, to_archive_line, to_line
from support.rows import each_row
from support.stores.snapshot import Source

STORED = 1_795_852_844_123_456_789


def lines(clusters: int = 3, objects: int = 20, changes: int = 3) -> list[Line]:
    """Changes of pods of some clusters, in a random order."""
    chunk_lines, sequence = list[Line](), 0
    for change in range(changes):
        for number in range(clusters * objects):
            source = Source(cluster=f"eu{number % clusters}")
            event = source.modified(f"pod-{number // clusters}", change + 1)
            sequence += 1
            text = to_archive_line(event, sequence, from_nanoseconds(STORED))
            chunk_lines.append(Line(key_of(event), sequence, text))
    random.Random(7).shuffle(chunk_lines)
    return chunk_lines


def index_of(chunk: bytes) -> Index:
    return read_index(chunk[read_end(chunk[-100:]) :])


def test_a_line_reads_back_as_the_event_with_its_place_and_its_object_byte_for_byte() -> None:
    event = Source().added("web", 7, body=b'{"metadata": {"name":"web"},\t"x":1e3}')
    line = to_archive_line(event, 42, from_nanoseconds(STORED))
    assert read_line(line) == event
    sequence, stored_at = read_place(line)
    assert sequence == 42
    assert stored_at.isoformat() == "2026-11-28T08:00:44.123456+00:00"
    assert json.loads(line)["storedAt"] == "2026-11-28T08:00:44.123456Z"


FORGED = b'"cluster":"us1","name":"forged"'


@each_row(
    "body",
    [
        b"null," + FORGED,
        b"{}}\n{" + FORGED,
        b'{"metadata":',
        b'{"a":"\xff"}',
        b'{"a":"\x1b[2J"}',
        b"",
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_w16_an_object_that_is_no_json_is_left_out_and_cannot_add_a_line_or_a_field(
    body: bytes,
) -> None:
    event = Source().added("web", 7, body=body)
    line = to_archive_line(event, 42, from_nanoseconds(STORED))
    assert b"\n" not in line
    read = read_line(line)
    assert (read.cluster, read.name, read.object) == (event.cluster, "web", None)
    assert read.degraded == "unreadable"
    assert json.loads(to_line(event))["object"] is None


def test_line_breaks_of_an_object_become_spaces() -> None:
    event = Source().added("web", 7, body=b'{\r\n "a":\n"\\n"}\n')
    assert read_line(to_line(event)).object == b'{   "a": "\\n"}'


def test_python_and_zcat_read_the_lines_of_a_chunk_and_nothing_else() -> None:
    chunk_lines = lines()
    chunk = write_chunk(chunk_lines)
    plain = gzip.decompress(chunk)
    assert sorted(plain.splitlines()) == sorted(line.text for line in chunk_lines)
    for program in (["zcat"], ["gzip", "-t"], ["node", "-e", _NODE]):
        if shutil.which(program[0]):
            ran = subprocess.run(program, input=chunk, capture_output=True, check=True)
            assert ran.stderr == b""
            assert ran.stdout == (plain if "-t" not in program else b"")


_NODE = "process.stdin.pipe(require('zlib').createGunzip()).pipe(process.stdout)"


def test_an_empty_chunk_is_a_valid_gzip_file_without_a_byte() -> None:
    chunk = write_chunk([])
    assert gzip.decompress(chunk) == b""
    assert index_of(chunk).members == []


def test_members_are_bounded_and_sorted_by_object_and_then_by_sequence() -> None:
    chunk = write_chunk(lines(objects=300, changes=5))
    index = index_of(chunk)
    assert len(index.members) > 3
    keys_read = list[tuple[Key, int]]()
    for member in index.members:
        texts = read_member(chunk[member.offset : member.offset + member.length])
        assert sum(map(len, texts)) < MEMBER_BYTES + 1000
        assert member.events == len(texts)
        keys = [(key_of(read_line(text)), read_place(text)[0]) for text in texts]
        assert (keys[0][0], keys[-1][0]) == (member.first, member.last)
        keys_read += keys
    assert keys_read == sorted(keys_read)
    assert len(keys_read) == index.events == 300 * 3 * 5


@each_row(
    "where",
    [
        EventFilter(),
        EventFilter(cluster="eu1"),
        EventFilter(group="core", resource="pods", cluster="eu1", namespace="prod", name="pod-7"),
        EventFilter(name="pod-7"),
        EventFilter(group="apps"),
        EventFilter(resource="pods", namespace="prod"),
        EventFilter(group="core", resource="pods", cluster="zz"),
    ],
)
def test_the_index_never_leaves_out_a_member_that_holds_a_wanted_event(where: EventFilter) -> None:
    chunk = write_chunk(lines(objects=300, changes=5))
    for member in index_of(chunk).members:
        texts = read_member(chunk[member.offset : member.offset + member.length])
        if any(where.matches(key_of(read_line(text))) for text in texts):
            assert where.may_match(member.first, member.last)


def test_one_object_is_in_one_or_two_members_of_many() -> None:
    where = EventFilter(
        group="core", resource="pods", cluster="eu1", namespace="prod", name="pod-7"
    )
    members = index_of(write_chunk(lines(objects=1000, changes=5))).members
    matching = [member for member in members if where.may_match(member.first, member.last)]
    assert 1 <= len(matching) <= 2
    assert len(members) > 20


def test_a_chunk_that_is_cut_anywhere_or_has_a_wrong_byte_in_its_end_is_noticed() -> None:
    chunk = write_chunk(lines())
    for length in (0, 1, END_BYTES - 1, len(chunk) // 2, len(chunk) - 1):
        with pytest.raises(ChunkDamaged):
            index_of(chunk[:length])
    for at in range(read_end(chunk), len(chunk)):
        wrong = bytearray(chunk)
        wrong[at] ^= 0x55
        try:
            damaged_index = index_of(bytes(wrong))
        except ChunkDamaged:
            continue
        assert damaged_index == index_of(chunk), "a byte of a header that says nothing"


def test_a_member_with_a_wrong_byte_or_without_its_end_is_noticed() -> None:
    chunk = write_chunk(lines())
    member = index_of(chunk).members[0]
    data = chunk[member.offset : member.offset + member.length]
    with pytest.raises(ChunkDamaged, match="is cut"):
        read_member(data[:-9])
    wrong = bytearray(data)
    wrong[len(data) // 2] ^= 0xFF
    with pytest.raises(ChunkDamaged, match="is damaged"):
        read_member(bytes(wrong))
