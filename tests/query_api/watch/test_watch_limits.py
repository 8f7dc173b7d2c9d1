"""Bounds of watches: memory, numbers, rights, the end of the process (rules A3, A6, A8)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus_query_api.kube.objects.forms import WholeObjects
from fleetbus_query_api.watch import stream, subscription
from support.eventually import eventually
from support.rigs.query_api import QueryApi, served
from support.rigs.secured_api import RBAC, SecuredApi, grant, rule, secured_api
from support.rigs.watch_client import WatchClient, watching
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

    from fleetbus.snapshot import Entry

PODS = "core/pods"
EU1 = "/kube/eu1/api/v1/pods"
FLEET = "/kube/-/api/v1/pods"
TENTH = timedelta(seconds=0.1)


async def version_of(api: QueryApi) -> str:
    return (await api.get(EU1)).json()["metadata"]["resourceVersion"]


async def test_a8_open_watches_do_not_use_up_the_requests_of_their_user(api: QueryApi):
    await api.add_cluster("eu1", PODS)
    since = await version_of(api)
    async with AsyncExitStack() as exits:
        watches = [
            await exits.enter_async_context(watching(api.client, EU1, resourceVersion=since))
            for _ in range(20)
        ]
        await api.add("eu1", PODS, "web")
        for watch in watches:
            await watch.has("ADDED web")


async def test_a8_too_many_watches_are_429(redis: Redis, valkey_url: str, tmp_path: Path):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with (
        served(valkey_url, tmp_path, user_watches=2) as url,
        http_client(url, timeout=10) as client,
    ):
        api = QueryApi(url, client, snapshot)
        await api.add_cluster("eu1", PODS)
        async with watching(client, EU1), watching(client, EU1):
            refused = await api.get(EU1, watch="1")
            assert refused.status_code == 429
            assert refused.json()["message"] == "2 of your watches are open"
            assert int(refused.headers["Retry-After"]) > 0
        await eventually(lambda: _may_watch(api))


async def _may_watch(api: QueryApi) -> bool:
    answer = await api.get(EU1, watch="1", timeoutSeconds="1", resourceVersion="0")
    return answer.status_code == 200


@pytest.mark.slow
async def test_a8_a_client_that_does_not_read_is_cut_and_the_others_are_not(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subscription, "MAX_WAITING", 2_000_000)
    await api.add_cluster("eu1", PODS)
    since = await version_of(api)
    path = f"{EU1}?watch=1&resourceVersion={since}"
    host, _, port = api.url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        # Else the kernel may hold all that follows for the client: a buffer grows to 32 MiB here,
        # that of the server to 4 MiB.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readline()
        async with watching(api.client, EU1, resourceVersion=since) as other:
            for start in range(0, 300, 10):
                for number in range(start, start + 10):
                    await api.add("eu1", PODS, f"w{number}", spec={"filler": "x" * 40_000})
                await eventually(lambda at=start: len(other.events) == at + 10)
        remaining = await reader.read(-1)
        assert remaining.count(b'"type":"ADDED"') < 300
        assert b'"code":410' in remaining[-1000:]
        writer.close()


async def test_a8_an_event_is_encoded_once_for_all_headers_that_mean_one_form(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    original, encoded = WholeObjects.answer, list[str]()

    def answer(self: WholeObjects, entries: Sequence[Entry]) -> bytes:
        encoded.extend(entry.name for entry in entries)
        return original(self, entries)

    monkeypatch.setattr(WholeObjects, "answer", answer)
    await api.add_cluster("eu1", PODS)
    since = await version_of(api)
    async with AsyncExitStack() as exits:
        watches: list[WatchClient] = []
        for at in range(8):
            headers = {"Accept": f"application/x-{at}, application/json;q=0.{at}"}
            client = await exits.enter_async_context(http_client(api.url, headers=headers))
            watch = watching(client, EU1, resourceVersion=since, includeObject="Object")
            watches.append(await exits.enter_async_context(watch))
        await api.add("eu1", PODS, "web")
        for watch in watches:
            await watch.has("ADDED web")
    assert encoded == ["web"]


async def test_a6_watches_end_at_once_when_the_process_stops(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with AsyncExitStack() as serving, AsyncExitStack() as clients:
        url = await serving.enter_async_context(served(valkey_url, tmp_path))
        client = await clients.enter_async_context(http_client(url, timeout=10))
        api = QueryApi(url, client, snapshot)
        await api.add_cluster("eu1", PODS)
        query = {"resourceVersion": await version_of(api), "allowWatchBookmarks": "1"}
        watch = await clients.enter_async_context(watching(client, EU1, **query))
        began = asyncio.get_running_loop().time()
        await serving.aclose()
        assert asyncio.get_running_loop().time() - began < 2.5
        await watch.ended()
        assert watch.seen == ["BOOKMARK "]


@pytest.fixture
async def secured(
    redis: Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[SecuredApi]:
    """Users' rights are looked at again every tenth of a second."""
    monkeypatch.setattr(stream, "RECHECK_EVERY", TENTH)
    async with secured_api(redis, valkey_url, tmp_path) as api:
        await api.start(allow_cache=timedelta(0), deny_cache=timedelta(0))
        yield api


