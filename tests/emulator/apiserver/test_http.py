"""Over HTTP: listeners, kubeconfig, faults on connections."""

import asyncio
import gzip
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.support.kube_calls import CONFIGMAPS, CRDS, config_map, widget_definition
from fleetbus_emulator.apiserver import (
    Abort,
    ApiServers,
    Cluster,
    CutWatch,
    Delay,
    Expire,
    Fail,
    Hang,
    HideBookmarks,
    StaleList,
    StallWatch,
    serve,
)
from support.eventually import eventually
from support.hostile.foreign_ports import taken_by_chance
from support.servers.plain_http import http_client

PATIENCE = timedelta(seconds=10).total_seconds()


class Rig:
    """A served cluster and an HTTP client for it."""

    def __init__(self, cluster: Cluster, servers: ApiServers, http: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self.servers = servers
        self.http = http

    def add(self, name: str) -> None:
        self.cluster.create("v1/configmaps", config_map(name), "default")

    def stream(self, **query: str) -> Any:
        return self.http.stream("GET", CONFIGMAPS, params={"watch": "1", **query})


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    cluster = Cluster("alpha", seed=1, bookmark_interval=timedelta(milliseconds=50))
    async with (
        serve([cluster]) as servers,
        http_client(servers.url("alpha"), timeout=PATIENCE) as http,
    ):
        yield Rig(cluster, servers, http)


async def lines_of(response: httpx.Response, count: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    async for line in response.aiter_lines():
        lines.append(json.loads(line))
        if len(lines) == count:
            break
    return lines


async def test_a_watch_sends_its_headers_at_once_and_events_as_they_come(rig: Rig):
    async with rig.stream() as response:
        assert response.headers["content-type"] == "application/json"
        assert response.headers["transfer-encoding"] == "chunked"
        rig.add("a")
        (event,) = await lines_of(response, 1)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


async def test_a_watch_is_released_when_its_client_leaves(rig: Rig):
    async with rig.stream():
        assert rig.cluster.open_watches == 1
    await eventually(lambda: rig.cluster.open_watches == 0)


async def test_a_watch_ends_at_its_deadline_without_an_event(rig: Rig):
    async with rig.stream(timeoutSeconds="1") as response:
        assert [line async for line in response.aiter_lines()] == []


async def test_large_answers_are_compressed_and_small_ones_are_not(rig: Rig):
    for number in range(3):
        data = {"x": "y" * 60_000}
        rig.cluster.create(
            "v1/configmaps", {"metadata": {"name": f"c{number}"}, "data": data}, "default"
        )
    async with rig.http.stream("GET", CONFIGMAPS) as response:
        raw = b"".join([chunk async for chunk in response.aiter_raw()])
    assert response.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(raw))["items"]) == 3
    assert "content-encoding" not in (await rig.http.get("/version")).headers


async def test_a_body_over_three_mebibytes_is_413(rig: Rig):
    big = config_map("big", x="y" * (3 * 1024 * 1024 + 1000))
    reply = await rig.http.post(CONFIGMAPS, json=big)
    assert reply.status_code == 413
    assert reply.json()["message"] == "Request entity too large: limit is 3145728"


async def test_a_stopped_cluster_refuses_and_comes_back_on_its_port_with_its_objects(rig: Rig):
    rig.add("a")
    url = rig.servers.url("alpha")
    async with rig.stream(resourceVersion=str(rig.cluster.resource_version)) as response:
        await rig.servers.stop("alpha")
        with pytest.raises(httpx.TransportError):
            await response.aread()
    with pytest.raises(httpx.ConnectError):
        await rig.http.get(CONFIGMAPS)
    await rig.servers.start("alpha")
    assert rig.servers.url("alpha") == url
    assert (await rig.http.get(CONFIGMAPS)).json()["items"][0]["metadata"]["name"] == "a"


async def test_the_port_of_a_stopped_cluster_is_nobody_elses():
    async with serve([Cluster("alpha")]) as servers:
        await servers.stop("alpha")
        with taken_by_chance(int(servers.url("alpha").rpartition(":")[2])) as taken:
            assert not taken
            await servers.start("alpha")


