"""Who edits access data consents to the cluster that they lead to: rule W13."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from nats.aio.msg import Msg
from redis.asyncio import Redis

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters, MakeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_emulator.apiserver import ApiServers, Cluster, Hang, serve
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import SnapshotKeys, kv_accepted, kv_access, kv_incarnation
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.fleet_status.access_consent import AccessConsents
from fleetbus_reconciler.fleet_status.cluster_status import cluster_status
from support.eventually import eventually, stays
from support.rigs.agents import agent_rig
from support.rigs.projector import heartbeat


class FixedProvider:
    """A provider of one cluster whose access data the test edits."""

    name = "test"

    def __init__(self) -> None:
        self._sets: asyncio.Queue[list[ClusterInfo]] = asyncio.Queue()

    def tell(self, *infos: ClusterInfo) -> None:
        self._sets.put_nowait(list(infos))

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        while True:
            yield await self._sets.get()


@dataclass
class Rig:
    provider: FixedProvider
    servers: ApiServers
    kv: KeyValue
    bus: Bus
    clusters: dict[str, Cluster]
    uids: AcceptedUids
    reader: SnapshotReader
    make_agent_client: MakeClient | None = None

    def info(self, server: str) -> ClusterInfo:
        """The cluster `island`, at one of the two servers."""
        text = yaml.safe_dump(self.servers.kubeconfig())
        return ClusterInfo(
            name="island", labels={}, provider="test", config=KubeConfig(text, context=server)
        )

    def uid(self, server: str) -> str:
        namespace = self.clusters[server].get("v1/namespaces", None, "kube-system")
        assert namespace is not None
        return str(namespace["metadata"]["uid"])

    async def claim(self, uid: str) -> None:
        """The record that the watcher has written."""
        value = json.dumps({"number": 7, "uid": uid}).encode()
        await self.kv.put(kv_incarnation("island"), value)

    async def accepted(self) -> str:
        entry = await self.kv.get(kv_accepted("island"))
        return str(json.loads(entry.value)["uid"]) if entry else ""

    async def receive(self, uid: str, number: int) -> bool:
        """Whether a heartbeat with this UID is admitted."""
        incarnation = Incarnation(number, uid)
        beat = msgspec.structs.replace(heartbeat("island"), incarnation=incarnation)
        return not await self.uids.admit(beat)

    async def record(self) -> ClusterRecord:
        found = await self.reader.cluster("island")
        assert found is not None
        return found

    async def settled(self) -> str:
        entry = await self.kv.get(kv_access("island"))
        return entry.value.decode() if entry else ""

    @asynccontextmanager
    async def projecting(self) -> AsyncGenerator[None]:
        registry = Clusters([self.provider])
        if self.make_agent_client is not None:
            registry.call_agents(self.make_agent_client)
        consents = AccessConsents(
            clusters=registry,
            bus=self.bus,
            kv=self.kv,
            accepted=self.uids,
            retry=timedelta(milliseconds=50),
        )
        tasks = [asyncio.create_task(body) for body in (registry.run(), consents.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def rig(nats_url: str, redis: Redis) -> AsyncGenerator[Rig]:
    clusters = {name: Cluster(name) for name in ("zoo", "jungle")}
    async with serve(list(clusters.values())) as servers, connected(nats_url, name="test") as bus:
        await ensure_bucket(bus)
        kv, reader, writer = (
            KeyValue(bus),
            SnapshotReader(redis, SnapshotKeys()),
            SnapshotWriter(redis, SnapshotKeys()),
        )
        await writer.ensure_generation()
        await writer.put_cluster("island", ClusterRecord(name="island"))
        uids = AcceptedUids(bus=bus, kv=kv, reader=reader, writer=writer)
        yield Rig(FixedProvider(), servers, kv, bus, clusters, uids, reader)


async def settle_at(rig: Rig, server: str) -> None:
    before = await rig.settled()
    rig.provider.tell(rig.info(server))
    await eventually(lambda: is_settled(rig, before))


async def is_settled(rig: Rig, before: str) -> bool:
    return await rig.settled() not in ("", before)


async def test_w13_an_edited_server_is_consented_to(rig: Rig):
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim(rig.uid("zoo"))
        woken: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: Msg) -> None:
            woken.put_nowait(message.data)

        await rig.bus.nc.subscribe("fleetbus.control.island", cb=on_message)
        await settle_at(rig, "jungle")
        assert await rig.accepted() == rig.uid("jungle")
        assert await woken.get() == b""


async def test_w13_an_edit_while_the_projector_was_down_is_consented_to(rig: Rig):
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim(rig.uid("zoo"))
    async with rig.projecting():
        await settle_at(rig, "jungle")
        assert await rig.accepted() == rig.uid("jungle")


async def test_w13_another_cluster_behind_unchanged_access_data_needs_a_person(rig: Rig):
    """Also over a restart of the projector, and also if labels change (T8)."""
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim("of-the-old-one")
        rig.provider.tell(replace(rig.info("zoo"), labels={"a": "b"}))
        await stays("", rig.accepted)
    rig.provider.tell(rig.info("zoo"))
    async with rig.projecting():
        await stays("", rig.accepted, timedelta(seconds=0.2))


async def test_w13_new_credentials_for_the_same_server_are_no_consent(rig: Rig):
    """A rotated token in the Secret leads to the same address (T8)."""
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim("of-the-old-one")
        info = rig.info("zoo")
        assert info.config is not None
        document: Any = yaml.safe_load(info.config.document)
        document["users"] = [{"name": user["name"], "user": {}} for user in document["users"]]
        changed = replace(info.config, document=yaml.safe_dump(document))
        count = len(rig.clusters["zoo"].requests)
        rig.provider.tell(replace(info, config=changed))
        await stays("", rig.accepted, timedelta(seconds=0.2))
        assert len(rig.clusters["zoo"].requests) == count


@pytest.mark.parametrize("is_down", [False, True], ids=["seen", "projector down"])
async def test_w13_a_cluster_that_left_and_joined_again_is_consented_to(rig: Rig, is_down: bool):
    """Unjoin, then join another cluster under the same name, here at the same address (T20)."""
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim("of-the-old-one")
        if not is_down:
            rig.provider.tell()
            await eventually(lambda: is_forgotten(rig))
            await settle_at(rig, "zoo")
    if is_down:
        rig.provider.tell()
        async with rig.projecting():
            await eventually(lambda: is_forgotten(rig))
            await settle_at(rig, "zoo")
    assert await rig.accepted() == rig.uid("zoo")


async def is_forgotten(rig: Rig) -> bool:
    return await rig.settled() == ""


@pytest.mark.slow
async def test_w13_a_server_that_does_not_answer_is_asked_again(
    rig: Rig,
):
    async with rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim(rig.uid("zoo"))
        await rig.servers.stop("jungle")
        rig.provider.tell(rig.info("jungle"))
        await stays("", rig.accepted, timedelta(seconds=0.2))
        await rig.servers.start("jungle")
        await eventually(rig.accepted)


async def test_w13_the_hub_reads_the_uid_of_a_member_whatever_its_watcher_reported(rig: Rig):
    assert await rig.receive("of-another-cluster", 5)
    assert not (await rig.record()).uid_verified
    await rig.claim("of-another-cluster")
    async with rig.projecting():
        await settle_at(rig, "zoo")
    record = await rig.record()
    assert (record.uid, record.uid_verified) == (rig.uid("zoo"), True)
    assert not await rig.receive("of-another-cluster", 6)
    assert await rig.receive(rig.uid("zoo"), 7)


async def test_w13_a_reported_uid_is_verified_when_the_hub_reads_the_same(rig: Rig):
    assert await rig.receive(rig.uid("zoo"), 5)
    since = (await rig.record()).uid_since
    async with rig.projecting():
        await settle_at(rig, "zoo")
    record = await rig.record()
    assert (record.uid_since, record.uid_verified) == (since, True)


async def test_w13_the_uid_changes_after_an_edit_when_the_watcher_has_followed(rig: Rig):
    async with rig.projecting():
        await settle_at(rig, "zoo")
        assert not await rig.receive(rig.uid("jungle"), 5)
        await settle_at(rig, "jungle")
    assert (await rig.record()).uid == rig.uid("zoo")
    assert await rig.receive(rig.uid("jungle"), 6)
    assert (await rig.record()).uid == rig.uid("jungle")
    assert not await rig.receive(rig.uid("zoo"), 7)


def test_w13_the_condition_of_a_cluster_says_that_another_one_answers():
    """So that somebody who can consent learns of it (T8)."""
    message = "another cluster answers"
    record = ClusterRecord(
        name="island",
        joined_at="2026-01-01T00:00:00Z",
        connected=False,
        reason="ClusterReplaced",
        message=message,
        reported_at="2026-01-01T00:00:00Z",
    )
    connected, *_ = cluster_status(record, [], is_silent=False)["conditions"]
    assert (connected["type"], connected["status"]) == ("Connected", "False")
    assert (connected["reason"], connected["message"]) == ("ClusterReplaced", message)


async def test_w13_a_cluster_that_does_not_answer_delays_no_other(rig: Rig):
    """A thousand clusters must not wait for each dead one among them."""
    rig.clusters["zoo"].faults.add(Hang())
    names = [f"dead-{number}" for number in range(3)]
    infos = [replace(rig.info("zoo"), name=name) for name in names]
    async with rig.projecting(), asyncio.timeout(2):
        rig.provider.tell(*infos, rig.info("jungle"))
        await eventually(lambda: is_settled(rig, ""))


@asynccontextmanager
async def behind_an_agent(
    rig: Rig, server: str, nats_url: str, folder: Path
) -> AsyncGenerator[None]:
    """An agent of one of the two servers, as the agent of `island`."""
    async with agent_rig(nats_url, folder) as agents:
        document = rig.servers.kubeconfig()
        await agents.start(document, "island", context=server)
        rig.make_agent_client = lambda info: agents.client(info.name)
        yield


@pytest.mark.parametrize("is_same", [True, False], ids=["same cluster", "another"])
async def test_w13_a_move_to_an_agent_and_back_is_no_consent(
    rig: Rig, nats_url: str, tmp_path: Path, is_same: bool
):
    behind = "zoo" if is_same else "jungle"
    async with behind_an_agent(rig, behind, nats_url, tmp_path), rig.projecting():
        await settle_at(rig, "zoo")
        await rig.claim(rig.uid("zoo"))
        info = rig.info("zoo")
        rig.provider.tell(replace(info, config=None, access=ClusterAccess.AGENT))
        if is_same:
            await eventually(lambda: is_settled_as(rig, "agent"))
            await settle_at(rig, "zoo")
        await stays("", rig.accepted, timedelta(seconds=0.5))
        assert await rig.settled() != "agent"


async def is_settled_as(rig: Rig, address: str) -> bool:
    return await rig.settled() == address