def bindings_of(secured: SecuredApi, user: str) -> list[str]:
    return [
        binding["metadata"]["name"]
        for binding in secured.hub.list(f"{RBAC}/clusterrolebindings")
        if binding["subjects"][0]["name"] == user
    ]


async def test_a3_a_right_on_one_of_several_clusters_that_is_revoked_ends_an_open_watch(
    secured: SecuredApi,
):
    token = secured.user("ann")
    rules = [
        rule("list watch", "fleetbus.dev", "clusters/pods", names=(name,))
        for name in ("eu1", "us1")
    ]
    grant(secured.hub, "ann", rules[0])
    [kept_binding] = bindings_of(secured, "ann")
    grant(secured.hub, "ann", rules[1])
    async with watching(secured.client, FLEET, token=token, resourceVersion="0") as watch:
        await eventually(lambda: len(watch.events) == 4)
        for name in {*bindings_of(secured, "ann")} - {kept_binding}:
            secured.hub.delete(f"{RBAC}/clusterrolebindings", None, name)
        await watch.ended()
        assert watch.error["code"] == 410
        assert "that you may read have changed" in watch.error["message"]


async def test_a3_a_revoked_right_ends_an_open_watch(secured: SecuredApi):
    token = secured.user("ann")
    grant(secured.hub, "ann", rule("list watch", "fleetbus.dev", "clusters/pods"))
    async with watching(secured.client, FLEET, token=token, resourceVersion="0") as watch:
        await eventually(lambda: len(watch.events) == 4)
        for name in bindings_of(secured, "ann"):
            secured.hub.delete(f"{RBAC}/clusterrolebindings", None, name)
        await watch.ended()
        assert watch.error["code"] == 410
        assert "that you may read have changed" in watch.error["message"]


async def test_a3_a_new_right_shows_the_objects_of_another_cluster(secured: SecuredApi):
    token = secured.user("ann")
    grant(
        secured.hub,
        "ann",
        rule("list watch", "fleetbus.dev", "clusters/pods", names=("eu1",)),
    )
    filling = QueryApi("", secured.client, secured.snapshot, version=500)
    query = {"resourceVersion": "0", "allowWatchBookmarks": "1"}
    async with watching(secured.client, FLEET, token=token, **query) as watch:
        await watch.has("ADDED prod-1", "ADDED test-1")
        await filling.add("us1", PODS, "hidden")
        grant(
            secured.hub,
            "ann",
            rule("list watch", "fleetbus.dev", "clusters/pods", names=("us1",)),
        )
        await eventually(lambda: len(watch.events) == 6)
        assert watch.seen[2:] == ["ADDED hidden", "ADDED prod-1", "ADDED test-1", "BOOKMARK "]
        assert watch.versions[-1] == max(watch.versions), "a client goes on from the bookmark"
        await filling.add("us1", PODS, "new")
        await filling.add("eu1", PODS, "new")
        await eventually(lambda: watch.seen[6:] == ["ADDED new", "ADDED new"])


async def test_a1_a_watch_takes_the_right_to_watch(secured: SecuredApi):
    token = secured.user("bob")
    grant(secured.hub, "bob", rule("get list", "fleetbus.dev", "clusters/pods"))
    refused = await secured.get(token, FLEET, watch="1")
    absent = await secured.get(token, "/kube/-/api/v1/nothings", watch="1")
    assert refused.status_code == absent.status_code == 404


@pytest.mark.slow
async def test_a5_a_watch_that_is_cut_within_a_cluster_that_joined_misses_none_of_its_objects(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    """They are sent by name: the first may be younger than those behind it."""
    monkeypatch.setattr(stream, "RECHECK_EVERY", timedelta(seconds=1))
    await api.add_cluster("eu1", PODS)
    listed = (await api.get(FLEET)).json()["metadata"]["resourceVersion"]
    async with watching(api.client, FLEET, resourceVersion=listed) as watch:
        await api.add_cluster("us1", PODS)
        await api.add("us1", PODS, "older")
        await api.add("us1", PODS, "a-younger-one")
        await watch.has("ADDED a-younger-one", "ADDED older")
    async with watching(api.client, FLEET, resourceVersion=str(watch.versions[0])) as again:
        await eventually(lambda: again.events)
        assert again.error.get("code") == 410 or "ADDED older" in again.seen
