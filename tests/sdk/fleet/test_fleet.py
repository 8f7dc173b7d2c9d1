"""The fleet as a reconciler sees it: only a complete list proves absence (P14, R1)."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ClusterNotFound, NotEngaged, NotSynced
from fleetbus.fleet.fleet import Fleet
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceState
from fleetbus_proto.keys import SnapshotKeys
from support.rigs.one_cluster import PODS, fleet_of, mark_synced
from support.stores.snapshot import Snapshot, Source


async def test_p14_a_read_before_the_first_complete_list_is_refused(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    await Snapshot(redis).set_up("eu1")
    async with fleet_of(redis, tmp_path) as (fleet, _):
        cluster = fleet.cluster("eu1")
        with pytest.raises(NotSynced, match="v1/pods of cluster 'eu1'"):
            await cluster.get(PODS, "prod", "web")
        with pytest.raises(NotSynced):
            await cluster.list(PODS)


async def test_p14_an_object_that_is_known_may_be_read_before_the_list_is_complete(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await snapshot.apply(Source().added("web", 10))
    async with fleet_of(redis, tmp_path) as (fleet, _):
        obj = await fleet.cluster("eu1").get(PODS, "prod", "web")
        assert obj is not None
        assert obj["metadata"]["name"] == "web"


@pytest.mark.parametrize("state", [ResourceState.SYNCED, ResourceState.STALE])
async def test_r1_a_synced_resource_answers_none_and_remembers_the_last_state(
    redis: Redis, tmp_path: pathlib.Path, state: ResourceState
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await mark_synced(snapshot, state)
    source = Source()
    await snapshot.apply(source.added("web", 10), source.deleted("web", 11))
    async with fleet_of(redis, tmp_path) as (fleet, _):
        cluster = fleet.cluster("eu1")
        assert await cluster.get(PODS, "prod", "web") is None
        last = await cluster.get_deleted(PODS, "prod", "web")
        assert last is not None
        assert last["metadata"]["name"] == "web"
        assert await cluster.list(PODS) == []


async def test_b11_an_object_without_a_body_is_read_from_its_api_server(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await mark_synced(snapshot, ResourceState.SYNCED)
    await snapshot.apply(Source().added("web", 10, body=None, degraded="oversized"))
    async with fleet_of(redis, tmp_path) as (fleet, server):
        server.create("v1/namespaces", {"metadata": {"name": "prod"}})
        pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
        server.create(PODS, pod, "prod")
        obj = await fleet.cluster("eu1").get(PODS, "prod", "web")
        assert obj is not None
        assert obj["spec"]["containers"][0]["name"] == "m"


async def test_b11_a_list_by_labels_or_owner_has_objects_without_a_body_if_they_match(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await mark_synced(snapshot, ResourceState.SYNCED)
    web, db = {"app": "web"}, {"app": "db"}
    inside = {"namespace": "prod"}
    large: dict[str, Any] = {"body": None, "degraded": "oversized"}
    await snapshot.apply(
        Source().added("small", 9, metadata={**inside, "labels": web}),
        *(Source().added(name, 10, **large) for name in ("big", "gone", "other")),
        Source().added("shrunk", 11, **large),
        Source().modified("shrunk", 12, metadata={**inside, "labels": db}),
        Source().added("away", 13, **large),
        Source().deleted("away", 14),
    )
    async with fleet_of(redis, tmp_path) as (fleet, server):
        server.create("v1/namespaces", {"metadata": {"name": "prod"}})
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u1"}
        for name, labels, owners in (("big", web, [owner]), ("other", db, [])):
            pod = {
                "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
                "spec": {"containers": [{"name": "m", "image": "i"}]},
            }
            server.create(PODS, pod, "prod")
        cluster = fleet.cluster("eu1")

        async def names(**query: str) -> list[str]:
            return [obj["metadata"]["name"] for obj in await cluster.list(PODS, **query)]

        assert await names(selector="app=web") == ["big", "small"]
        assert await names(selector="app!=web") == ["other", "shrunk"]
        assert await names(selector="app in (web, db)") == ["big", "other", "shrunk", "small"]
        assert await names(selector="app=web", namespace="dev") == []
        assert await names(owner="u1") == ["big"]
        assert [item.object["metadata"]["name"] for item in await fleet.list(PODS, owner="u1")] == [
            "big"
        ]


async def test_get_all_answers_the_clusters_that_have_the_object(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await mark_synced(snapshot, ResourceState.SYNCED)
    await snapshot.apply(Source().added("web", 10))
    async with fleet_of(redis, tmp_path) as (fleet, _):
        assert set(await fleet.get_all(PODS, "prod", "web")) == {"eu1"}
        assert await fleet.get_all(PODS, "prod", "other") == {}


async def test_clusters_are_selected_by_label_and_an_unknown_one_is_an_error(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with fleet_of(redis, tmp_path) as (fleet, _):
        assert [info.name for info in fleet.clusters("region=eu")] == ["eu1"]
        assert fleet.clusters("region!=eu") == []
        with pytest.raises(ClusterNotFound):
            fleet.cluster("nowhere")


async def test_a_cluster_without_access_data_is_not_engaged(redis: Redis) -> None:
    broken = ClusterInfo(name="us1", hub=True, provider="test", config=None, problem="no Secret")
    fleet = Fleet(Clusters([], hub=broken), SnapshotReader(redis, SnapshotKeys()))
    with pytest.raises(NotEngaged, match="no Secret"):
        fleet.cluster("us1")
