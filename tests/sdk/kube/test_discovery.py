"""Discovery of an API server that is odd, slow or down."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import yaml
from aiohttp import web

from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.discovery import Discovery
from fleetbus.kube.discovery_documents import AGGREGATED
from fleetbus.kube.requests import JSON, Call
from fleetbus.kube.responses import Answer
from fleetbus_emulator.apiserver import Cluster, GroupDown, serve
from support.eventually import eventually
from support.rows import each_row

SCHEMA: dict[str, Any] = {"openAPIV3Schema": {"type": "object"}}
PODS: dict[str, Any] = {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list"]}


class Served:
    """Discovery documents behind real HTTP; the paths in `hanging` wait for `go`."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {"/api/v1": {"resources": [PODS]}}
        self.hanging: set[str] = set()
        self.go = asyncio.Event()
        self.asked: list[str] = []

    def add(self, group: str, document: Any) -> None:
        self.documents[f"/apis/{group}/v1"] = document

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.path)
        if request.path in self.hanging:
            await self.go.wait()
        return web.json_response(self.documents.get(request.path) or self._groups())

    def _groups(self) -> dict[str, Any]:
        names = [path.split("/")[2] for path in self.documents if path.startswith("/apis/")]
        served = {"version": "v1"}
        return {
            "groups": [{"name": n, "versions": [served], "preferredVersion": served} for n in names]
        }


