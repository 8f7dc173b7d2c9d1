"""Lists of one API server as trees, against the emulated one over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from fleetbus import errors
from fleetbus.kube.client import KubeClient
from fleetbus_emulator.apiserver import Cluster, PartialList, serve
from support.objects import config_map
from support.rigs.agents import Connect

MAPS = "v1/configmaps"
SECRETS = "v1/secrets"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("eu1")


@pytest.fixture
async def client(cluster: Cluster, connect: Connect) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers, connect(servers.kubeconfig()) as client:
        yield client


async def test_w2_a_long_list_is_read_in_pages_and_whole(client: KubeClient, cluster: Cluster):
    for number in range(1_200):
        cluster.create(MAPS, config_map(f"m{number:04}"), "default")
    cluster.requests.clear()
    items = await client.list(MAPS, "default", label_selector="!nothing")
    assert [o["metadata"]["name"] for o in items if o["metadata"]["name"].startswith("m")] == [
        f"m{number:04}" for number in range(1_200)
    ]
    assert sum(request.verb == "list" for request in cluster.requests) == 3


async def test_items_of_a_list_know_their_kind(client: KubeClient, cluster: Cluster):
    cluster.create(MAPS, config_map("a"), "default")
    items = await client.list(MAPS, "default", field_selector="metadata.name=a")
    assert [(o["kind"], o["apiVersion"]) for o in items] == [("ConfigMap", "v1")]


async def test_a_list_takes_selectors(client: KubeClient, cluster: Cluster):
    cluster.create(MAPS, config_map("a", metadata={"labels": {"x": "y"}}), "default")
    cluster.create(MAPS, config_map("b"), "default")
    items = await client.list(MAPS, "default", label_selector="x in (y,z)")
    assert [o["metadata"]["name"] for o in items] == ["a"]


async def test_w8_a_list_that_ends_with_an_empty_page_is_refused(
    cluster: Cluster, client: KubeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.kube.client.PAGE_SIZE", 2)
    for number in range(3):
        cluster.create(MAPS, {"metadata": {"name": f"a{number}"}}, "default")
    cluster.faults.add(PartialList(), verb="list", resource="configmaps", skip=1, count=1)
    with pytest.raises(errors.ServerError, match="announced more"):
        await client.list(MAPS)
    assert len(await client.list(MAPS)) == 3
    selected = await client.list(MAPS, field_selector="metadata.name=a0")
    assert [obj["metadata"]["name"] for obj in selected] == ["a0"]


async def test_d9_whether_there_is_any_object_of_a_type_is_asked_of_all_namespaces(
    client: KubeClient, cluster: Cluster
):
    assert not await client.has_any(SECRETS)
    cluster.create(SECRETS, {"metadata": {"name": "a"}}, "default")
    assert await client.has_any(SECRETS)
    with pytest.raises(errors.NotFound):
        await client.has_any("example.dev/v1/nothings")
