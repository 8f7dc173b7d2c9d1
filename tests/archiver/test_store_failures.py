"""The store refuses, is slow or full: nothing is acknowledged, nothing grows, and it says why."""

from __future__ import annotations

import asyncio
import resource
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.archive import open_archive
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import consumer_info
from fleetbus.errors import ArchiveError
from support.eventually import eventually
from support.rigs.archive import SOURCE, ArchiveRig
from support.servers.s3_server import SECRET_KEY, S3Server

CANARIES = (SECRET_KEY, "canary-token-in-the-answer")


def named(count: int, first: int = 1) -> list[str]:
    return [f"w{number}" for number in range(first, first + count)]


async def publish(rig: ArchiveRig, names: list[str]) -> None:
    await rig.publish(*(SOURCE.added(name, int(name[1:])) for name in names))


async def counts(rig: ArchiveRig) -> tuple[int, int]:
    """Messages that were delivered and not acknowledged, and those that were not delivered."""
    info = await consumer_info(rig.bus, ARCHIVER)
    assert info is not None
    return info["num_ack_pending"], info["num_pending"]


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "AccessDenied"), "AccessDenied"),
        pytest.param((503, "SlowDown"), "503 Service Unavailable", marks=pytest.mark.full),
        pytest.param((507, "QuotaExceeded"), "QuotaExceeded", marks=pytest.mark.full),
    ],
)
async def test_a_bucket_that_refuses_is_tried_again_while_everything_stays_in_the_stream(
    bucket_rig: ArchiveRig, s3: S3Server, refusal: tuple[int, str], message: str
) -> None:
    errors = _errors("store")
    s3.refusals["PUT"] = refusal
    await publish(bucket_rig, named(20))
    with capture_logs() as logs:
        bucket_rig.start()
        await eventually(lambda: _errors("store") >= errors + 2, timedelta(seconds=30))
        await publish(bucket_rig, named(5, 21))
        assert await counts(bucket_rig) == (20, 5)
        problem = await bucket_rig.problem()
        assert message in problem
        assert not bucket_rig.health.is_ready
    failures = [log for log in logs if log["event"] == "archiving_failed"]
    assert len(failures) == 1, "a persistent failure is logged once"
    assert not any(canary in str(logs) + problem for canary in CANARIES)
    s3.refusals.clear()
    await bucket_rig.archived(named(25), timedelta(seconds=40))
    await eventually(lambda: bucket_rig.health.is_ready)
    assert await counts(bucket_rig) == (0, 0)


async def _says(rig: ArchiveRig, text: str) -> bool:
    return text in await rig.problem()


def _lag(unit: str) -> float:
    return REGISTRY.get_sample_value(f"fleetbus_archive_lag_{unit}") or 0


def _errors(step: str) -> float:
    return REGISTRY.get_sample_value("fleetbus_archive_errors_total", {"step": step}) or 0


