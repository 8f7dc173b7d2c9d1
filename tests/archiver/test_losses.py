"""Messages that the stream drops before they are archived are a hole, which is reported."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from fleetbus.archive import Hole, Reason
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.jetstream import StreamLimits, stream_info
from fleetbus_archiver.position import Position
from fleetbus_archiver.segments import PendingMessage, Segment, divide, times_of
from fleetbus_devfleet.processes.servers import nats_server
from support.eventually import eventually
from support.rigs.archive import SOURCE, ArchiveRig, archive_rig

SLOW = timedelta(seconds=30)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def named(count: int, first: int = 1) -> list[str]:
    return [f"w{number}" for number in range(first, first + count)]


async def publish(rig: ArchiveRig, names: list[str]) -> None:
    await rig.publish(*(SOURCE.added(name, int(name[1:])) for name in names))


def lost() -> float:
    return REGISTRY.get_sample_value("fleetbus_archive_lost_messages_total") or 0


async def holes_of(rig: ArchiveRig) -> list[Hole]:
    holes = list[Hole]()
    await rig.events(holes=holes)
    return holes


@pytest.mark.slow
async def test_b17_what_the_stream_dropped_before_it_was_archived_is_counted_and_a_hole(
    nats_url: str, tmp_path: Path
) -> None:
    limits = StreamLimits(max_bytes=64 * 1024)
    async with archive_rig(nats_url, tmp_path, limits=limits) as rig:
        await publish(rig, named(5))
        task = rig.start()
        await rig.archived(named(5))
        task.cancel()
        before = lost()
        await publish(rig, named(300, 6))
        info = await stream_info(rig.bus)
        assert info is not None
        first = int(info["state"]["first_seq"])
        assert first > 6
        rig.start()
        await rig.archived([*named(5), *named(305 - first + 1, first)])
        assert lost() == before + first - 6
        (hole,) = await holes_of(rig)
        assert (hole.reason, hole.first, hole.last) == (Reason.MISSING, 6, first - 1)


async def test_b17_what_the_stream_dropped_before_there_was_an_archive_is_not_lost(
    nats_url: str, tmp_path: Path
) -> None:
    limits = StreamLimits(max_bytes=64 * 1024)
    async with archive_rig(nats_url, tmp_path, limits=limits) as rig:
        before = lost()
        await publish(rig, named(300))
        rig.start()
        await eventually(rig.names, SLOW)
        assert lost() == before
        assert await holes_of(rig) == []


async def test_another_stream_after_nats_was_wiped_is_a_hole_that_names_both(
    rig: ArchiveRig,
) -> None:
    await publish(rig, named(5))
    rig.start()
    await rig.archived(named(5))
    await rig.bus.request("$JS.API.STREAM.DELETE.FLEETBUS_EVENTS")
    async with archive_rig(rig.nats_url, rig.folder) as again:
        await publish(again, named(3, 6))
        await rig.archived(named(8), SLOW)
        (hole,) = await holes_of(rig)
        assert hole.reason is Reason.REPLACED
        assert hole.stream < hole.detail
        assert (await rig.events())[-1].sequence == 3


@pytest.mark.slow
async def test_a_durable_that_was_made_anew_doubles_nothing(rig: ArchiveRig) -> None:
    await publish(rig, named(5))
    task = rig.start()
    await rig.archived(named(5))
    task.cancel()
    await rig.bus.request(f"$JS.API.CONSUMER.DELETE.FLEETBUS_EVENTS.{ARCHIVER}")
    async with archive_rig(rig.nats_url, rig.folder) as again:
        await publish(again, named(3, 6))
        again.start()
        await again.archived(named(8), SLOW)
        assert [event.sequence for event in await rig.events()] == list(range(1, 9))


async def test_an_emptied_archive_begins_behind_what_was_acknowledged(rig: ArchiveRig) -> None:
    await publish(rig, named(5))
    task = rig.start()
    await rig.archived(named(5))
    task.cancel()
    shutil.rmtree(rig.folder / "archive" / "v1")
    await publish(rig, named(3, 6))
    rig.start()
    await rig.archived(named(3, 6), SLOW)
    (first, *_) = sorted((rig.folder / "archive").rglob("*.jsonl.gz"))
    assert f"-{6:020}-" in first.name, "it claims nothing that it does not have"


@asynccontextmanager
async def restored(folder: Path, backup: Path) -> AsyncGenerator[str]:
    """NATS with the files of a backup."""
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    async with nats_server(store_dir=folder) as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.parametrize("further", [pytest.param(2, marks=pytest.mark.full), 9])
async def test_b1_a_stream_that_lost_its_end_and_uses_numbers_again_loses_no_new_event(
    tmp_path: Path, further: int
) -> None:
    folder, backup = tmp_path / "nats", tmp_path / "backup"
    async with nats_server(store_dir=folder) as server, archive_rig(server.url, tmp_path) as rig:
        await publish(rig, named(3))
        rig.start()
        await rig.archived(named(3))
    shutil.copytree(folder, backup)
    async with nats_server(store_dir=folder) as server, archive_rig(server.url, tmp_path) as rig:
        await publish(rig, named(5, 4))
        rig.start()
        await rig.archived(named(8), SLOW)
    async with restored(folder, backup) as url, archive_rig(url, tmp_path) as rig:
        # Numbers 4 and on are used again, perhaps beyond what is archived.
        await publish(rig, named(further, 101))
        rig.start()
        await rig.archived([*named(8), *named(further, 101)], SLOW)
        streams = {event.stream for event in await rig.events()}
        assert len(streams) == 2
        assert any(stream.endswith("Z.2") for stream in streams)


def held(sequence: int) -> PendingMessage:
    return PendingMessage(sequence, NOON, "", None)


def test_b17_a_round_is_one_chunk_unless_the_stream_has_dropped_what_lies_between() -> None:
    messages = [held(number) for number in (11, 14, 15, 20)]

    def spans(stream_first: int, delivered: int = 10) -> tuple[list[tuple[int, int]], int]:
        division = divide(
            messages, archived=10, delivered=delivered, until=25, stream_first=stream_first
        )
        return [(segment.first, segment.last) for segment in division.segments], division.lost

    assert spans(1) == ([(11, 25)], 0)
    assert spans(12) == ([(11, 25)], 0)
    assert spans(13) == ([(11, 11), (13, 25)], 1)
    assert spans(16) == ([(11, 11), (14, 25)], 2)
    assert spans(18) == ([(11, 11), (14, 15), (18, 25)], 4)
    assert spans(30) == ([(11, 11), (14, 15), (20, 20)], 11)
    # Up to 13 nothing was pending before: there were no events.
    assert spans(16, delivered=13) == ([(11, 25)], 0)


def test_the_clock_of_the_server_going_back_widens_no_chunk_and_leaves_none_out() -> None:
    position = Position("2026-11-28T07:00:00Z", archived=10, end=NOON)
    back = NOON - timedelta(hours=1)
    segment = Segment(11, 11, [PendingMessage(11, back, "", None)])
    assert times_of(segment, position, None) == (back, NOON - timedelta(hours=1))
    assert times_of(Segment(11, 20), position, back) == (back, back)
    later = NOON + timedelta(minutes=5)
    assert times_of(Segment(11, 20), position, later) == (NOON, later)
    assert times_of(Segment(12, 20), position, later) == (later, later), "after a gap"
