"""Bookmarks of a store that reports its progress seldom, as etcd does."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx

from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.storage.progress import StoreProgress

MAPS = "v1/configmaps"
OFTEN = timedelta(seconds=0.02)


def test_a_report_tells_where_the_store_stood_when_it_was_due():
    now = [0.0]
    progress = StoreProgress(timedelta(seconds=10), now=lambda: now[0])
    assert progress.reported(5) == 0
    now[0] = 10
    assert progress.reported(7) == 7
    now[0] = 19
    assert progress.reported(9) == 7
    now[0] = 45
    assert progress.reported(12) == 12
    assert progress.reported(4) == 4  # rolled back


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


async def watched(cluster: Cluster, *names: str, seconds: float) -> list[dict[str, Any]]:
    """The lines of a watch of config maps that begins now, while these are written."""
    lines: list[dict[str, Any]] = []
    async with serve([cluster]) as servers, httpx.AsyncClient(base_url=servers.url("c")) as client:
        url = "/api/v1/configmaps"
        rv = (await client.get(url)).json()["metadata"]["resourceVersion"]
        query = {"watch": "1", "allowWatchBookmarks": "1", "resourceVersion": rv}

        async def read() -> None:
            async with client.stream("GET", url, params=query) as stream:
                lines.extend([json.loads(line) async for line in stream.aiter_lines()])

        async def write() -> None:
            await asyncio.sleep(seconds / 3)
            for name in names:
                cluster.create("v1/secrets", config_map(name), "default")
                if name.startswith("map"):
                    cluster.create(MAPS, config_map(name), "default")
            await asyncio.sleep(seconds)
            cluster.close_watches()

        await asyncio.gather(read(), write())
    return lines


async def test_a_quiet_type_gets_no_bookmark_until_the_store_reports():
    hour = timedelta(hours=1)
    cluster = Cluster("c", bookmark_interval=OFTEN, progress_interval=hour)
    assert await watched(cluster, "s", seconds=0.3) == []
    # As by default each tells how far the cluster is.
    always = await watched(Cluster("c", bookmark_interval=OFTEN), "s", seconds=0.3)
    versions = {line["object"]["metadata"]["resourceVersion"] for line in always}
    assert {line["type"] for line in always} == {"BOOKMARK"}
    assert len(versions) == 2


async def test_a_type_with_events_gets_bookmarks_that_tell_of_these():
    cluster = Cluster("c", bookmark_interval=OFTEN, progress_interval=timedelta(hours=1))
    lines = await watched(cluster, "map", "s", seconds=0.3)
    assert [line["type"] for line in lines][:2] == ["ADDED", "BOOKMARK"]
    versions = {line["object"]["metadata"]["resourceVersion"] for line in lines}
    assert len(versions) == 1


async def test_a_report_gives_a_quiet_type_its_bookmark():
    often = timedelta(seconds=0.1)
    cluster = Cluster("c", bookmark_interval=OFTEN, progress_interval=often)
    lines = await watched(cluster, "s", seconds=0.4)
    assert {line["type"] for line in lines} == {"BOOKMARK"}
