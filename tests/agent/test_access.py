"""Clusters whose access is `Agent`, in the registry and in the processes that use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import NotEngaged
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.worker.connections import connect
from fleetbus_emulator.apiserver import Cluster, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.objects import config_map
from support.rigs.agents import agent_rig

MAPS = "v1/configmaps"
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
BEHIND = ClusterInfo(name="eu1", provider="test", config=None, access=ClusterAccess.AGENT)


class Edited:
    """A provider of clusters that the test edits."""

    name = "test"

    def __init__(self, *infos: ClusterInfo) -> None:
        self._sets: asyncio.Queue[list[ClusterInfo]] = asyncio.Queue()
        self.report(*infos)

    def report(self, *infos: ClusterInfo) -> None:
        self._sets.put_nowait(list(infos))

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        while True:
            yield await self._sets.get()


async def test_a_process_without_a_way_to_agents_says_so():
    clusters = Clusters([Edited(BEHIND)])
    running = asyncio.create_task(clusters.run())
    await clusters.known()
    with pytest.raises(NotEngaged, match="no way to its agent"):
        clusters.client("eu1")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_cluster_moves_to_an_agent_and_back_while_it_is_used(nats_url: str, tmp_path: Path):
    cluster = Cluster("eu1")
    async with serve([cluster]) as servers, agent_rig(nats_url, tmp_path) as rig:
        document: dict[str, Any] = servers.kubeconfig()
        await rig.start(document)
        direct = replace(
            BEHIND, access=ClusterAccess.DIRECT, config=KubeConfig(json.dumps(document))
        )
        provider = Edited(direct)
        clusters = Clusters([provider])
        clusters.call_agents(lambda info: rig.client(info.name))
        running = asyncio.create_task(clusters.run())
        await clusters.known()
        for number, info in enumerate((direct, BEHIND, direct)):
            before = clusters.client("eu1") if number else None
            provider.report(info)
            await eventually(
                lambda: before is None or clusters.client("eu1") is not before  # noqa: B023
            )
            client = clusters.client("eu1")
            await client.create(MAPS, config_map(f"m{number}"))
            assert (client.make_transport is None) is (info is direct)
        assert (
            len([obj for obj in cluster.list(MAPS) if obj["metadata"]["name"].startswith("m")]) == 3
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_process_of_the_hub_calls_a_cluster_object_with_an_agent(
    nats_url: str, valkey_url: str, tmp_path: Path
):
    hub, member = Cluster("hub"), Cluster("eu1")
    for crd in crds():
        hub.create(CRDS, crd)
    hub.create(CLUSTERS, {"metadata": {"name": "eu1"}, "spec": {"access": "Agent"}})
    async with serve([hub, member]) as servers, agent_rig(nats_url, tmp_path) as rig:
        document: dict[str, Any] = servers.kubeconfig()
        await rig.start(document, context="eu1")
        path = tmp_path / "hub"
        path.write_text(json.dumps(document))
        shared = load_settings(
            SharedSettings,
            nats_url=nats_url,
            redis_url=valkey_url,
            hub_kubeconfig=path,
            hub_context="hub",
            providers=[{"type": "cluster"}],
        )
        async with connect(shared, name="distributor", user_agent="fleetbus-x") as connections:
            running = asyncio.create_task(connections.clusters.run())
            await connections.clusters.known()
            client = connections.clusters.client("eu1")
            await client.create(MAPS, config_map("a"))
            assert await connections.fleet.cluster("eu1").live.get(MAPS, "default", "a")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    agents = {request.user_agent for request in member.requests if request.verb == "create"}
    assert agents == {"fleetbus-x"}
