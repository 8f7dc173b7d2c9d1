"""List and watch for ever: rules W1, W2, W8, W11, W16."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web

from fleetbus.errors import Gone, KubeError, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import ApiBackoff, BackoffPolicy
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus.kube.list_watch.reflect import (
    ObjectList,
    Observer,
    WatchEvent,
    WatchType,
    follow,
    reflect,
)
from fleetbus_emulator.apiserver import Cluster, CutWatch, Expire, Fail, serve
from fleetbus_proto.resources import parse_resource
from support.eventually import eventually
from support.rigs.agents import Connect
from support.rows import each_row

TARGET = WatchTarget(parse_resource("v1/configmaps"))
QUICK = BackoffPolicy(first=timedelta(milliseconds=10), cap=timedelta(milliseconds=50))


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster("alpha", bookmark_interval=timedelta(milliseconds=100))


@pytest.fixture
async def client(cluster: Cluster, connect: Connect) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers, connect(servers.kubeconfig()) as kube:
        yield kube


def write(cluster: Cluster, name: str, value: str = "v") -> None:
    if cluster.get("v1/configmaps", "default", name) is None:
        cluster.create("v1/configmaps", {"metadata": {"name": name}}, "default")
    cluster.patch("v1/configmaps", "default", name, {"data": {"k": value}})


async def test_reflect_keeps_a_copy_equal_over_every_fault(cluster: Cluster, client: KubeClient):
    copy: dict[str, Any] = {}
    errors: list[KubeError] = []

    async def mirror() -> None:
        observer = Observer(on_failure=errors.append)
        async for change in reflect(client, TARGET, policy=QUICK, observer=observer):
            if isinstance(change, ObjectList):
                copy.clear()
                copy.update({o["metadata"]["name"]: o for o in change.objects})
            elif change.type is WatchType.DELETED:
                copy.pop(change.object["metadata"]["name"], None)
            else:
                copy[change.object["metadata"]["name"]] = change.object

    write(cluster, "a0")
    task = asyncio.create_task(mirror())
    faults = [
        CutWatch(after_events=2),
        Expire("stream", after_events=1),
        Expire("open"),
        Fail(503),
        Fail(429, retry_after=timedelta(0)),
    ]
    for number, fault in enumerate(faults):
        rule = cluster.faults.add(fault, resource="configmaps")
        for name in range(5):
            write(cluster, f"a{name}", f"{number}")
            await asyncio.sleep(0.01)  # the pace of the changes
        cluster.delete("v1/configmaps", "default", f"a{number}")
        rule.remove()
    await eventually(lambda: _versions(copy.values()) == _versions(cluster.list("v1/configmaps")))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert errors
    assert all(o["kind"] == "ConfigMap" and o["apiVersion"] == "v1" for o in copy.values())


async def test_reflect_waits_for_credentials_that_cannot_be_loaded():
    reported: list[KubeError] = []

    async def wait(client: KubeClient) -> None:
        observer = Observer(on_failure=reported.append)
        async for _ in reflect(client, TARGET, policy=QUICK, observer=observer):
            raise AssertionError

    async with KubeClient(KubeConfig("clusters: []", source="my.kubeconfig")) as broken:
        waiting = asyncio.create_task(wait(broken))
        await eventually(lambda: len(reported) > 1 or waiting.done())
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert {(type(e), str(e).partition(":")[0]) for e in reported} == {
        (Unreachable, "my.kubeconfig")
    }


async def test_w1_follow_resumes_where_it_was(cluster: Cluster, client: KubeClient):
    write(cluster, "a")
    start = str(cluster.resource_version)
    cluster.faults.add(CutWatch(after_events=2), verb="watch")
    names: list[str] = []
    for number in range(10):
        write(cluster, f"b{number}")
    quick = BackoffPolicy(first=timedelta(milliseconds=5), cap=timedelta(milliseconds=5))
    async with aclosing(follow(client, TARGET, start, backoff=ApiBackoff(quick))) as events:
        async for event in events:
            if event.type is WatchType.ADDED:
                names.append(name_of(event))
                if len(names) == 10:
                    break
    assert names == [f"b{number}" for number in range(10)]
    assert len([r for r in cluster.requests if r.verb == "watch"]) > 3


async def test_w2_all_pages_have_the_version_of_the_first(cluster: Cluster, client: KubeClient):
    for number in range(7):
        write(cluster, f"a{number}")
    versions: list[str] = []
    names: list[str] = []
    async with aclosing(list_pages(client, TARGET, limit=3)) as pages:
        async for page in pages:
            versions.append(page.resource_version)
            names += [msgspec.json.decode(item)["metadata"]["name"] for item in page.items]
            write(cluster, "between")
    assert len(versions) == 3
    assert len(set(versions)) == 1
    assert sorted(names) == [f"a{number}" for number in range(7)]


async def test_w2_an_unpaged_list_is_cut_while_it_is_read(cluster: Cluster, client: KubeClient):
    for number in range(300):
        write(cluster, f"a{number:03}", "x" * 2000)
    names: list[str] = []
    pages = 0
    async with aclosing(list_pages(client, TARGET, limit=0)) as found:
        async for page in found:
            pages += 1
            assert page.kind == "ConfigMap"
            names += [msgspec.json.decode(item)["metadata"]["name"] for item in page.items]
    assert sorted(names) == [f"a{number:03}" for number in range(300)]


async def test_w2_an_expired_page_is_gone(cluster: Cluster, client: KubeClient):
    for number in range(4):
        write(cluster, f"a{number}")
    cluster.faults.add(Expire("page"), verb="list")
    with pytest.raises(Gone):
        await exhaust(client, limit=2)


@each_row("limit", [0, 500])
@each_row(
    "body",
    [
        b"",
        b"<html>log in</html>",
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","items":[]}',
    ],
)
async def test_w8_an_answer_that_is_no_list_is_an_error(body: bytes, limit: int):
    async with answering(body) as client:
        with pytest.raises(KubeError):
            await exhaust(client, limit=limit)


async def test_w16_one_item_nested_too_deeply_does_not_spoil_its_list():
    deep = b"[" * 5000 + b"]" * 5000
    body = (
        b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":['
        b'{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":' + deep + b"}]}"
    )
    async with answering(body) as client, aclosing(list_pages(client, TARGET)) as pages:
        page = await anext(pages)
    assert [b'"a"' in bytes(page.items[0]), b'"b"' in bytes(page.items[1])] == [True, True]


async def test_w16_unreadable_lines_do_not_end_the_watch():
    deep = b"[" * 5000 + b"]" * 5000
    head = b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"7"}'
    body = b"\n".join(
        [
            b"garbage",
            b'{"type":"ADDED","object":{}}',
            b'{"type":"NEW","object":{"metadata":{"resourceVersion":"6"}}}',
            head + b',"spec":' + deep + b"}}",
            head + b"}}",
            b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"8"}}}',
            b"",
        ]
    )
    found: list[WatchEvent] = []
    async with answering(body) as client:
        events = follow(client, TARGET, "5", backoff=ApiBackoff(QUICK))
        async with aclosing(events):
            async for event in events:
                found.append(event)
                if event.type is WatchType.BOOKMARK:
                    break
    assert [e.type for e in found[:3]] == [WatchType.UNREADABLE] * 3
    assert [(e.type, e.resource_version) for e in found[3:]] == [
        (WatchType.ADDED, "7"),
        (WatchType.ADDED, "7"),
        (WatchType.BOOKMARK, "8"),
    ]
    assert found[3].object is None
    assert found[4].object is not None


@each_row("code", ["410", '"410"', "null"])
async def test_an_error_event_is_raised_whatever_it_holds(code: str):
    line = f'{{"type":"ERROR","object":{{"kind":"Status","code":{code},"reason":"Expired"}}}}\n'
    errors: list[KubeError] = []
    async with answering(line.encode()) as client:
        observer = Observer(on_failure=errors.append)
        events = follow(client, TARGET, "5", backoff=ApiBackoff(QUICK), observer=observer)
        pulling = asyncio.create_task(anext(events))
        if code == "410":
            with pytest.raises(Gone):
                await pulling
        else:
            await eventually(lambda: len(errors) >= 2)
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)
        await events.aclose()


# --- a server that says anything --------------------------------------------------------------


class answering:  # noqa: N801 -- reads as a verb where it is used
    """A client of a server that answers every request with the same bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._runner = web.ServerRunner(web.Server(self._answer))

    async def _answer(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self._body, content_type="application/json")

    async def __aenter__(self) -> KubeClient:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        document: dict[str, Any] = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": {}}],
        }
        self._client = KubeClient(KubeConfig(yaml.safe_dump(document)))
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self._runner.cleanup()


async def exhaust(client: KubeClient, *, limit: int) -> None:
    async with aclosing(list_pages(client, TARGET, limit=limit)) as pages:
        async for _ in pages:
            pass


def name_of(event: WatchEvent) -> str:
    return msgspec.json.decode(event.metadata["name"], type=str)


def _versions(objects: Any) -> dict[str, str]:
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in objects}