@asynccontextmanager
async def client_of(served: Served) -> AsyncGenerator[KubeClient]:
    runner = web.ServerRunner(web.Server(served.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    document = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": address}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    try:
        async with KubeClient(KubeConfig(yaml.safe_dump(document))) as client:
            yield client
    finally:
        served.go.set()
        await runner.cleanup()


@pytest.fixture
async def served() -> Served:
    return Served()


@pytest.fixture
async def client(served: Served) -> AsyncGenerator[KubeClient]:
    async with client_of(served) as kube:
        yield kube


@pytest.mark.parametrize("document", [{"resources": None}, {"kind": "APIResourceList"}])
async def test_a_group_that_serves_nothing_may_say_so_with_null(
    served: Served, client: KubeClient, document: dict[str, Any]
):
    served.add("x.io", document)
    resources = await client.discovery.refresh()
    assert [str(api.resource) for api in resources] == ["v1/pods"]
    assert client.discovery.failed == {}


async def test_a_server_without_groups_may_say_so_with_null(served: Served, client: KubeClient):
    served.documents["/apis"] = {"groups": None}
    assert [api.kind for api in await client.discovery.refresh()] == ["Pod"]


async def test_a_resource_without_verbs_may_say_so_with_null(served: Served, client: KubeClient):
    entry = {"name": "ys", "kind": "Y", "namespaced": False, "verbs": None, "shortNames": None}
    served.add("x.io", {"resources": [entry]})
    discovered = await client.discover("x.io/v1", "Y")
    assert discovered is not None
    assert discovered.verbs == frozenset()
    assert discovered.preferred


@pytest.mark.parametrize(
    "document",
    [
        {"resources": [{"name": "ys", "namespaced": True}]},
        {"resources": [{"kind": "Y", "namespaced": True}]},
        {"resources": [None]},
        {"resources": "none"},
        {"resources": [PODS | {"kind": 7}]},
    ],
)
async def test_w8_a_malformed_document_is_a_failed_group_version_and_no_crash(
    served: Served, client: KubeClient, document: dict[str, Any]
):
    served.add("x.io", document)
    assert [api.kind for api in await client.discovery.refresh()] == ["Pod"]
    assert set(client.discovery.failed) == {"x.io/v1"}


@pytest.mark.parametrize("path", ["/apis", "/api/v1"])
async def test_a_malformed_list_of_groups_or_core_group_is_a_kube_error(
    served: Served, client: KubeClient, path: str
):
    served.documents[path] = {"groups": [{}], "resources": [{}]}
    with pytest.raises(Unreachable, match="not a discovery document"):
        await client.discovery.refresh()


async def test_s7_a_server_may_not_tell_group_versions_without_end(
    served: Served, client: KubeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.kube.discovery_documents.MAX_VERSIONS", 3)
    for name in ("a.io", "b.io", "c.io"):
        served.add(name, {"resources": [PODS]})
    assert len(await client.discovery.refresh()) == 4
    served.add("d.io", {"resources": [PODS]})
    served.asked.clear()
    with pytest.raises(Unreachable, match="more than 3 group versions"):
        await client.discovery.refresh()
    assert served.asked == ["/apis"]


async def test_s7_a_group_version_that_tells_resources_without_end_fails_alone(
    served: Served, client: KubeClient
):
    discovery = Discovery(client.exchange, most=10)
    served.add("a.io", {"resources": [PODS] * 11})
    served.add("b.io", {"resources": [PODS]})
    resources = await discovery.refresh()
    assert "more than 10 types" in str(discovery.failed["a.io/v1"])
    assert {api.resource.group for api in resources} == {"core", "b.io"}


async def test_w8_a_group_that_hangs_fails_alone(served: Served, client: KubeClient):
    for name in ("a.io", "b.io", "c.io"):
        served.add(name, {"resources": [PODS]})
    served.hanging = {"/apis/a.io/v1", "/apis/b.io/v1"}
    discovery = Discovery(client.exchange, patience=timedelta(seconds=1))
    assert {api.resource.group for api in await discovery.refresh()} == {"core", "c.io"}
    assert set(discovery.failed) == {"a.io/v1", "b.io/v1"}


async def test_group_versions_are_asked_for_side_by_side_but_not_all_at_once(
    served: Served, client: KubeClient
):
    for number in range(20):
        served.add(f"g{number}.io", {"resources": []})
    served.hanging = set(served.documents)
    reading = asyncio.create_task(client.discovery.refresh())
    await eventually(lambda: len(served.asked) == 9)
    served.go.set()
    await reading
    assert len(served.asked) == 22


async def test_a_reading_outlives_the_caller_that_began_it_and_is_shared(
    served: Served, client: KubeClient
):
    served.hanging = {"/api/v1"}
    first = asyncio.create_task(client.discovery.resources())
    await eventually(lambda: "/api/v1" in served.asked)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    second = asyncio.create_task(client.discovery.resources())
    served.go.set()
    assert [api.kind for api in await second] == ["Pod"]
    assert sorted(served.asked) == ["/api/v1", "/apis"]


async def test_a_refresh_does_not_take_what_was_asked_for_before_it(
    served: Served, client: KubeClient
):
    served.hanging = {"/api/v1"}
    before = asyncio.create_task(client.discovery.resources())
    await eventually(lambda: "/api/v1" in served.asked)
    after = [asyncio.create_task(client.discovery.refresh()) for _ in range(3)]
    served.go.set()
    await asyncio.gather(before, *after)
    assert served.asked.count("/apis") == 2


async def test_a_reading_ends_with_its_client(served: Served, client: KubeClient):
    served.hanging = {"/api/v1"}
    waiting = asyncio.create_task(client.discovery.resources())
    await eventually(lambda: "/api/v1" in served.asked)
    await client.aclose()
    with pytest.raises(Unreachable, match="closed"):
        await waiting
    assert [task for task in asyncio.all_tasks() if task.get_name() == "discovery"] == []


async def test_a_known_group_version_costs_one_request(served: Served, client: KubeClient):
    served.add("apps", {"resources": [{**PODS, "name": "deployments", "kind": "Deployment"}]})
    discovered = await client.discover("apps/v1", "Deployment")
    assert discovered is not None
    assert discovered.resource.plural == "deployments"
    assert await client.discover("apps/v1", "Deployment") == discovered
    assert served.asked == ["/apis/apps/v1"]


@pytest.mark.parametrize("written", ["apps/v1?x", "../api/v1", "a/b/v1", "", "apps/"])
async def test_s7_what_is_no_group_version_is_not_asked_for(
    served: Served, client: KubeClient, written: str
):
    assert await client.discover(written, "Deployment") is None
    assert served.asked == []


# --- aggregated ---------------------------------------------------------------------------------

CRD: dict[str, Any] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {
            "plural": "widgets",
            "kind": "Widget",
            "shortNames": ["wg"],
            "categories": ["all"],
        },
        "versions": [
            {"name": name, "served": True, "storage": name == "v1", "schema": SCHEMA}
            for name in ("v1", "v1alpha1")
        ],
    },
}


@asynccontextmanager
async def emulated() -> AsyncGenerator[tuple[Cluster, KubeClient]]:
    cluster = Cluster("eu1")
    cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
    async with (
        serve([cluster]) as servers,
        KubeClient(KubeConfig(yaml.safe_dump(servers.kubeconfig()))) as client,
    ):
        yield cluster, client


async def test_two_documents_say_what_the_document_of_each_group_version_says():
    async with emulated() as (cluster, client):

        async def as_before_1_26(call: Call) -> Answer:
            return await client.exchange(call._replace(accept=JSON))

        aggregated, legacy = client.discovery, Discovery(as_before_1_26)
        assert await aggregated.refresh() == await legacy.refresh()
        assert (
            len([request for request in cluster.requests if request.path in ("/api", "/apis")]) == 3
        )
        assert aggregated.failed == legacy.failed == {}
        assert (await aggregated.by_name("wg")) == await legacy.by_name("wg")


async def test_what_has_not_changed_is_not_sent_again():
    async with emulated() as (cluster, client):
        before = await client.discovery.refresh()
        cluster.requests.clear()
        assert await client.discovery.refresh() == before
        assert [(request.path, request.status) for request in cluster.requests] == [("/apis", 304)]
        cluster.delete(
            "apiextensions.k8s.io/v1/customresourcedefinitions", "", "widgets.example.com"
        )
        after = await client.discovery.refresh()
        assert {api.kind for api in before} - {api.kind for api in after} == {"Widget"}
        asked = [(request.path, request.status) for request in cluster.requests]
        assert asked[-2:] == [("/apis", 200), ("/api", 304)], "it may be another version"


async def test_w8_a_group_whose_server_is_down_fails_alone_and_comes_back():
    async with emulated() as (cluster, client):
        complete = await client.discovery.refresh()
        rule = cluster.faults.add(GroupDown(), group="example.com")
        partial = await client.discovery.refresh()
        assert set(client.discovery.failed) == {"example.com/v1", "example.com/v1alpha1"}
        assert partial == [api for api in complete if api.resource.group != "example.com"]
        rule.remove()
        assert await client.discovery.refresh() == complete
        assert client.discovery.failed == {}


def aggregated_group(name: str, count: int) -> dict[str, Any]:
    resources = [
        {"resource": f"ys{number}", "responseKind": {"kind": "Y"}, "scope": "Cluster"}
        for number in range(count)
    ]
    versions = [{"version": "v1", "resources": resources}]
    return {"metadata": {"name": name}, "versions": versions}


async def test_s7_types_without_end_push_out_no_built_in_ones_and_let_others_run():
    """The core group is read last: its types had no room beside 50,000 custom ones."""
    documents = {
        "/api": [aggregated_group("", 3)],
        "/apis": [aggregated_group(f"g{n}.io", 5) for n in range(30)]
        + [aggregated_group("wide.io", 200), aggregated_group("apps", 4)],
    }
    turns = list[int]()

    async def exchange(call: Call) -> Answer:
        body = json.dumps({"items": documents[call.path]}).encode()
        return Answer(body, "application/json;as=APIGroupDiscoveryList", "", is_unchanged=False)

    async def watch() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    discovery = Discovery(exchange, most=100)
    groups = Counter(api.resource.group for api in await discovery.refresh())
    watching.cancel()
    assert (groups["core"], groups["apps"], groups["g0.io"], groups["wide.io"]) == (3, 4, 5, 0)
    assert sum(groups.values()) == 107
    assert "more than 100 types" in str(discovery.failed["wide.io/v1"])
    assert len(discovery.failed) == 11
    assert len(turns) > 30


@each_row(
    "document",
    [
        "",
        "[]",
        '{"items": 5}',
        '{"items": [{"metadata": {"name": "a"}, "versions": [{}]}]}',
        "\xff",
    ],
)
async def test_a_document_that_is_none_is_no_empty_one(document: str):
    async def exchange(_call: Call) -> Answer:
        return Answer(document.encode("latin-1"), AGGREGATED, "", is_unchanged=False)

    with pytest.raises(Unreachable, match="discovery"):
        await Discovery(exchange).refresh()
