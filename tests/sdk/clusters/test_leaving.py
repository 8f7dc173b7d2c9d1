"""Leave records: one of an earlier time says nothing, one of a leave under way stays (D7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.leaving import NAMESPACE, LeaveRecords, write_record
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus_emulator.apiserver import Cluster, Delay, Fail, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually

MAPS = "v1/configmaps"


class Hub:
    """A hub, and what people do there."""

    def __init__(self, server: Cluster, client: KubeClient) -> None:
        self.server = server
        self.client = client

    def join(self, name: str) -> dict[str, Any]:
        reference = {"kubeconfigSecretRef": {"namespace": "x", "name": "x"}}
        return self.server.create(CLUSTERS, {"metadata": {"name": name}, "spec": reference})

    async def note_leave(self, name: str) -> None:
        """The first half of an unjoin."""
        cluster = self.server.get(CLUSTERS, None, name)
        assert cluster
        await write_record(self.client, cluster, NAMESPACE, "test")

    async def unjoin(self, name: str) -> None:
        await self.note_leave(name)
        self.server.delete(CLUSTERS, None, name)

    def records(self) -> list[str]:
        return [name for _, name in self.server.names(MAPS) if name.startswith("left-")]


@pytest.fixture
async def hub() -> AsyncGenerator[Hub]:
    server = Cluster("hub")
    async with serve([server]) as servers:
        for definition in crds():
            server.create(CRDS, definition)
        server.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        async with KubeClient(KubeConfig(json.dumps(servers.kubeconfig()), "hub")) as client:
            yield Hub(server, client)


def members(*names: str, provider: str = "cluster") -> list[ClusterInfo]:
    return [ClusterInfo(name=name, provider=provider, config=None) for name in names]


async def test_d7_the_record_of_an_unjoin_stays_until_its_cluster_is_known_to_have_left(hub: Hub):
    for name in ("t1", "t2"):
        hub.join(name)
        await hub.unjoin(name)
    assert await LeaveRecords().left(hub.client, members("t2")) == {"t1"}
    assert await LeaveRecords().left(hub.client, members()) == {"t1", "t2"}


async def test_d7_clearing_during_an_unjoin_keeps_its_record(hub: Hub):
    hub.join("t1")
    await hub.unjoin("t1")
    records = LeaveRecords()
    await records.clear(hub.client, members("t1"))
    assert hub.records() == ["left-t1"]
    hub.join("t1")  # by other means than a join: so quickly that nobody saw it leave
    await records.clear(hub.client, members("t1"))
    assert hub.records() == []


async def test_d7_a_member_of_another_provider_did_not_leave_with_its_cluster(hub: Hub):
    hub.join("t1")
    await hub.unjoin("t1")
    assert await LeaveRecords().left(hub.client, members("t1", provider="kubeconfig")) == set()
    assert hub.records() == []


async def test_d7_who_may_not_delete_a_stale_record_ignores_it(hub: Hub):
    hub.join("t1")
    await hub.unjoin("t1")
    hub.join("t1")
    records = LeaveRecords(may_delete=False)
    assert await records.left(hub.client, members("t1")) == set()
    assert hub.records() == ["left-t1"]
    hub.server.delete(CLUSTERS, None, "t1")
    assert await records.left(hub.client, members()) == set()


async def test_d7_an_unjoin_of_this_moment_makes_an_old_record_its_own(hub: Hub):
    hub.join("t1")
    await hub.unjoin("t1")
    hub.join("t1")
    records = LeaveRecords()

    rule = hub.server.faults.add(Delay(timedelta(seconds=0.3)), verb="delete", count=1)
    clearing = asyncio.create_task(records.clear(hub.client, members("t1")))
    await eventually(lambda: rule.hits)
    await hub.note_leave("t1")
    await clearing
    hub.server.delete(CLUSTERS, None, "t1")
    assert await records.left(hub.client, members()) == {"t1"}


async def test_d7_a_record_of_an_earlier_time_that_cannot_be_deleted_does_not_count(hub: Hub):
    hub.join("t1")
    await hub.unjoin("t1")
    hub.join("t1")
    hub.server.faults.add(Fail(403), verb="delete", resource="configmaps")
    records = LeaveRecords()
    await records.clear(hub.client, members("t1"))
    assert hub.records() == ["left-t1"]
    assert await records.left(hub.client, members()) == set()


async def test_d7_what_was_cleared_is_not_read_again(hub: Hub):
    hub.join("t1")
    records = LeaveRecords()
    await records.clear(hub.client, members("t1"))
    hub.server.faults.add(Fail(500))
    await records.clear(hub.client, members("t1"))
    with pytest.raises(KubeError):
        await records.clear(hub.client, members("t1", "t2"))
