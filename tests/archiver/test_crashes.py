"""The archiver is killed at each step: nothing is lost, and a reader sees nothing twice."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from fleetbus.archive import Hole
from support.eventually import eventually
from support.full import FULL
from support.rigs.archive import SOURCE, ArchiveRig
from support.servers.s3_server import S3Server

SLOW = timedelta(seconds=40)


def named(count: int, first: int = 1) -> list[str]:
    return [f"w{number}" for number in range(first, first + count)]


async def publish(rig: ArchiveRig, names: list[str]) -> None:
    await rig.publish(*(SOURCE.added(name, int(name[1:])) for name in names))


async def finish(rig: ArchiveRig, names: list[str]) -> None:
    """A new archiver completes the archive."""
    rig.spawn()
    await rig.archived(names, SLOW)
    holes = list[Hole]()
    assert [event.sequence for event in await rig.events(holes=holes)] == list(
        range(1, len(names) + 1)
    )
    assert holes == []


def puts(s3: S3Server) -> int:
    return sum(line.startswith("PUT") for line in s3.requests)


@pytest.mark.slow
async def test_b7_killed_before_a_chunk_is_stored_it_is_stored_by_the_next(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    s3.before_put = asyncio.Event()
    await publish(bucket_rig, named(50))
    child = bucket_rig.spawn()
    await eventually(lambda: puts(s3) == 1)
    child.kill()
    await publish(bucket_rig, named(10, 51))
    assert s3.objects == {}
    s3.before_put = None
    await finish(bucket_rig, named(60))


@pytest.mark.slow
async def test_b7_killed_between_the_store_and_the_acknowledgement_nothing_is_stored_twice(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    s3.after_put = asyncio.Event()
    await publish(bucket_rig, named(50))
    child = bucket_rig.spawn()
    await eventually(lambda: len(s3.objects) == 1)
    child.kill()
    await publish(bucket_rig, named(10, 51))
    s3.after_put = None
    (first,) = s3.objects
    await finish(bucket_rig, named(60))
    later = sorted(s3.objects)[1:]
    assert first.endswith(f"{1:020}-{50:020}.jsonl.gz")
    assert later[0].endswith(f"{51:020}-{60:020}.jsonl.gz")


@pytest.mark.full
async def test_b7_killed_after_the_acknowledgement_the_next_goes_on_behind_it(
    bucket_rig: ArchiveRig,
) -> None:
    await publish(bucket_rig, named(50))
    child = bucket_rig.spawn()
    await bucket_rig.archived(named(50), SLOW)
    child.kill()
    await publish(bucket_rig, named(10, 51))
    await finish(bucket_rig, named(60))


@pytest.mark.longer
@pytest.mark.full
async def test_b1_killed_at_any_time_under_load_nothing_is_lost_and_nothing_doubled(
    rig: ArchiveRig,
) -> None:
    expected, draw = list[str](), random.Random()
    child = rig.spawn(FLEETBUS_ARCHIVER_CHUNK_BYTES=str(64 * 1024))
    for _ in range(20 if FULL else 4):
        names = named(300, len(expected) + 1)
        await publish(rig, names)
        expected += names
        await asyncio.sleep(draw.uniform(0.3, 1.5))  # killed at any time
        child.kill()
        child.respawn()
    await finish(rig, expected)


async def test_a_killed_archiver_of_a_folder_leaves_no_unfinished_file_for_ever(
    rig: ArchiveRig,
) -> None:
    await publish(rig, named(5))
    day = rig.folder / "archive" / "v1" / "20261128T070000000000000Z" / "2026-11-28"
    day.mkdir(parents=True)
    partial = day / "20261128T070000000Z-20261128T070000000Z-1-2.jsonl.gz#1"
    partial.write_bytes(b"half")
    rig.start()
    await rig.archived(named(5))
    assert not partial.exists()


async def test_an_unfinished_file_that_cannot_be_removed_stops_nothing(rig: ArchiveRig) -> None:
    day = rig.folder / "archive" / "v1" / "20261128T070000000000000Z" / "2026-11-28"
    (day / "20261128T070000000Z-20261128T070000000Z-1-2.jsonl.gz#1").mkdir(parents=True)
    await rig.publish(SOURCE.added("web", 1))
    rig.start()
    await rig.archived(["web"])
