"""P17: the record of a cluster tells whether its agents take the hub's requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from nats.aio.msg import Msg
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from fleetbus.bus.connection import subscribed
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.snapshot.records import AgentContact, ClusterRecord
from fleetbus_emulator.apiserver import Cluster
from fleetbus_proto.subjects import api_subject
from fleetbus_reconciler.fleet_status.agent_checks import AgentChecks
from support.eventually import eventually
from support.rigs.agents import OneAgent, one_agent
from support.rigs.projector import SetProvider
from support.stores.snapshot import Snapshot

BEHIND = ClusterInfo(name="eu1", provider="test", config=None, access=ClusterAccess.AGENT)


@dataclass
class Rig:
    one: OneAgent
    checks: AgentChecks
    provider: SetProvider
    snapshot: Snapshot
    clusters: Clusters

    async def check(self) -> AgentContact:
        await self.checks.check_all()
        record = await self.snapshot.reader.cluster("eu1")
        assert record is not None
        assert record.agent is not None
        return record.agent

    def reads(self) -> int:
        return sum(logged.path == "/version" for logged in self.one.cluster.requests)


@asynccontextmanager
async def rig_of(
    nats_url: str, redis: Redis, folder: Path, *, interval: timedelta = timedelta()
) -> AsyncGenerator[Rig]:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await snapshot.writer.put_cluster("eu1", ClusterRecord(name="eu1", access="Agent"))
    async with one_agent(nats_url, folder, Cluster("eu1")) as one:
        provider = SetProvider()
        provider.tell_infos(BEHIND)
        clusters = Clusters([provider])
        clusters.call_agents(lambda info: one.rig.client(info.name))
        running = asyncio.create_task(clusters.run())
        await clusters.known()
        checks = AgentChecks(
            clusters=clusters, reader=snapshot.reader, writer=snapshot.writer, interval=interval
        )
        try:
            yield Rig(one, checks, provider, snapshot, clusters)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await clusters.aclose()


def connected() -> float | None:
    return REGISTRY.get_sample_value("fleetbus_agent_connected", {"cluster": "eu1"})


async def test_p17_an_agent_that_comes_and_goes_is_recorded(
    nats_url: str, redis: Redis, tmp_path: Path
):
    async with rig_of(nats_url, redis, tmp_path) as rig:
        first = await rig.check()
        assert (first.connected, first.reason, first.message) == (True, "", "")
        assert connected() == 1

        await rig.one.rig.stop(rig.one.agent)
        states = [await rig.check() for _ in range(5)]  # at last the client's breaker is open
        assert {(state.connected, state.reason) for state in states} == {
            (False, "AgentNotConnected")
        }
        gone = states[-1]
        assert gone.answered_at == first.answered_at
        assert "no agent of the cluster is connected to NATS" in gone.message
        assert connected() == 0


async def test_p17_an_api_server_that_is_down_is_not_the_fault_of_its_agent(
    nats_url: str, redis: Redis, tmp_path: Path
):
    async with rig_of(nats_url, redis, tmp_path) as rig:
        await rig.check()
        await rig.one.servers.stop("eu1")
        down = await rig.check()
        assert (down.connected, down.reason) == (True, "ApiServerUnreachable")
        assert down.message
        assert connected() == 1


async def test_p17_an_agent_that_hangs_is_silent(nats_url: str, redis: Redis, tmp_path: Path):
    async with rig_of(nats_url, redis, tmp_path) as rig:
        await rig.check()
        await rig.one.rig.stop(rig.one.agent)

        async def take(_: Msg) -> None:
            pass  # as a process that was stopped does

        async with subscribed(rig.one.rig.bus, api_subject("eu1"), take):
            silent = await rig.check()
        assert (silent.connected, silent.reason) == (False, "AgentSilent")


async def test_p17_projectors_share_the_requests(nats_url: str, redis: Redis, tmp_path: Path):
    async with rig_of(nats_url, redis, tmp_path, interval=timedelta(minutes=1)) as rig:
        await rig.check()
        reads = rig.reads()
        assert reads
        await rig.check()
        assert rig.reads() == reads


async def test_p17_a_cluster_that_becomes_direct_has_no_agent(
    nats_url: str, redis: Redis, tmp_path: Path
):
    async with rig_of(nats_url, redis, tmp_path) as rig:
        await rig.check()
        rig.provider.tell_infos()
        await eventually(lambda: not rig.clusters.all())
        await rig.checks.check_all()
        assert connected() is None