async def test_stopping_with_many_open_watches_is_quick():
    cluster = Cluster("alpha")
    async with asyncio.timeout(PATIENCE), serve([cluster]) as servers:
        address = servers.url("alpha").removeprefix("http://").split(":")
        writers: list[asyncio.StreamWriter] = []
        for _ in range(50):
            _, writer = await asyncio.open_connection(address[0], int(address[1]))
            writer.write(f"GET {CONFIGMAPS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            writers.append(writer)
        await eventually(lambda: cluster.open_watches == 50)
        began = asyncio.get_running_loop().time()
        await servers.stop("alpha")
        assert asyncio.get_running_loop().time() - began < 1.0
        assert cluster.open_watches == 0
        for writer in writers:
            writer.transport.abort()


async def read_into(received: bytearray, response: httpx.Response) -> None:
    async for chunk in response.aiter_bytes():
        received.extend(chunk)


# faults -----------------------------------------------------------------------------------------


async def test_a_status_fault_is_spent_after_its_count(rig: Rig):
    fault = Fail(status=429, retry_after=timedelta(seconds=1))
    rule = rig.cluster.faults.add(fault, verb="list", resource="configmaps", count=2)
    replies = [await rig.http.get(CONFIGMAPS) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [429, 429, 200]
    assert replies[0].headers["retry-after"] == "1"
    assert replies[0].json()["reason"] == "TooManyRequests"
    assert (rule.hits, rule.active) == (2, False)


async def test_rules_apply_only_to_what_they_match(rig: Rig):
    rig.cluster.faults.add(Fail(status=503), resource="secrets")
    rig.cluster.faults.add(Fail(status=503), verb="get", name="b")
    rig.cluster.faults.add(Fail(status=503), user_agent="watcher/")
    rig.cluster.faults.add(Fail(status=500), verb="write", skip=1)
    rig.add("a")
    assert (await rig.http.get(f"{CONFIGMAPS}/a")).status_code == 200
    assert (await rig.http.get(f"{CONFIGMAPS}/b")).status_code == 503
    agent = {"user-agent": "watcher/1.0"}
    assert (await rig.http.get(CONFIGMAPS, headers=agent)).status_code == 503
    assert (await rig.http.post(CONFIGMAPS, json=config_map("c"))).status_code == 201
    assert (await rig.http.post(CONFIGMAPS, json=config_map("d"))).status_code == 500
    rig.cluster.faults.clear()
    assert (await rig.http.get(f"{CONFIGMAPS}/c")).status_code == 200


async def test_a_rule_that_matches_everything_applies_to_health_and_discovery_too(rig: Rig):
    rig.cluster.faults.add(Fail(status=503), verb="get")
    assert (await rig.http.get("/readyz")).status_code == 200
    rig.cluster.faults.add(Fail(status=503))
    assert (await rig.http.get("/readyz")).status_code == 503
    assert (await rig.http.get("/apis")).status_code == 503


async def test_an_abort_before_the_commit_leaves_nothing(rig: Rig):
    rig.cluster.faults.add(Abort(), verb="create", count=1)
    with pytest.raises(httpx.TransportError):
        await rig.http.post(CONFIGMAPS, json=config_map("a"))
    assert rig.cluster.get("v1/configmaps", "default", "a") is None
    assert [request.status for request in rig.cluster.requests] == [0]


async def test_an_abort_after_the_commit_leaves_the_object_and_no_answer(rig: Rig):
    rig.cluster.faults.add(Abort(after_commit=True), verb="create", count=1)
    with pytest.raises(httpx.TransportError):
        await rig.http.post(CONFIGMAPS, json=config_map("a"))
    assert rig.cluster.get("v1/configmaps", "default", "a") is not None
    assert (await rig.http.post(CONFIGMAPS, json=config_map("a"))).status_code == 409


async def test_an_aborted_watch_leaves_nothing_open(rig: Rig):
    rig.cluster.faults.add(Abort(after_commit=True), verb="watch", count=1)
    with pytest.raises(httpx.TransportError):
        await rig.http.get(CONFIGMAPS, params={"watch": "1"})
    assert rig.cluster.open_watches == 0


async def test_a_hanging_request_never_answers_and_a_late_one_does(rig: Rig):
    rig.cluster.faults.add(Hang(), verb="list", count=1)
    with pytest.raises(httpx.ReadTimeout):
        await rig.http.get(CONFIGMAPS, timeout=0.1)
    rig.cluster.faults.add(Delay(timedelta(milliseconds=50)), verb="list")
    began = asyncio.get_running_loop().time()
    assert (await rig.http.get(CONFIGMAPS)).status_code == 200
    assert asyncio.get_running_loop().time() - began >= 0.05


async def test_a_cut_watch_breaks_in_the_midst_of_a_line(rig: Rig):
    rig.cluster.faults.add(CutWatch(after_events=2), verb="watch", count=1)
    for name in ("a", "b", "c"):
        rig.add(name)
    received = bytearray()
    async with rig.stream() as response:
        with pytest.raises(httpx.TransportError):
            await read_into(received, response)
    data = bytes(received)
    assert data.count(b"\n") == 1
    assert data.splitlines()[0].endswith(b"}}")
    assert not data.splitlines()[1].endswith(b"}}")


async def test_a_stalled_watch_is_silent_and_tells_everything_once_it_is_let_go(rig: Rig):
    async with rig.stream() as response:
        stall = rig.cluster.faults.add(StallWatch(), verb="watch", resource="configmaps")
        rig.add("a")
        reading = asyncio.ensure_future(lines_of(response, 1))
        done, _ = await asyncio.wait([reading], timeout=0.1)
        assert not done
        stall.remove()
        (event,) = await reading
        assert event["object"]["metadata"]["name"] == "a"


async def test_a_stall_after_some_events_holds_back_the_rest(rig: Rig):
    for name in ("a", "b", "c"):
        rig.add(name)
    stall = rig.cluster.faults.add(StallWatch(after_events=1), verb="watch")
    names: list[str] = []
    async with rig.stream() as response:
        async for line in response.aiter_lines():
            names.append(json.loads(line)["object"]["metadata"]["name"])
            if names == ["a"]:
                rig.add("d")
                stall.remove()
            if len(names) == 4:
                break
    assert names == ["a", "b", "c", "d"]


async def test_bookmarks_can_be_suppressed(rig: Rig):
    rig.cluster.faults.add(HideBookmarks(), verb="watch", count=1)
    query = {"allowWatchBookmarks": "1", "timeoutSeconds": "1"}
    async with rig.stream(**query) as response:
        assert await lines_of(response, 1) == []
    async with rig.stream(**query) as response:
        assert [event["type"] for event in await lines_of(response, 1)] == ["BOOKMARK"]


async def test_410_comes_on_opening_in_the_stream_or_on_later_pages(rig: Rig):
    for name in ("a", "b", "c"):
        rig.add(name)
    rig.cluster.faults.add(Expire("open"), verb="watch", count=1)
    async with rig.stream() as response:
        assert response.status_code == 410
    rig.cluster.faults.add(Expire("stream", after_events=2), verb="watch", count=1)
    async with rig.stream() as response:
        *sent, error = [json.loads(line) async for line in response.aiter_lines()]
    assert [event["type"] for event in sent] == ["ADDED"] * 2
    assert error["object"]["code"] == 410
    rig.cluster.faults.add(Expire("page"), verb="list")
    first = (await rig.http.get(CONFIGMAPS, params={"limit": "2"})).json()["metadata"]
    page = await rig.http.get(CONFIGMAPS, params={"limit": "2", "continue": first["continue"]})
    assert page.status_code == 410
    assert page.json()["metadata"]["continue"]


async def test_stale_lists_answer_the_past_at_version_0_only(rig: Rig):
    rig.add("a")
    past = rig.cluster.resource_version
    rig.add("b")
    rig.cluster.faults.add(StaleList(past), verb="list")

    async def names(**query: str) -> list[str]:
        items = (await rig.http.get(CONFIGMAPS, params=query)).json()["items"]
        return [item["metadata"]["name"] for item in items]

    assert await names(resourceVersion="0") == ["a"]
    assert await names() == ["a", "b"]


async def test_a_restored_backup_returns_to_a_past_state_and_version(rig: Rig):
    rig.add("a")
    past = rig.cluster.resource_version
    await rig.http.post(CRDS, json=widget_definition())
    rig.cluster.patch("v1/configmaps", "default", "a", {"data": {"k": "late"}})
    rig.add("b")
    async with rig.stream(resourceVersion=str(rig.cluster.resource_version)) as response:
        rig.cluster.roll_back(past)
        assert [line async for line in response.aiter_lines()] == []
    document = (await rig.http.get(CONFIGMAPS)).json()
    assert [(i["metadata"]["name"], i.get("data")) for i in document["items"]] == [("a", None)]
    assert document["metadata"]["resourceVersion"] == str(past)
    assert (await rig.http.get("/apis/example.com")).status_code == 404


# clients ----------------------------------------------------------------------------------------


async def run(*command: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_two_clusters_of_one_name_are_refused():
    with pytest.raises(ValueError, match="more than one cluster is called alpha"):
        async with serve([Cluster("alpha"), Cluster("beta"), Cluster("alpha")]):
            pass


async def test_a_kubeconfig_is_readable_only_for_its_owner(rig: Rig, tmp_path: Path):
    path = tmp_path / "kubeconfig"
    rig.servers.write_kubeconfig(path)
    assert path.stat().st_mode & 0o077 == 0


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl_trusts_the_kubeconfig_and_shows_its_token_over_https(tmp_path: Path):
    path = tmp_path / "kubeconfig"
    async with serve([Cluster("alpha", tokens={"secret": "ann"})], tls=True) as servers:
        servers.write_kubeconfig(path, token="secret")
        assert servers.url("alpha").startswith("https://")
        cache = str(tmp_path / "cache")
        command = [str(KUBECTL), "--kubeconfig", str(path), "--cache-dir", cache]
        assert "default" in await run(*command, "get", "namespaces")
        assert "ann" in await run(*command, "auth", "whoami")
