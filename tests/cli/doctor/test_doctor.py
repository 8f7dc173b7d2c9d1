"""`fleetbus doctor`: what is wrong is found on real servers, and what is right is not blamed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
import orjson
import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import ensure_consumer
from fleetbus.bus.jetstream import (
    StreamLimits,
    call_jetstream,
    ensure_all,
    ensure_bucket,
    ensure_stream,
    stream_info,
)
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import ReaderGroup, Selection, register
from fleetbus.process.clock import rfc3339
from fleetbus.process.findings import Finding, Severity
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState, ScopeRecord
from fleetbus.store.connection import connect
from fleetbus_cli.app import app
from fleetbus_cli.doctor.clusters import check_clusters
from fleetbus_cli.doctor.nats import check_nats
from fleetbus_cli.doctor.store import check_store
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS
from support.eventually import eventually
from support.processes.in_process_commands import status_of
from support.rigs.reader_groups import serve
from support.servers.valkey_sentinel import valkey_with_sentinel
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def found(checks: AsyncIterator[Finding]) -> dict[str, str]:
    """Everything that is not right: severity and message, by the part that it is about."""
    bad = [finding async for finding in checks if finding.severity is not Severity.OK]
    assert all(finding.advice for finding in bad)
    return {finding.about: f"{finding.severity}: {finding.message}" for finding in bad}


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with connected(nats_url, name="test") as bus:
        yield bus


@pytest.fixture
async def snapshot(redis: Redis) -> AsyncIterator[Snapshot]:
    """A store that is set up as it should be."""
    admin = cast("Any", redis)
    await admin.config_set("maxmemory", "1gb")
    await admin.config_set("appendonly", "yes")
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    yield snapshot
    await admin.config_set("appendonly", "no")
    await admin.config_set("maxmemory", "0")


# --- NATS -------------------------------------------------------------------------------------


async def test_what_the_projector_creates_is_missed(bus: Bus):
    assert await found(check_nats(bus)) == {
        "stream": "error: FLEETBUS_EVENTS does not exist",
        "prior states": "error: FLEETBUS_PRIOR does not exist",
        "distribution": "error: FLEETBUS_DISTRIBUTION does not exist",
        "bucket": "error: KV_FLEETBUS_STATE does not exist",
    }


async def test_what_is_as_it_should_be_is_not_blamed_whatever_its_limits(bus: Bus):
    limits = StreamLimits(max_bytes=2**20, max_age=timedelta(hours=2), bucket_bytes=2**21)
    await ensure_all(bus, limits)
    await ensure_consumer(bus, PROJECTOR, STREAM_SUBJECTS)
    await pull(bus, PROJECTOR)
    assert await found(check_nats(bus)) == {}


async def pull(bus: Bus, durable: str) -> None:
    """Wait for messages, as a process does that reads a durable."""
    inbox = bus.nc.new_inbox()
    await bus.nc.subscribe(inbox)
    request = orjson.dumps({"batch": 1, "expires": 30_000_000_000})
    await bus.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{durable}", request, inbox)
    await bus.nc.flush()


async def test_b12_a_stream_that_somebody_edited_is_named_with_the_field(bus: Bus):
    info = await ensure_stream(bus)
    await ensure_bucket(bus)
    await call_jetstream(
        bus, f"STREAM.UPDATE.{STREAM}", info["config"] | {"duplicate_window": 60_000_000_000}
    )
    assert "duplicate_window" in (await found(check_nats(bus)))["stream"]


async def test_b12_a_stream_of_prior_states_that_was_not_resized_is_named(bus: Bus):
    await ensure_all(bus, StreamLimits(max_bytes=2**20))
    info = await stream_info(bus)
    assert info is not None
    larger = info["config"] | {"max_bytes": 2**21}
    await call_jetstream(bus, f"STREAM.UPDATE.{STREAM}", larger)
    finding = (await found(check_nats(bus)))["prior states"]
    assert "FLEETBUS_PRIOR: field max_bytes is 262144, and 524288 is needed" in finding


async def test_messages_that_nobody_reads_are_counted(bus: Bus):
    await ensure_all(bus)
    await ensure_consumer(bus, PROJECTOR, STREAM_SUBJECTS)
    for _ in range(3):
        await bus.request("fleetbus.status.eu1.r1", b"x")
    assert await found(check_nats(bus)) == {
        "projector": "error: no process reads its durable projector; 3 messages wait"
    }


@pytest.mark.slow
async def test_a_controller_that_was_only_tried_is_no_error_on_a_dev_fleet(bus: Bus):
    await ensure_all(bus)
    await ensure_consumer(bus, PROJECTOR, STREAM_SUBJECTS)
    await register(KeyValue(bus), ReaderGroup({"tried": Selection(["fleetbus.events.>"])}))
    await serve(bus)
    for is_dev, severity in ((False, "error"), (True, "warning")):
        findings = await found(check_nats(bus, is_dev=is_dev))
        assert findings["controller tried"].startswith(f"{severity}: no process reads its durable")
        assert findings["projector"].startswith("error: "), "it is a part of each fleet"


async def test_b17_a_stream_too_small_for_an_hour_of_events_is_reported(bus: Bus):
    await ensure_stream(bus, StreamLimits(max_bytes=2**16))
    await ensure_bucket(bus)
    for _ in range(40):
        await bus.request("fleetbus.status.eu1.r1", b"x" * 4096)
    assert "holds the events of only" in (await found(check_nats(bus)))["stream"]


# --- the store ----------------------------------------------------------------------------------


async def test_a_store_that_would_forget_and_overflow_and_holds_nothing(redis: Redis):
    bad = await found(check_store(redis, Snapshot(redis).keys))
    assert set(bad) == {"store", "snapshot"}
    assert bad["snapshot"] == "error: the snapshot is empty"
    by_text = {finding.message async for finding in check_store(redis, Snapshot(redis).keys)}
    assert any("appendonly is off" in text for text in by_text)
    assert any("no maxmemory" in text for text in by_text)


async def test_a_store_as_it_should_be_is_not_blamed(snapshot: Snapshot, redis: Redis):
    assert await found(check_store(redis, snapshot.keys)) == {}


async def test_p16_a_store_that_is_nearly_full_is_reported(snapshot: Snapshot, redis: Redis):
    used = int((await cast("Any", redis).info("memory"))["used_memory"])
    await cast("Any", redis).config_set("maxmemory", str(int(used / 0.85)))
    assert (await found(check_store(redis, snapshot.keys)))["store"].startswith("warning: uses")


@pytest.mark.full
async def test_p16_a_master_that_nobody_can_replace_is_reported(tmp_path: pathlib.Path):
    async with valkey_with_sentinel(tmp_path) as servers:
        redis = await connect(servers.url)

        async def says(text: str) -> bool:
            findings = [finding async for finding in check_store(redis, Snapshot(redis).keys)]
            return any(text in finding.message for finding in findings)

        try:
            assert await says("replicas that follow the master: 1")
            servers.replica.kill()
            await eventually(lambda: says("no replica follows the master"))
        finally:
            await redis.aclose()


# --- clusters -----------------------------------------------------------------------------------


async def test_a_fleet_without_clusters_is_reported(redis: Redis):
    empty = Snapshot(redis)
    await empty.set_up()
    assert await found(check_clusters(empty.reader)) == {
        "clusters": "warning: the fleet has no clusters"
    }


async def test_a_cluster_is_blamed_for_its_own_faults_only(snapshot: Snapshot):
    now = rfc3339(datetime.now(UTC))
    good = ClusterRecord(name="eu1", connected=True, last_answer=now, reported_at=now)
    scope = ScopeRecord(state=ResourceState.DEGRADED, reason="forbidden: pods")
    bad = ResourceRecord(group="core", version="v1", plural="pods", is_declared=True)
    bad = bad.with_scopes({"a": scope})
    synced = ResourceRecord(group="apps", version="v1", plural="deployments", is_declared=True)
    synced = synced.with_scopes({"a": ScopeRecord(state=ResourceState.SYNCED)})
    await snapshot.writer.put_cluster("eu1", good)
    await snapshot.writer.put_cluster("us1", ClusterRecord(name="us1", message="no route to host"))
    await snapshot.writer.put_resource_state("eu1", synced)
    assert await found(check_clusters(snapshot.reader)) == {
        "cluster us1": "error: no route to host"
    }
    setting = "FLEETBUS_WATCHER_DENY (core/events) by spec.deny (none)"
    await snapshot.writer.put_cluster("eu1", msgspec.structs.replace(good, overridden=[setting]))
    replaced = f"warning: its watch spec overrides a setting of its watcher: {setting}"
    assert (await found(check_clusters(snapshot.reader)))["cluster eu1"] == replaced
    await snapshot.writer.put_resource_state("eu1", bad)
    reported = await found(check_clusters(snapshot.reader))
    assert reported["cluster eu1"] == "warning: core/pods is degraded: forbidden: pods"


@pytest.mark.parametrize(("minutes", "is_fault"), [(0, True), (1, False), (10, True)])
async def test_a_resource_that_was_dropped_a_moment_ago_is_no_fault(
    snapshot: Snapshot, minutes: int, *, is_fault: bool
):
    """The values list fewer: the watcher that is replaced loses its right first."""
    now = datetime.now(UTC)
    at = rfc3339(now)
    good = ClusterRecord(name="eu1", connected=True, last_answer=at, reported_at=at)
    scope = ScopeRecord(
        state=ResourceState.STALE,
        reason="forbidden: pods",
        reported_at=rfc3339(now - timedelta(minutes=minutes)),
    )
    left = ResourceRecord(group="core", version="v1", plural="pods", is_declared=True)
    await snapshot.writer.put_cluster("eu1", good)
    await snapshot.writer.put_resource_state("eu1", left.with_scopes({"a": scope}))
    assert bool(await found(check_clusters(snapshot.reader))) == is_fault


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fleetbus_cli.nats.PATIENCE", timedelta(seconds=0.5))
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://u:S3CRET@127.0.0.1:1")
    monkeypatch.setenv("FLEETBUS_REDIS_URL", "redis://:S3CRET@127.0.0.1:1/0")


@pytest.mark.usefixtures("nowhere")
def test_servers_that_are_away_are_findings_and_status_1(capsys: pytest.CaptureFixture[str]):
    assert status_of(app, ["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [line.split()[:2] for line in captured.out.splitlines()] == [
        ["ABOUT", "FINDING"],
        ["ERROR", "nats"],
        ["ERROR", "store"],
        ["warn", "hub"],
    ]
    assert "S3CRET" not in captured.out


@pytest.mark.usefixtures("nowhere")
def test_findings_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]):
    assert status_of(app, ["doctor", "-o", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(finding["about"], finding["severity"]) for finding in findings] == [
        ("nats", "error"),
        ("store", "error"),
        ("hub", "warning"),
    ]
    assert all(finding["advice"] for finding in findings)
