"""The snapshot divided among shards: the same answers, and no process with another number (P16)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from fleetbus.errors import NotAccepted
from fleetbus.kube.selectors import LabelSelector
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.snapshot import ClusterRecord, ListQuery, StoreEmpty
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.audit import Audits
from fleetbus.snapshot.shards import WrongShards, check_shards, find_shards
from fleetbus.snapshot.update_records import Records
from fleetbus.worker.connections import connect
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

CLUSTERS = ("eu1", "us1", "hub", "a")
"""One in each of four shards."""


def unchanged(records: Records) -> Records:
    return records


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    snapshot = Snapshot(redis, shards=4)
    await snapshot.set_up(*CLUSTERS)
    return snapshot


async def test_p16_one_batch_of_all_clusters_is_applied_listed_and_found_by_owner_and_label(
    snapshot: Snapshot,
):
    metadata = {"labels": {"app": "web"}, "ownerReferences": [{"uid": "rs"}]}
    sources = [Source(cluster=name) for name in CLUSTERS]
    events = [source.added("web", 5, metadata=metadata) for source in sources]
    events += [source.added("db", 6) for source in sources]
    events.insert(3, Source(cluster="mars").added("web", 5))
    outcomes = await snapshot.apply(*events)
    assert [at for at, outcome in enumerate(outcomes) if outcome.value != "applied"] == [3]
    clusters = [*CLUSTERS, "mars"]
    page = await snapshot.reader.list(ListQuery(clusters=clusters, resource=PODS))
    assert [(entry.cluster, entry.name) for entry in page.entries] == sorted(
        (name, pod) for name in CLUSTERS for pod in ("db", "web")
    )
    assert await snapshot.names(clusters=clusters, owner="rs") == ["web"] * 4
    selected = LabelSelector.parse("app=web")
    assert await snapshot.names(clusters=clusters, labels=selected) == ["web"] * 4
    assert [cluster.name for cluster in await snapshot.reader.clusters()] == sorted(CLUSTERS)
    freshness = await snapshot.reader.freshness(clusters, PODS)
    assert set(freshness) == {*CLUSTERS, "mars"}
    tags = {key.partition("}")[0] for key in await snapshot.all_keys()}
    assert tags == {f"fleetbus:{{fleet:{shard}" for shard in range(4)}


async def test_p16_pages_go_through_all_shards(snapshot: Snapshot):
    for name in CLUSTERS:
        await snapshot.apply(*(Source(cluster=name).added(f"p{i}", i + 1) for i in range(3)))
    query = ListQuery(clusters=CLUSTERS, resource=PODS, limit=5)
    pages = [page async for page in snapshot.reader.pages(query)]
    assert [len(page.entries) for page in pages] == [5, 5, 2]
    assert {page.remaining for page in pages} == {7, 2, 0}


async def test_p13_an_emptied_shard_takes_nothing_and_the_others_go_on(snapshot: Snapshot):
    shard = snapshot.keys.shard_of("us1")
    keys = [key for key in await snapshot.all_keys() if f"{{fleet:{shard}}}" in key]
    await snapshot.redis.delete(*keys)
    with pytest.raises(StoreEmpty):
        await snapshot.apply(Source(cluster="us1").added("web", 5), Source().added("web", 5))
    assert await snapshot.version("web") == "5"
    assert await snapshot.reader.generation() is None
    assert await snapshot.reader.empty_shards() == {shard}
    assert await snapshot.writer.ensure_generation() == {shard}
    assert await snapshot.apply_one(Source(cluster="us1").added("web", 5)) == "refused"


@pytest.mark.parametrize("shards", [1, 2, 8])
async def test_p16_a_process_with_another_number_of_shards_is_refused_and_writes_nothing(
    redis: Redis, snapshot: Snapshot, shards: int
):
    await snapshot.apply(Source().added("web", 5))
    await snapshot.run_epoch(Source(rank=(10, 1)), web=5)
    other = Snapshot(redis, shards=shards)
    before = {key: await redis.dump(key) for key in await snapshot.all_keys()}
    says = f"set up with 4 shards, and this process is set to {shards}: set FLEETBUS_SHARDS=4"
    with pytest.raises(WrongShards, match=says):
        await check_shards(redis, other.keys)
    with pytest.raises(WrongShards, match=says):
        await other.writer.ensure_generation()
    with pytest.raises(WrongShards, match=says):
        await other.apply(Source().modified("web", 6))
    with pytest.raises(WrongShards, match=says):
        await other.writer.end_epoch(Source(rank=(20, 2)).end(0))
    with pytest.raises(WrongShards, match=says):
        await other.writer.update_records("eu1", unchanged)
    with pytest.raises(WrongShards, match=says):
        await other.reader.list(ListQuery(clusters=CLUSTERS, resource=PODS))
    with pytest.raises(WrongShards, match=says):
        await other.reader.generation()
    assert {key: await redis.dump(key) for key in await snapshot.all_keys()} == before


async def test_p16_a_service_with_another_number_of_shards_does_not_start(
    valkey_url: str, nats_url: str, snapshot: Snapshot
):
    settings = load_settings(SharedSettings, redis_url=valkey_url, nats_url=nats_url, shards=2)
    with pytest.raises(WrongShards, match="FLEETBUS_SHARDS=4"):
        async with connect(settings, name="test"):
            pass
    assert (await find_shards(snapshot.redis)).shards == 4


async def test_commands_without_a_setting_find_the_number_of_shards(redis: Redis):
    assert (await find_shards(redis)).shards == 1
    await Snapshot(redis, shards=3).set_up()
    assert (await find_shards(redis)).shards == 3


async def test_p15_audits_of_all_shards_come_due(snapshot: Snapshot):
    assert [audit async for audit in Audits(snapshot.redis, SnapshotKeys(4)).due(timedelta())] == []
    for name in CLUSTERS:
        key = snapshot.keys.audits_due(snapshot.keys.shard_of(name))
        await snapshot.redis.zadd(key, {f"{name}|{PODS}|": 1})
        fields: Any = {"incarnation": 1, "version": "5", "id": 1}
        await snapshot.redis.hset(snapshot.keys.audit(name, PODS, ""), mapping=fields)
    audits = Audits(snapshot.redis, snapshot.keys)
    assert sorted([audit.cluster async for audit in audits.due(timedelta())]) == sorted(CLUSTERS)


async def test_d5_w13_who_is_accepted_stays_known_while_a_shard_is_away(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
):
    for name in CLUSTERS:
        await snapshot.writer.put_cluster(name, ClusterRecord(name=name, uid=f"uid-of-{name}"))
    accepted = AcceptedClusters(snapshot.reader, kept=timedelta())
    assert await accepted.uid("us1") == "uid-of-us1"
    lost = snapshot.keys.clusters(snapshot.keys.shard_of("us1"))
    execute = cast("Any", snapshot.redis.execute_command)

    async def failing(*args: Any, **options: Any) -> Any:
        if lost in args:
            raise RedisConnectionError("its server is away")
        return await execute(*args, **options)

    monkeypatch.setattr(snapshot.redis, "execute_command", failing)
    await snapshot.writer.put_cluster("eu1", ClusterRecord(name="eu1", uid="another"))
    assert await accepted.uid("eu1") == "another"
    assert await accepted.uid("us1") == "uid-of-us1", "nobody else may have changed it"
    with pytest.raises(NotAccepted, match="a part of it is away"):
        await AcceptedClusters(snapshot.reader).uid("eu1")  # it may have another name there
