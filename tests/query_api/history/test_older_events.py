"""Timelines and deletions reach back into the archive; its holes are gaps (rule A9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.archive.store import ArchiveStore
from fleetbus.process.clock import rfc3339
from support.rigs.archive_files import ArchiveFiles, at
from support.rigs.past_api import PastApi, past_query_api
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

EU1, US1 = Source(), Source(cluster="us1")


@pytest.fixture
async def files(tmp_path: Path) -> ArchiveFiles:
    archive = ArchiveFiles(tmp_path / "archive")
    await archive.chunk(
        1,
        3,
        events=[
            EU1.added("web", 1, body=pod("web", 1, "a")),
            EU1.modified("web", 2, body=pod("web", 2, "b")),
            EU1.deleted("db", 3, body=pod("db", 3)),
        ],
    )
    # The chunk with the sequence 4 is missing.
    await archive.chunk(5, 5, events=[US1.deleted("cache", 5, body=pod("cache", 5))])
    return archive


@pytest.fixture
async def api(
    redis: Redis, valkey_url: str, nats_url: str, tmp_path: Path, files: ArchiveFiles
) -> AsyncGenerator[PastApi]:
    url = f"file://{files.folder}"
    async with past_query_api(redis, valkey_url, nats_url, tmp_path, archive_url=url) as server:
        for name in ("eu1", "us1"):
            await server.add_cluster(name, "core/pods")
        await server.past.record(EU1.modified("web", 10, body=pod("web", 10, "c")))
        yield server


async def test_a9_a_timeline_goes_on_in_the_archive(api: PastApi):
    since = rfc3339(at(-1))
    answer = (await api.get("/fleet/v1/timeline/eu1/pods/prod/web", since=since)).json()
    assert [entry["resourceVersion"] for entry in answer["entries"]] == ["1", "2", "10"]
    image = "spec.containers[0].image"
    changed = [entry["differences"] for entry in answer["entries"]]
    assert changed[1:] == [
        [{"path": image, "before": "a", "after": "b"}],
        [{"path": image, "before": "b", "after": "c"}],
    ]
    assert answer["since"] == answer["window"]["from"] == since
    gaps = answer["window"]["gaps"]
    assert gaps, "sequence 4 is missing"
    assert all(gap["reason"].startswith("the archive: ") for gap in gaps)
    assert all(gap["from"] is not None for gap in gaps)
    few = (await api.get("/fleet/v1/timeline/eu1/pods/prod/web", since=since, limit=2)).json()
    assert [entry["resourceVersion"] for entry in few["entries"]] == ["2", "10"]
    assert few["hasMore"]


async def test_a9_what_a_first_change_in_the_archive_changed_is_not_guessed(
    api: PastApi, files: ArchiveFiles
):
    """The first event of the stream is a deletion, with a later state."""
    changed = EU1.modified("late", 6, body=pod("late", 6, "a"))
    await files.chunk(6, 6, events=[changed])
    await api.past.record(EU1.deleted("late", 12, body=pod("late", 11, "z")))
    path = "/fleet/v1/timeline/eu1/pods/prod/late"
    first, last = (await api.get(path, since=rfc3339(at(-1)))).json()["entries"]
    assert (first["resourceVersion"], first["differences"]) == ("6", [])
    assert [difference["after"] for difference in last["differences"]] == ["z"]


async def test_a8_a_timeline_of_large_states_is_bounded(api: PastApi, files: ArchiveFiles):
    large = "x" * 900_000
    await files.chunk(
        7,
        36,
        events=[EU1.modified("huge", n, body=pod("huge", n, f"{n}{large}")) for n in range(7, 37)],
    )
    path = "/fleet/v1/timeline/eu1/pods/prod/huge"
    await api.past.record(EU1.modified("huge", 40, body=pod("huge", 40)))
    answer = (await api.get(path, since=rfc3339(at(-1)))).json()
    assert answer["hasMore"]
    assert len(answer["entries"]) < 25
    assert answer["entries"][-1]["resourceVersion"] == "40"


async def test_a9_deletions_go_on_in_the_archive(api: PastApi):
    await api.past.record(EU1.deleted("web", 11, body=pod("web", 10)))
    answer = (await api.get("/fleet/v1/deleted/pods", since=rfc3339(at(-1)))).json()
    assert [(item["cluster"], item["name"]) for item in answer["items"]] == [
        ("eu1", "web"),
        ("us1", "cache"),
        ("eu1", "db"),
    ]
    recent = (await api.get("/fleet/v1/deleted/pods", since="1m")).json()
    assert [item["name"] for item in recent["items"]] == ["web"]
    one = (await api.get("/fleet/v1/deleted/pods", since=rfc3339(at(-1)), cluster="us1")).json()
    assert [item["name"] for item in one["items"]] == ["cache"]


async def test_a9_an_archive_that_is_away_is_503_for_what_it_has_only(
    api: PastApi, files: ArchiveFiles
):
    files.folder.rename(files.folder.with_name("away"))
    path = "/fleet/v1/timeline/eu1/pods/prod/web"
    assert (await api.get(path, since="1s")).status_code == 200
    answer = await api.get(path, since=rfc3339(at(-1)))
    if answer.status_code == 200:  # an empty folder is an archive without chunks
        assert answer.json()["window"]["gaps"]
    else:
        assert answer.status_code == 503


async def test_a8_few_questions_read_whole_chunks_of_the_archive_at_a_time(
    api: PastApi, monkeypatch: pytest.MonkeyPatch
):
    running, most = 0, 0
    read = ArchiveStore.read

    async def count(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)  # a slow read
        try:
            return await read(*args)
        finally:
            running -= 1

    monkeypatch.setattr(ArchiveStore, "read", count)
    questions = [api.get("/fleet/v1/deleted/pods", since=rfc3339(at(-1))) for _ in range(6)]
    answers = await asyncio.gather(*questions)
    assert {len(answer.json()["items"]) for answer in answers} == {2}
    assert most <= 4, "two questions, with two chunks each"