async def test_a_bucket_that_cannot_be_listed_at_the_start_delivers_nothing(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    s3.refusals["GET"] = (403, "AccessDenied")
    await publish(bucket_rig, named(3))
    bucket_rig.start()
    await eventually(lambda: _says(bucket_rig, "cannot list v1"))
    assert await counts(bucket_rig) == (0, 3)
    await eventually(lambda: _lag("messages") == 3 and _lag("seconds") > 0)
    s3.refusals.clear()
    await bucket_rig.archived(named(3))
    await eventually(lambda: _lag("messages") == 0 == _lag("seconds"))


@pytest.mark.slow
async def test_a_slow_bucket_holds_up_one_chunk_and_the_rest_waits_in_the_stream(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    s3.before_put = asyncio.Event()
    await publish(bucket_rig, named(10))
    bucket_rig.start()
    await eventually(lambda: any(line.startswith("PUT") for line in s3.requests))
    await publish(bucket_rig, named(300, 11))
    await asyncio.sleep(1.5)  # longer than the durable waits for an acknowledgement
    assert await counts(bucket_rig) == (10, 300)
    s3.before_put.set()
    await bucket_rig.archived(named(310))
    await eventually(bucket_rig.is_acked)


@pytest.mark.slow
async def test_s2_rotated_credentials_are_read_from_the_files_without_a_restart(
    bucket_rig: ArchiveRig, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.archive.store.READ_AGAIN", timedelta(seconds=1))
    await publish(bucket_rig, named(3))
    bucket_rig.start()
    await bucket_rig.archived(named(3))
    s3.secrets = {"AKIAROTATED": "another-secret"}
    await publish(bucket_rig, named(3, 4))
    await eventually(lambda: _says(bucket_rig, "InvalidAccessKeyId"), timedelta(seconds=30))
    folder = bucket_rig.folder / "credentials"
    (folder / "AWS_ACCESS_KEY_ID").write_text("AKIAROTATED")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("another-secret")
    await bucket_rig.archived(named(6), timedelta(seconds=40))


async def test_a_wrong_secret_is_refused_by_the_signature_and_never_shown(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    (bucket_rig.folder / "credentials" / "AWS_SECRET_ACCESS_KEY").write_text("canary-wrong-secret")
    child = bucket_rig.spawn()
    await publish(bucket_rig, named(1))
    await eventually(lambda: "SignatureDoesNotMatch" in bucket_rig.logs())
    assert child.is_running
    assert "canary" not in bucket_rig.logs()
    with pytest.raises(ArchiveError, match="SignatureDoesNotMatch"):
        await bucket_rig.events()
    assert s3.objects == {}


async def test_credentials_that_are_missing_are_an_error_that_names_the_file(
    bucket_rig: ArchiveRig,
) -> None:
    (bucket_rig.folder / "credentials" / "AWS_ACCESS_KEY_ID").unlink()
    with pytest.raises(ArchiveError, match="AWS_ACCESS_KEY_ID: No such file"):
        await bucket_rig.events()


@pytest.mark.slow
async def test_a_full_disk_is_waited_for(rig: ArchiveRig) -> None:
    child = rig.spawn()
    await publish(rig, named(1))
    await rig.archived(named(1))
    _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
    room = max(path.stat().st_size for path in rig.folder.glob("archiver-*.log")) + 3000
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (room, hard))
    await publish(rig, named(600, 2))
    await eventually(lambda: "File too large" in rig.logs())
    stored = await rig.names()
    assert stored == named(len(stored))
    unacked, waiting = await counts(rig)
    assert unacked > 0
    assert len(stored) + unacked + waiting == 601
    assert f'"cannot store sequences {len(stored) + 1} to ' in rig.logs()
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (hard, hard))
    await rig.archived(named(601), timedelta(seconds=30))


@pytest.mark.full
async def test_memory_does_not_grow_while_the_store_is_away(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    s3.refusals["PUT"] = (403, "AccessDenied")
    child = bucket_rig.spawn(FLEETBUS_ARCHIVER_CHUNK_BYTES=str(64 * 1024))
    await publish(bucket_rig, named(100))
    await eventually(lambda: "AccessDenied" in bucket_rig.logs())
    before = _memory(child.pid)
    body = b'{"metadata":{"name":"w"},"data":"%s"}' % (b"x" * 10_000)
    await bucket_rig.publish(*(SOURCE.added(name, 1, body=body) for name in named(1000, 101)))
    tries = len(s3.requests)
    await eventually(lambda: len(s3.requests) > tries + 1, timedelta(seconds=30))
    assert _memory(child.pid) - before < 5 * 1024**2


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_a_reader_whose_bucket_fails_gets_an_error_and_no_hole(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    await publish(bucket_rig, named(3))
    bucket_rig.start()
    await bucket_rig.archived(named(3))
    s3.refusals["GET"] = (503, "SlowDown")
    archive = open_archive(bucket_rig.access)
    with pytest.raises(ArchiveError, match="503"):
        _ = [event async for event in archive.events()]


async def test_a_bucket_that_cannot_be_reached_is_said_in_one_line_that_stays_the_same(
    bucket_rig: ArchiveRig, unused_tcp_port: int
) -> None:
    bucket_rig.settings["endpoint"] = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ArchiveError) as first:
        await bucket_rig.events()
    with pytest.raises(ArchiveError) as second:
        await bucket_rig.events()
    assert str(first.value).endswith("Connection refused")
    assert str(first.value) == str(second.value)
