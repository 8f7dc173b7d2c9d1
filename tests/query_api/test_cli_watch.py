"""`kubectl-multicluster list -w`, as a process (T19)."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from support.processes.following import Following, following
from support.rigs.query_api import QueryApi, served
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

PODS = "core/pods"
_PLUGIN = (sys.executable, "-m", "fleetbus_cli.kubectl")
_FLEETBUS = (sys.executable, "-m", "fleetbus_cli.main")


def started(url: str, home: Path, *arguments: str) -> AbstractAsyncContextManager[Following]:
    return following(url, home, (*_PLUGIN, *arguments))


async def test_t19_w_shows_a_row_for_each_change_of_every_cluster(api: QueryApi, tmp_path: Path):
    for name in ("c1", "c2"):
        await api.add_cluster(name)
    await api.add("c1", PODS, "a", status={"phase": "Pending"}, labels={"app": "web"})
    async with started(api.url, tmp_path, "list", "pods", "-w", "-l", "app=web") as running:
        await _changes_are_shown(api, running)


async def test_w_follows_events_whose_names_are_not_shown(api: QueryApi, tmp_path: Path):
    await api.add_cluster("c1", "core/events")
    await api.add("c1", "core/events", "a", type="Warning", reason="First")
    async with following(api.url, tmp_path, (*_FLEETBUS, "get", "events", "-w")) as running:
        assert (await running.row())[-1] == "MESSAGE"
        assert "First" in await running.row()
        await api.add("c1", "core/events", "b", type="Warning", reason="Second")
        assert "Second" in await running.row()
        await api.add("c1", "core/events", "a", type="Warning", reason="Third")
        assert "Third" in await running.row()


async def _changes_are_shown(api: QueryApi, running: Following) -> None:
    assert (await running.row())[0] == "CLUSTER"
    assert (await running.row())[:3] == ["c1", "a", "prod"]
    await api.add("c1", PODS, "a", status={"phase": "Running"}, labels={"app": "web"})
    await api.add("c2", PODS, "other")
    await api.add("c2", PODS, "b", status={"phase": "Pending"}, labels={"app": "web"})
    row = await running.row()
    assert (row[:3], row[5]) == (["c1", "a", "prod"], "Running")
    assert (await running.row())[:3] == ["c2", "b", "prod"]
    api.version += 1
    last = b'{"metadata":{"name":"a","namespace":"prod"}}'
    source = Source(cluster="c1", group="core", resource="pods")
    gone = source.deleted("a", api.version, namespace="prod", body=last)
    await api.snapshot.apply(gone)
    row = await running.row()
    assert (row[:2], row[-1]) == (["c1", "a"], "(deleted)")
    status, errors = await running.end()
    assert (status, errors) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("is_long", [False, True])
async def test_t19_w_goes_on_after_the_api_was_restarted(
    is_long: bool, redis: Redis, valkey_url: str, tmp_path: Path
):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with AsyncExitStack() as exits:
        await _goes_on(valkey_url, tmp_path, snapshot, exits, is_long=is_long)


async def _goes_on(
    valkey_url: str, tmp_path: Path, snapshot: Snapshot, exits: AsyncExitStack, *, is_long: bool
) -> None:
    async with served(valkey_url, tmp_path) as url, http_client(url) as client:
        api = QueryApi(url, client, snapshot)
        await api.add_cluster("c1")
        await api.add("c1", PODS, "a")
        running = await exits.enter_async_context(
            started(url, tmp_path, "list", "pods", "--clusterName", "c1", "-w")
        )
        assert (await running.row())[0] == "CLUSTER"
        assert (await running.row())[1] == "a"
    (tmp_path / "query-api.port").unlink()
    await api.add("c1", PODS, "while-away")
    if is_long:
        await snapshot.forget_changes()
    async with served(valkey_url, tmp_path, port=int(url.rpartition(":")[2])):
        assert (await running.row())[:2] == ["c1", "while-away"]
        status, errors = await running.end()
    assert (status, errors.count("trying again")) == (130, 1)


async def test_w_is_refused_where_there_is_nothing_to_follow(api: QueryApi, tmp_path: Path):
    await api.add_cluster("c1")
    for words in (["clusters"], ["pods", "-o", "json"]):
        async with started(api.url, tmp_path, "list", *words, "-w") as running:
            await running.process.wait()
            status, errors = await running.end()
        assert (status, "-w works only with tables" in errors) == (2, True)
