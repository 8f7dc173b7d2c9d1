"""The archiver: the events of the stream become chunks, and only then they are acknowledged."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from fleetbus.archive import EventFilter, open_archive
from fleetbus.archive.names import read_name
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import consumer_info
from fleetbus_archiver import metrics
from fleetbus_proto.subjects import event_subject
from support.eventually import eventually
from support.rigs.archive import SOURCE, ArchiveRig, utc_now
from support.servers.s3_server import S3Server


def chunks(rig: ArchiveRig) -> list[Path]:
    return sorted((rig.folder / "archive").rglob("*.jsonl.gz"))


def named(count: int, first: int = 1) -> list[str]:
    return [f"w{number}" for number in range(first, first + count)]


async def publish(rig: ArchiveRig, names: list[str]) -> None:
    await rig.publish(*(SOURCE.added(name, int(name[1:])) for name in names))


@pytest.mark.slow
async def test_events_of_the_stream_are_in_a_folder_and_then_acknowledged(rig: ArchiveRig) -> None:
    await publish(rig, named(20))
    rig.start()
    await rig.archived(named(20))
    await eventually(rig.is_acked)
    await publish(rig, named(20, 21))
    await rig.archived(named(40))
    await eventually(lambda: rig.health.is_ready)


async def test_the_same_in_a_bucket_with_signed_requests(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    await publish(bucket_rig, named(20))
    bucket_rig.start()
    await bucket_rig.archived(named(20))
    assert s3.unsigned == []
    assert all(key.startswith("fleet/one/v1/") for key in s3.objects)


async def test_a_chunk_opens_with_zcat_and_jq(rig: ArchiveRig) -> None:
    await publish(rig, named(3))
    rig.start()
    await rig.archived(named(3))
    zcat = partial(subprocess.run, ["zcat", *chunks(rig)], check=True, capture_output=True)
    text = (await asyncio.to_thread(zcat)).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2, 3]
    assert lines[0]["object"]["metadata"]["name"] == "w1"
    assert lines[0]["verb"] == "added"
    assert lines[0]["storedAt"].endswith("Z")


@pytest.mark.slow
async def test_names_follow_each_other_without_a_gap_also_where_messages_are_no_events(
    rig: ArchiveRig,
) -> None:
    rig.start()
    for turn in range(3):
        await publish(rig, named(2, 2 * turn + 1))
        await rig.publish(SOURCE.end(2))  # sequences that are not archived
        await rig.archived(named(2 * turn + 2))
    root = rig.folder / "archive"
    names_read = [read_name(str(path.relative_to(root))) for path in chunks(rig)]
    names = [name for name in names_read if name is not None]
    assert len(names) == len(names_read)
    assert names[0].first == 1
    for before, after in pairwise(names):
        assert after.first == before.last + 1
        assert after.start == before.end


@pytest.mark.slow
async def test_a_quiet_stream_has_empty_chunks_so_that_its_silence_is_known(
    rig: ArchiveRig,
) -> None:
    await publish(rig, named(1))
    start = utc_now()
    rig.start()
    await rig.archived(named(1))
    await eventually(lambda: len(chunks(rig)) >= 3)
    coverage = await open_archive(rig.access).coverage(start, start + timedelta(seconds=1))
    assert coverage.is_complete
    assert await rig.names() == named(1)


async def test_a_chunk_is_written_once_enough_waits_however_young_the_last_one_is(
    rig: ArchiveRig,
) -> None:
    rig.start(chunk_age="1h", chunk_bytes=64 * 1024)
    await eventually(lambda: rig.health.is_ready)
    await publish(rig, named(401))
    await eventually(lambda: is_almost_all(rig))
    largest = max(path.stat().st_size for path in chunks(rig))
    assert largest < 64 * 1024
    assert len(chunks(rig)) > 1


async def is_almost_all(rig: ArchiveRig) -> bool:
    """Less than a chunk is left."""
    info = await consumer_info(rig.bus, ARCHIVER)
    return info is not None and info["num_pending"] + info["num_ack_pending"] < 150


async def test_b18_a_message_that_is_no_event_is_counted_and_blocks_nothing(
    rig: ArchiveRig,
) -> None:
    before = REGISTRY.get_sample_value("fleetbus_archive_rejected_messages_total") or 0
    subject = event_subject(
        cluster="eu1", group="core", resource="pods", namespace="prod", name="x", verb="added"
    )
    await rig.bus.request(subject, b"nonsense", headers={"fleetbus-format": "1"})
    await publish(rig, named(2))
    rig.start()
    await rig.archived(named(2))
    await eventually(rig.is_acked)
    assert REGISTRY.get_sample_value("fleetbus_archive_rejected_messages_total") == before + 1


@pytest.mark.slow
async def test_metrics_count_events_and_bytes_and_tell_the_lag(rig: ArchiveRig) -> None:
    before = {
        name: REGISTRY.get_sample_value(name) or 0
        for name in ("fleetbus_archive_events_total", "fleetbus_archive_chunks_total")
    }
    task = rig.start()
    await publish(rig, named(30))
    await rig.archived(named(30))
    await eventually(rig.is_acked)
    count = REGISTRY.get_sample_value("fleetbus_archive_events_total")
    assert count == before["fleetbus_archive_events_total"] + 30
    lines = REGISTRY.get_sample_value("fleetbus_archive_bytes_total", {"form": "lines"}) or 0
    stored = REGISTRY.get_sample_value("fleetbus_archive_bytes_total", {"form": "stored"}) or 0
    assert lines > stored > 0
    last = REGISTRY.get_sample_value("fleetbus_archive_last_chunk_timestamp_seconds") or 0
    assert abs(last - utc_now().timestamp()) < 20
    await eventually(lambda: _gauge("fleetbus_archive_lag_messages") == 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value(name)


async def test_without_stream_or_durable_it_is_not_ready_and_says_who_creates_them(
    rig: ArchiveRig,
) -> None:
    await rig.bus.request(f"$JS.API.CONSUMER.DELETE.FLEETBUS_EVENTS.{ARCHIVER}")
    child = rig.spawn()
    await eventually(lambda: "FLEETBUS_RECONCILER_ARCHIVER" in rig.logs())
    assert child.is_running


@pytest.mark.slow
async def test_two_archivers_by_mistake_lose_nothing_and_double_nothing(rig: ArchiveRig) -> None:
    rig.start()
    rig.start()
    expected = list[str]()
    for turn in range(10):
        names = named(30, 30 * turn + 1)
        await publish(rig, names)
        expected += names
        await asyncio.sleep(0.1)  # the pace of the load
    await rig.archived(expected, timedelta(seconds=40))
    web = EventFilter("eu1", "core", "pods", "prod", "w77")
    assert [event.sequence for event in await rig.events(web)] == [77]


def test_every_metric_of_the_archiver_is_made_at_its_start() -> None:
    metrics.create()
    for form in metrics.FORMS:
        assert REGISTRY.get_sample_value("fleetbus_archive_bytes_total", {"form": form}) is not None
    for step in metrics.STEPS:
        name = "fleetbus_archive_errors_total"
        assert REGISTRY.get_sample_value(name, {"step": step}) is not None
