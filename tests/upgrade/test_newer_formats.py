"""State of a newer release than this one: refused with advice, and nothing changes (rule P19)."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import fleetbus
from fleetbus.archive.store import open_store
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import (
    NewerStream,
    call_jetstream,
    check_bucket,
    check_distribution,
    check_prior_states,
    check_stream,
    ensure_all,
    stream_info,
)
from fleetbus.errors import ArchiveError
from fleetbus.fleet.inventory_chunks import NewerStatus, refs_of
from fleetbus.fleet.orphans import read_intents
from fleetbus.process.health import Health
from fleetbus.process.release import release
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.process.stored_format import METADATA, why_newer
from fleetbus.snapshot import ListQuery
from fleetbus.snapshot.shards import NewerSnapshot, check_shards, find_shards
from fleetbus.snapshot.update_records import Records
from fleetbus.worker.connections import connect
from fleetbus.worker.host import run_controllers
from fleetbus.workqueue.queue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_archiver.position import read_position
from fleetbus_cli.main import main
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.headers import FORMAT_HEADER, check_format
from fleetbus_proto.keys import KV_BUCKET, queue_format
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM
from support.eventually import eventually
from support.processes.in_process_commands import one_line, status_of
from support.rigs.archive_files import ArchiveFiles, at
from support.rigs.distributor import CONFIG_MAP, distributor_rig
from support.rows import each_row
from support.stores.snapshot import PODS, Snapshot, Source

MARK = "2 9.8.7"
SAYS = "written by a newer fleetbus, 9.8.7: its format is 2"


async def dump(redis: Any) -> dict[bytes, bytes | None]:
    return {key: await redis.dump(key) async for key in redis.scan_iter()}


@each_row(
    "mark, newer",
    [
        ("", False),
        ("1 0.1.0", False),
        ("2 0.2.0", True),
        ("2", True),
        ("two", True),
    ],
)
def test_a_mark_is_newer_unless_it_names_a_format_that_this_release_knows(mark: str, newer: bool):
    problem = why_newer("the store", mark, back="empty it")
    assert bool(problem) == newer
    if newer:
        assert problem.startswith("the store was written by a newer fleetbus")
        assert f"this release, {release().version}, knows 1. Nothing was changed." in problem
        assert problem.endswith("empty it")


async def test_a_snapshot_of_a_newer_release_is_neither_read_nor_written(redis: Redis):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await snapshot.apply(Source().added("web", 5))
    await snapshot.run_epoch(Source(rank=(10, 1)), web=5)
    key = snapshot.keys.generation(0)
    await redis.append(key, f" {MARK}")
    before = await dump(redis)

    def unchanged(records: Records) -> Records:
        return records

    for attempt in (
        lambda: check_shards(redis, snapshot.keys),
        lambda: find_shards(redis),
        snapshot.writer.ensure_generation,
        lambda: snapshot.apply(Source().modified("web", 6)),
        lambda: snapshot.apply(Source().deleted("web", 7)),
        lambda: snapshot.writer.end_epoch(Source(rank=(20, 2)).end(0)),
        lambda: snapshot.writer.update_records("eu1", unchanged),
        lambda: snapshot.reader.list(ListQuery(clusters=["eu1"], resource=PODS)),
        snapshot.reader.generation,
        snapshot.reader.empty_shards,
    ):
        with pytest.raises(NewerSnapshot, match=SAYS):
            await attempt()
    assert await dump(redis) == before


async def test_a_service_does_not_start_on_a_snapshot_of_a_newer_release(
    valkey_url: str, nats_url: str, redis: Redis
):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await redis.append(snapshot.keys.generation(0), f" {MARK}")
    settings = load_settings(SharedSettings, redis_url=valkey_url, nats_url=nats_url)
    with pytest.raises(NewerSnapshot, match="again, or a later one; to go on with this"):
        async with connect(settings, name="test"):
            pass


async def test_a_controller_waits_before_a_queue_of_a_newer_release(
    valkey_url: str, nats_url: str, redis: Redis
):
    controller = fleetbus.Controller("copier")
    controller.watch("v1/pods")
    runs: list[str] = []

    @controller.reconcile
    async def note(request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        runs.append(request.name)

    await Snapshot(redis).set_up("eu1")
    await RedisQueue(redis, "copier").add([Add(fleetbus.Request("copier", "eu1", "prod", "web"))])
    await redis.set(queue_format("copier"), MARK)
    before = await dump(redis)
    settings = load_settings(SharedSettings, redis_url=valkey_url, nats_url=nats_url)
    health = Health()
    async with connect(settings, name="test") as connections:
        hosting = asyncio.create_task(run_controllers([controller], connections, health))
        await eventually(lambda: SAYS in health.problems().get("queues", ""))
        assert "the queue of controller copier was" in health.problems()["queues"]
        hosting.cancel()
        with suppress(asyncio.CancelledError):
            await hosting
    assert runs == []
    assert await dump(redis) == before


@pytest.mark.parametrize(
    "words", [["queue"], ["queue", "copier"], ["queue", "release", "copier", "--all"]]
)
def test_commands_refuse_a_queue_of_a_newer_release(
    valkey_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
):
    async def prepare() -> None:
        async with Redis.from_url(valkey_url) as redis:
            await redis.set(queue_format("copier"), MARK)

    asyncio.run(prepare())
    monkeypatch.setenv("FLEETBUS_REDIS_URL", valkey_url)
    monkeypatch.setattr(sys, "argv", ["fleetbus", *words])
    assert status_of(main) == 1
    assert SAYS in one_line(capsys)


@pytest.mark.parametrize("name", [STREAM, PRIOR_STREAM, DISTRIBUTION_STREAM, f"KV_{KV_BUCKET}"])
async def test_the_projector_and_doctor_refuse_a_stream_of_a_newer_release(
    nats_url: str, name: str
):
    async with connected(nats_url, name="test") as bus:
        await ensure_all(bus)
        events = await configuration(bus, STREAM)
        config = await configuration(bus, name)
        marked = {**config, "metadata": {METADATA: MARK}}
        await call_jetstream(bus, f"STREAM.UPDATE.{name}", marked)
        before = await configuration(bus, name)
        with pytest.raises(NewerStream, match=f"stream {name} was {SAYS}"):
            await ensure_all(bus)
        checks = {
            STREAM: lambda: check_stream(before),
            PRIOR_STREAM: lambda: check_prior_states(before, events),
            DISTRIBUTION_STREAM: lambda: check_distribution(before, events),
            f"KV_{KV_BUCKET}": lambda: check_bucket(before),
        }
        with pytest.raises(NewerStream, match=SAYS):
            checks[name]()
        assert await configuration(bus, name) == before


async def configuration(bus: Any, name: str) -> dict[str, Any]:
    info = await stream_info(bus, name)
    assert info is not None
    return info["config"]


def test_a_message_of_a_newer_release_is_rejected_with_the_order_of_an_upgrade():
    with pytest.raises(MalformedMessage, match="readers are upgraded before publishers"):
        check_format({FORMAT_HEADER: "2"})


async def test_the_distributor_writes_nothing_where_a_newer_release_wrote_the_status():
    async with distributor_rig("t1") as rig:
        rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]})
        await rig.reconcile()
        placed = rig.get("t1", "v1/configmaps", "m")
        resource = rig.resource()
        resource["status"] = {"format": MARK, "intent": {"objects": []}}
        rig.hub.update_status("fleetbus.dev/v1alpha1/multiclusterresources", resource)
        rig.edit(template=CONFIG_MAP | {"data": {"k": "other"}}, placement={"clusters": []})
        rig.restart()
        before, writes = rig.resource(), rig.all_writes()
        result = await rig.reconcile()
        assert result is not None
        assert result.requeue_after
        assert await rig.repair("t1") is not None
        rig.delete()
        await rig.reconcile()
        assert rig.get("t1", "v1/configmaps", "m") == placed
        assert rig.resource()["status"] == before["status"]
        events = rig.hub.list("v1/events", "default")
        (event,) = [each for each in events if each["reason"] == "NewerRelease"]
        assert f"the status was {SAYS}" in event["message"]
        assert rig.all_writes() - writes == 1  # the event


async def test_no_chunk_or_object_counts_as_left_over_beside_a_status_of_a_newer_release():
    async with distributor_rig("t1") as rig:
        rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]})
        await rig.reconcile()
        resource = rig.resource()
        resource["status"]["format"] = MARK
        rig.hub.update_status("fleetbus.dev/v1alpha1/multiclusterresources", resource)
        live = rig.fleet.cluster("t4").live
        intents = await read_intents(live)
        assert intents.unreadable == {resource["metadata"]["uid"]}
        assert intents.places == frozenset()
        with pytest.raises(NewerStatus, match=SAYS):
            refs_of(rig.resource()["status"])


async def test_an_archive_with_chunks_of_a_newer_release_is_neither_read_nor_continued(
    tmp_path: Path,
):
    files = ArchiveFiles(tmp_path / "archive")
    await files.chunk(1, 60)
    newer = files.folder / "v2" / "a-stream"
    newer.mkdir(parents=True)
    before = sorted(files.folder.rglob("*"))
    with pytest.raises(ArchiveError, match="has v2/, which a newer fleetbus has written"):
        await files.archive.coverage(at(0), at(1))
    with pytest.raises(ArchiveError, match="to go on with this one, move that folder away"):
        [event async for event in files.archive.events()]
    with pytest.raises(ArchiveError, match="has v2/"):
        await read_position(open_store(files.access), "2026-11-28T07:00:00.5Z")
    assert sorted(files.folder.rglob("*")) == before
