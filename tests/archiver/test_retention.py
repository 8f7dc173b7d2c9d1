"""Old chunks are deleted if that is wanted, and never because of a wrong clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetbus.archive.names import ChunkName, stream_id
from fleetbus.archive.store import open_store
from fleetbus.errors import ConfigError
from fleetbus.process.settings import load_settings
from fleetbus_archiver.retention import Retention
from fleetbus_archiver.settings import ArchiverSettings
from support.eventually import eventually
from support.rigs.archive import SOURCE, ArchiveRig
from support.servers.s3_server import S3Server

NOW = datetime.now(UTC)


def path_at(age: timedelta, stream: str = "2026-01-01T00:00:00Z") -> str:
    end = NOW - age
    return ChunkName(stream_id(stream), end - timedelta(minutes=5), end, 1, 2).path


OLD = [path_at(timedelta(days=days)) for days in (31, 40, 400)] + [
    path_at(timedelta(days=30, minutes=10), "2025-01-01T00:00:00Z")
]
YOUNG = [path_at(timedelta(days=days)) for days in (0, 1, 29)] + [
    path_at(timedelta(days=29, hours=23))
]


async def test_chunks_older_than_is_to_be_kept_are_deleted_from_a_bucket(
    bucket_rig: ArchiveRig, s3: S3Server
) -> None:
    store = open_store(bucket_rig.access)
    for path in OLD + YOUNG:
        await store.put(path, b"x")
    s3.objects["another/object"] = b"kept"
    await bucket_rig.publish(SOURCE.added("a", 1))
    bucket_rig.start(keep="30d")
    await eventually(lambda: not any(f"fleet/one/{path}" in s3.objects for path in OLD))
    assert all(f"fleet/one/{path}" in s3.objects for path in YOUNG)
    assert "another/object" in s3.objects
    assert s3.unsigned == []


async def test_a_folder_keeps_everything_by_default(rig: ArchiveRig) -> None:
    store = open_store(rig.access)
    for path in OLD:
        await store.put(path, b"")
    await rig.publish(SOURCE.added("a", 1))
    rig.start()
    await eventually(lambda: rig.health.is_ready)
    assert all((rig.folder / "archive" / path).exists() for path in OLD)


async def test_age_is_counted_from_the_newest_chunk_so_a_wrong_clock_deletes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "archive").mkdir()
    settings = ArchiverSettings(url=f"file://{tmp_path}/archive")
    store = open_store(settings.access)
    for path in YOUNG:
        await store.put(path, b"")
    newest = NOW
    retention = Retention(store=store, keep=timedelta(days=30), newest=lambda: newest)
    await retention.delete_before(min(newest, NOW + timedelta(days=3000)) - timedelta(days=30))
    assert all((tmp_path / "archive" / path).exists() for path in YOUNG)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KEEP", "10m", "greater than or equal to"),
        ("KEEP", "soon", "not a duration"),
        ("CHUNK_AGE", "0s", "greater than or equal to"),
        ("CHUNK_BYTES", "1", "greater than or equal to 65536"),
        ("ENDPOINT", "minio:9000", "should match pattern"),
        ("ENDPOINT", "http://key:secret@minio", "should match pattern"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv("FLEETBUS_ARCHIVER_URL", "file:///archive")
    monkeypatch.setenv(f"FLEETBUS_ARCHIVER_{name}", value)
    with pytest.raises(ConfigError) as refused:
        load_settings(ArchiverSettings)
    assert f"FLEETBUS_ARCHIVER_{name}" in str(refused.value)
    assert message in str(refused.value)


def test_the_address_is_needed_and_a_month_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="FLEETBUS_ARCHIVER_URL"):
        load_settings(ArchiverSettings)
    monkeypatch.setenv("FLEETBUS_ARCHIVER_URL", "file:///archive")
    assert load_settings(ArchiverSettings).keep is None
    monkeypatch.setenv("FLEETBUS_ARCHIVER_KEEP", "30d")
    assert load_settings(ArchiverSettings).keep == timedelta(days=30)
    monkeypatch.setenv("FLEETBUS_ARCHIVER_KEEP", "")
    assert load_settings(ArchiverSettings).keep is None
