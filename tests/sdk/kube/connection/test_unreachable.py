"""A cluster that does not answer costs its callers nothing, and is found again when it does."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from fleetbus import errors
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.breaker import FAILURES, ApiBreaker
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.kube.connection.response import Limits
from fleetbus.kube.impersonation import ActingClient
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus.kube.list_watch.reflect import watch_events
from fleetbus.kube.requests import Call
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.faults import Fail, Hang
from fleetbus_proto.resources import parse_resource
from support.rows import each_row

MAPS = "v1/configmaps"
TARGET = WatchTarget(parse_resource("v1/pods"))
SHORT = timedelta(milliseconds=50)


class Clock:
    """The time of the breaker, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(
        "fleetbus.kube.connection.breaker.time", SimpleNamespace(monotonic=fake_clock)
    )
    return fake_clock


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("eu1")


@pytest.fixture
async def client(cluster: Cluster, tmp_path: pathlib.Path) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers:
        path = tmp_path / "kubeconfig"
        servers.write_kubeconfig(path)
        async with KubeClient(read_kube_config(path)) as client:
            client.cluster, client.breaker = "eu1", ApiBreaker("eu1")
            yield client


async def fail(client: KubeClient, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(errors.Unreachable):
            await client.request(Call("GET", "/api/v1/pods", within=SHORT))


async def test_q9_after_three_failures_in_a_row_calls_fail_at_once(
    client: KubeClient, cluster: Cluster, clock: Clock
) -> None:
    hang = cluster.faults.add(Hang())
    await fail(client, FAILURES)
    count = len(cluster.requests)
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(errors.Unreachable, match="'eu1' does not answer") as refused:
            await client.request(Call("GET", "/api/v1/pods", within=timedelta(seconds=30)))
        assert refused.value.cluster == "eu1"  # so that the queue's breaker counts it, too
    assert time.monotonic() - started < 5
    assert len(cluster.requests) == count
    hang.remove()
    with pytest.raises(errors.Unreachable):
        await client.get(MAPS, "default", "a")  # not yet
    clock.now += 5
    assert await client.get(MAPS, "default", "a") is None
    assert await client.get(MAPS, "default", "a") is None


async def test_q9_whoever_tries_again_asks_for_the_version_and_never_sends_a_write_to_try(
    client: KubeClient, cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.kube.client.CONNECT_TIMEOUT", timedelta(milliseconds=100))
    cluster.faults.add(Hang())
    await fail(client, FAILURES)
    clock.now += 5
    before = len(cluster.requests)
    with pytest.raises(errors.Unreachable):
        await client.create(MAPS, {"metadata": {"name": "a", "namespace": "default"}})
    with pytest.raises(errors.Unreachable):
        await client.create(MAPS, {"metadata": {"name": "a", "namespace": "default"}})
    requests = list(cluster.requests)[before:]
    assert {(request.method, request.path) for request in requests} == {("GET", "/version")}


async def test_q9_an_answer_between_failures_keeps_the_way_open(
    client: KubeClient, cluster: Cluster
) -> None:
    for _ in range(3):
        hang = cluster.faults.add(Hang())
        await fail(client, FAILURES - 1)
        hang.remove()
        refusal = cluster.faults.add(Fail(status=500))
        with pytest.raises(errors.ServerError):
            await client.get(MAPS, "default", "a")
        refusal.remove()
    assert await client.get(MAPS, "default", "a") is None


async def test_a_refusal_of_whoever_tries_again_is_an_answer(
    client: KubeClient, cluster: Cluster, clock: Clock
) -> None:
    hang = cluster.faults.add(Hang())
    await fail(client, FAILURES)
    hang.remove()
    cluster.faults.add(Fail(status=403), count=1)  # the knock
    clock.now += 5
    assert await client.get(MAPS, "default", "a") is None


@asynccontextmanager
async def careless_proxy() -> AsyncGenerator[KubeClient]:
    """A client of something that answers pages to people, and cuts everything else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        is_cut = "/pods" in request
        body = b'{"kind":' if is_cut else b"<html>log in</html>"
        length = 1000 if is_cut else len(body)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (length, body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    named = [{"name": "x", "cluster": {"server": f"http://{host}:{port}"}}]
    context = [{"name": "x", "context": {"cluster": "x"}}]
    document = {"clusters": named, "contexts": context, "current-context": "x"}
    async with KubeClient(KubeConfig(json.dumps(document))) as client:
        client.cluster = "eu1"
        yield client
    server.close()


async def drained(answers: AsyncIterator[object]) -> None:
    async for _ in answers:
        pass


async def closed(client: KubeClient) -> None:
    await client.aclose()
    await client.stream("/", limits=Limits(idle=SHORT))


WAYS: dict[str, Callable[[KubeClient], Awaitable[object]]] = {
    "get": lambda client: client.get(MAPS, "default", "a"),
    "patch": lambda client: client.patch(MAPS, "default", "a", {}),
    "as joe": lambda client: ActingClient(client, "joe").get(MAPS, "default", "a"),
    "discovery": lambda client: client.discovery.resources(),
    "kind": lambda client: client.discover("v1", "Pod"),
    "page": lambda client: drained(list_pages(client, TARGET)),
    "list": lambda client: drained(list_pages(client, TARGET, limit=0)),
    "watch": lambda client: drained(watch_events(client, TARGET, "1")),
    "closed": closed,
}


@each_row("way", WAYS)
async def test_q9_every_way_to_get_no_answer_names_the_cluster(way: str) -> None:
    async with careless_proxy() as client:
        with pytest.raises(errors.Unreachable) as caught:
            await WAYS[way](client)
    assert caught.value.cluster == "eu1"
    assert "cluster 'eu1'" in str(caught.value)


async def test_every_cluster_of_the_fleet_has_its_own() -> None:
    info = ClusterInfo(name="eu1", hub=True, provider="test", config=None)
    clusters = Clusters([], hub=info)
    breaker = clusters.client("eu1").breaker
    assert breaker is not None
    assert not breaker.is_open
    await clusters.aclose()
