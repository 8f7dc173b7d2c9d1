"""Which UID is accepted for a cluster is not its watcher's to say: rules W13, S3, D5."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.connection import NoStream
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.errors import NotAccepted
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.watchers.cluster_consent import consent
from fleetbus_proto.events import EpochEnd, Heartbeat, Incarnation
from fleetbus_proto.keys import KV_BUCKET, kv_identity
from fleetbus_reconciler.fleet_status.cluster_status import cluster_status
from support.eventually import eventually
from support.rigs.projector import ProjectorRig, heartbeat, projector_rig
from support.stores.snapshot import Source

UID_1 = "11111111-52b5-4c1e-9c1f-6c6b1de0a001"
UID_2 = "22222222-52b5-4c1e-9c1f-6c6b1de0a001"


FAST = timedelta(seconds=0.1)


@pytest.fixture
async def rig(nats_url: str, valkey_url: str) -> AsyncGenerator[ProjectorRig]:
    """Two clusters, each accepted as its watcher first reported."""
    async with projector_rig(nats_url, valkey_url) as rig:
        await rig.started("eu1", "eu2")
        await rig.publish(beat("eu1", 10, UID_1), beat("eu2", 20, UID_2))
        await eventually(rig.is_through)
        yield rig


def beat(cluster: str, number: int, uid: str) -> Heartbeat:
    return msgspec.structs.replace(heartbeat(cluster), incarnation=Incarnation(number, uid))


def end(number: int, uid: str) -> EpochEnd:
    epoch_end = Source(cluster="eu1", incarnation=number, rank=(900, 9)).end(0)
    return msgspec.structs.replace(epoch_end, incarnation=Incarnation(number, uid))


def refused(cluster: str = "eu1") -> float:
    labels = {"consumer": "projector", "cluster": cluster}
    return REGISTRY.get_sample_value("fleetbus_rejected_messages_total", labels) or 0


async def record_of(rig: ProjectorRig, cluster: str = "eu1") -> ClusterRecord:
    record = await rig.snapshot.reader.cluster(cluster)
    assert record is not None
    return record


async def is_kept(rig: ProjectorRig) -> bool:
    try:
        return await rig.connections.kv.get(kv_identity("eu1")) is not None
    except NoStream:
        return False


async def test_w13_s3_a_heartbeat_does_not_change_the_accepted_uid(rig: ProjectorRig):
    before = refused()
    await rig.publish(beat("eu1", 11, UID_2))
    await eventually(rig.is_through)
    accepted = AcceptedClusters(rig.snapshot.reader)
    assert await accepted.uid("eu1") == UID_1
    assert await accepted.uid("eu2") == UID_2
    assert [await accepted.aliases(name) for name in ("eu1", "eu2")] == [(), ()]
    assert refused() == before + 1
    record = await record_of(rig)
    assert record.incarnation == 10
    connected = cluster_status(record, [], is_silent=False)["conditions"][0]
    assert (connected["status"], connected["reason"]) == ("False", "ClusterReplaced")
    assert f"fleetbus clusters accept eu1 --uid {UID_2}" in connected["message"]


async def test_w13_an_epoch_of_another_cluster_sweeps_nothing(rig: ProjectorRig):
    await rig.publish_epoch(Source(cluster="eu1", incarnation=10, rank=(100, 1)), a=1)
    await rig.publish(beat("eu1", 10, UID_1))
    before = refused()
    await rig.publish(end(11, UID_2), end(10, UID_2))
    await eventually(rig.is_through)
    assert refused() >= before + 2
    assert await rig.snapshot.names(clusters=["eu1"]) == ["a"]


async def test_w13_after_a_consent_the_heartbeat_is_believed(rig: ProjectorRig):
    await rig.publish(beat("eu1", 11, UID_2))
    await consent(rig.bus, rig.connections.kv, "eu1", UID_2)
    await rig.publish(beat("eu1", 11, UID_2))
    await eventually(rig.is_through)
    record = await record_of(rig)
    assert (record.uid, record.uid_verified, record.refused_at) == (UID_2, True, "")
    await rig.publish(beat("eu1", 12, UID_1))  # the consent is used up
    await eventually(rig.is_through)
    assert (await record_of(rig)).uid == UID_2


async def test_d5_only_the_cluster_that_claims_the_uid_of_another_is_marked(rig: ProjectorRig):
    rig.provider.tell("eu1", "eu2", "new")
    await eventually(lambda: rig.has_members("eu1", "eu2", "new"))
    await rig.publish(beat("new", 1, UID_2))  # a number that claims to be the oldest
    await eventually(rig.is_through)
    accepted = AcceptedClusters(rig.snapshot.reader)
    assert await accepted.uid("eu2") == UID_2
    assert [await accepted.aliases(name) for name in ("eu2", "new")] == [(), ("eu2",)]
    with pytest.raises(NotAccepted, match="is already in the fleet as 'eu2'"):
        await accepted.uid("new")


async def test_w13_an_emptied_store_is_no_occasion_to_become_another_cluster(rig: ProjectorRig):
    await rig.redis.flushall()
    before = refused()
    await rig.publish(beat("eu1", 11, UID_2))
    await eventually(rig.is_through)
    await eventually(lambda: rig.has_members("eu1", "eu2"))
    await rig.publish(beat("eu1", 11, UID_2))
    await eventually(rig.is_through)
    assert (await record_of(rig)).uid == UID_1
    assert refused() > before


@pytest.mark.slow
@pytest.mark.parametrize("is_down", [False, True], ids=["seen", "projector down"])
async def test_w13_the_accepted_uids_outlive_the_bucket(rig: ProjectorRig, is_down: bool):
    await rig.stop()
    rig.timing = replace(rig.timing, consent_retry=FAST)
    if not is_down:
        rig.start()
        await rig.publish(beat("eu1", 10, UID_1))
        await eventually(rig.is_through)
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    assert not await is_kept(rig)
    if is_down:
        rig.start()
    await eventually(lambda: is_kept(rig))
    await eventually(lambda: REGISTRY.get_sample_value("fleetbus_bucket_bytes"))
    await rig.publish(beat("eu1", 11, UID_2))
    await eventually(rig.is_through)
    assert (await record_of(rig)).uid == UID_1


async def test_w13_another_cluster_joins_under_the_name_of_one_that_left(rig: ProjectorRig):
    rig.provider.tell("eu2")
    await eventually(lambda: is_forgotten(rig))
    rig.provider.tell("eu1", "eu2")
    await eventually(lambda: rig.has_members("eu1", "eu2"))
    await rig.publish(beat("eu1", 30, "u3"))
    await eventually(rig.is_through)
    assert (await record_of(rig)).uid == "u3"


async def is_forgotten(rig: ProjectorRig) -> bool:
    return await rig.has_members("eu2") and not await is_kept(rig)


def test_w13_no_command_is_made_of_what_cannot_be_a_uid():
    record = ClusterRecord(name="eu1", uid=UID_1, refused_uid="$(reboot)", refused_at="2999-01-01")
    conditions = cluster_status(record, [], is_silent=False)["conditions"]
    assert "reboot" in conditions[0]["message"]
    assert "to consent" not in conditions[0]["message"]
