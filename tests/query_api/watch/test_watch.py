"""Watches over HTTP, as Kubernetes' clients send them: no gap, or 410 (rules A5, A6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import ResourceRecord, ResourceState
from fleetbus.snapshot.records import ClusterRecord
from support.eventually import eventually
from support.rigs.watch_client import WatchClient, watching
from support.rows import each_row
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "core/pods"
EU1 = "/kube/eu1/api/v1/pods"
FLEET = "/kube/-/api/v1/pods"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """Two clusters, with a pod each."""
    await api.add_cluster("eu1", PODS)
    await api.add_cluster("us1", PODS)
    await api.add("eu1", PODS, "old", labels={"app": "web"})
    await api.add("us1", PODS, "old", labels={"app": "db"})
    return api


async def version_of(api: QueryApi, path: str = EU1) -> str:
    """The version of a list."""
    return (await api.get(path)).json()["metadata"]["resourceVersion"]


async def delete(api: QueryApi, cluster: str, name: str, **fields: Any) -> None:
    api.version += 1
    await api.snapshot.apply(Source(cluster=cluster).deleted(name, api.version, **fields))


async def test_a5_a_watch_from_the_version_of_a_list_gets_every_later_change(fleet: QueryApi):
    since = await version_of(fleet)
    async with watching(fleet.client, EU1, resourceVersion=since) as watch:
        await fleet.add("eu1", PODS, "new")
        await fleet.add("us1", PODS, "elsewhere")
        await fleet.add("eu1", PODS, "old", labels={"app": "web"}, spec={"nodeName": "n1"})
        await watch.has("ADDED new", "MODIFIED old")
        await delete(fleet, "eu1", "new")
        await watch.has("ADDED new", "MODIFIED old", "DELETED new")
        assert watch.versions == sorted(watch.versions)
        assert watch.versions[0] > int(since)
        assert watch.events[1]["object"]["spec"] == {"nodeName": "n1"}
        assert watch.events[1]["object"]["kind"] == "Pod"


async def test_a5_objects_of_one_name_in_two_resources_are_two_objects(fleet: QueryApi):
    await fleet.add_cluster("eu1", PODS, "core/services")
    since = await version_of(fleet)
    services = EU1.replace("pods", "services")
    async with (
        watching(fleet.client, EU1, resourceVersion=since) as pods,
        watching(fleet.client, services, resourceVersion=since) as others,
    ):
        both = [Source(cluster="eu1", resource=name) for name in ("pods", "services")]
        await fleet.snapshot.apply(*(source.added("same", 900) for source in both))
        await pods.has("ADDED same")
        await others.has("ADDED same")


async def test_a5_what_changed_before_the_watch_began_comes_first_and_once(fleet: QueryApi):
    since = await version_of(fleet)
    await fleet.add("eu1", PODS, "a")
    await fleet.add("eu1", PODS, "b")
    await fleet.add("eu1", PODS, "a", labels={"again": "yes"})
    await delete(fleet, "eu1", "old")
    await delete(fleet, "eu1", "b")
    async with watching(fleet.client, EU1, resourceVersion=since) as watch:
        await fleet.add("eu1", PODS, "c")
        # A list may show more than its version says, so `b` too.
        await watch.has("ADDED a", "DELETED old", "DELETED b", "ADDED c")
        assert watch.versions == sorted(watch.versions)


async def test_a5_an_object_that_was_created_again_is_deleted_and_added(fleet: QueryApi):
    since = await version_of(fleet)
    await delete(fleet, "eu1", "old")
    await fleet.add("eu1", PODS, "old", uid="another")
    async with watching(fleet.client, EU1, resourceVersion=since) as watch:
        await watch.has("DELETED old", "ADDED old")
        assert watch.versions == sorted(watch.versions)
        assert watch.events[1]["object"]["metadata"]["uid"] == "another"
    last = watch.versions[0]
    async with watching(fleet.client, EU1, resourceVersion=last) as again:
        await again.has("ADDED old")


async def test_a5_a_deletion_has_the_last_state_and_the_version_of_the_deletion(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion=await version_of(fleet)) as watch:
        await delete(fleet, "eu1", "old", body=None)
        await watch.has("DELETED old")
        gone = watch.events[0]["object"]["metadata"]
        assert gone["labels"] == {"app": "web"}
        assert gone["resourceVersion"] == await version_of(fleet)


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_a6_a_watch_without_a_version_begins_with_the_present_state(
    fleet: QueryApi, query: dict[str, str]
):
    async with watching(fleet.client, FLEET, **query) as watch:
        await watch.has("ADDED old", "ADDED old")
        clusters = [
            event["object"]["metadata"]["annotations"]["fleetbus.dev/cluster"]
            for event in watch.events
        ]
        assert clusters == ["eu1", "us1"]
        await fleet.add("us1", PODS, "new")
        await watch.has("ADDED old", "ADDED old", "ADDED new")


async def test_a6_initial_events_end_with_a_bookmark_that_says_so(fleet: QueryApi):
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    more = {"allowWatchBookmarks": "true", "resourceVersion": ""}
    async with watching(fleet.client, EU1, **query, **more) as watch:
        await watch.has("ADDED old", "BOOKMARK ")
        mark = watch.events[1]["object"]
        assert mark["kind"] == "Pod"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await fleet.add("eu1", PODS, "new")
        await watch.has("ADDED old", "BOOKMARK ", "ADDED new")
    async with watching(
        fleet.client, EU1, resourceVersion=mark["metadata"]["resourceVersion"]
    ) as again:
        await again.has("ADDED new")


async def test_a6_no_initial_events_can_be_asked_for(fleet: QueryApi):
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    async with watching(fleet.client, EU1, **query) as watch:
        await fleet.add("eu1", PODS, "new")
        await watch.has("ADDED new")


@each_row(
    ("query", "text"),
    [
        (
            {"sendInitialEvents": "true"},
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            {"resourceVersionMatch": "NotOlderThan"},
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    ],
)
async def test_a6_contradicting_options_are_refused_as_by_an_api_server(
    fleet: QueryApi, query: dict[str, str], text: str
):
    answer = await fleet.get(EU1, watch="1", **query)
    assert answer.status_code == 422
    assert answer.json()["reason"] == "Invalid"
    assert text in answer.json()["message"]


async def expired(watch: WatchClient, why: str) -> None:
    """It ended with ERROR 410, as of an API server."""
    await watch.ended()
    assert watch.status == 200
    assert (watch.error["code"], watch.error["reason"]) == (410, "Expired")
    assert why in watch.error["message"]


async def test_a5_a_version_that_was_never_issued_is_410_at_once(fleet: QueryApi):
    future = str(int(await version_of(fleet)) + 1_000_000)
    for query in ({}, {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}):
        async with watching(fleet.client, EU1, resourceVersion=future, **query) as watch:
            await expired(watch, "never issued")
            assert len(watch.events) == 1


async def test_a5_a_version_from_before_the_feed_began_is_410_at_once(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion="17") as watch:
        await expired(watch, "begun anew")


async def test_a5_a_version_that_the_feed_no_longer_reaches_is_410(fleet: QueryApi):
    since = await version_of(fleet)
    for number in range(3):
        await fleet.add("eu1", PODS, f"w{number}")
    await fleet.snapshot.redis.xtrim(fleet.snapshot.keys.feed(0), maxlen=1, approximate=False)
    async with watching(fleet.client, EU1, resourceVersion=since) as watch:
        await expired(watch, "does not reach back")


async def test_p13_open_watches_get_410_when_the_feed_begins_anew(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion=await version_of(fleet)) as watch:
        await fleet.snapshot.redis.set(fleet.snapshot.keys.feed_generation(0), "another@99")
        await expired(watch, "begun anew")


async def test_p13_open_watches_get_410_when_the_store_was_emptied(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion=await version_of(fleet)) as watch:
        await fleet.snapshot.redis.flushall()
        await expired(watch, "list again")


async def test_a6_a_cluster_that_leaves_the_fleet_ends_its_watches(fleet: QueryApi):
    since = await version_of(fleet)
    async with (
        watching(fleet.client, EU1, resourceVersion=since) as watch,
        watching(fleet.client, FLEET, resourceVersion=since) as of_fleet,
        watching(fleet.client, "/kube/us1/api/v1/pods", resourceVersion=since) as other,
    ):
        await fleet.snapshot.writer.removal.drop_cluster("eu1")
        await expired(watch, "cluster eu1 has left the fleet")
        await expired(of_fleet, "cluster eu1 has left the fleet")
        await fleet.add("us1", PODS, "new")
        await other.has("ADDED new")
    async with watching(fleet.client, FLEET, resourceVersion=since) as late:
        await expired(late, "cluster eu1 has left the fleet")


async def test_a6_objects_that_are_no_longer_watched_are_not_called_deleted(fleet: QueryApi):
    since = await version_of(fleet)
    async with (
        watching(fleet.client, EU1, resourceVersion=since) as watch,
        watching(fleet.client, "/kube/us1/api/v1/pods", resourceVersion=since) as other,
    ):
        await fleet.snapshot.writer.removal.drop_scope("eu1", PODS, "")
        await expired(watch, "no longer watches core/pods")
        await fleet.add("us1", PODS, "new")
        await other.has("ADDED new")


async def test_a6_an_outage_of_a_cluster_does_not_end_its_watch(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion=await version_of(fleet)) as watch:
        down = ClusterRecord(name="eu1", connected=False, reason="connection refused")
        await fleet.snapshot.writer.put_cluster("eu1", down)
        stale = ResourceRecord(
            group="core", version="v1", plural="pods", kind="Pod", state=ResourceState.STALE
        )
        await fleet.snapshot.writer.put_resource_state("eu1", stale)
        await fleet.add("eu1", PODS, "new")
        await watch.has("ADDED new")
        assert not watch.has_ended


@pytest.mark.slow
async def test_a6_a_watch_ends_when_its_time_is_over_with_a_bookmark(fleet: QueryApi):
    query = {"timeoutSeconds": "1", "allowWatchBookmarks": "true"}
    since = await version_of(fleet)
    async with watching(fleet.client, EU1, resourceVersion=since, **query) as watch:
        await fleet.add("us1", PODS, "elsewhere")
        await watch.ended()
        assert watch.seen == ["BOOKMARK "]
        assert watch.versions == [int(await version_of(fleet))]


async def test_a6_tables_and_metadata_can_be_watched(fleet: QueryApi):
    since = await version_of(fleet)
    forms = {
        "Table": "application/json;as=Table;v=v1;g=meta.k8s.io",
        "PartialObjectMetadata": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    }
    for kind, accept in forms.items():
        fleet.client.headers["Accept"] = accept
        async with watching(fleet.client, FLEET, resourceVersion=since) as watch:
            await fleet.add("eu1", PODS, kind.lower())
            await eventually(
                lambda w=watch, k=kind: any(k.lower() in str(event) for event in w.events)
            )
            assert {event["object"]["kind"] for event in watch.events} == {kind}
            if kind == "Table":
                assert watch.events[-1]["object"]["rows"][0]["cells"][:2] == ["eu1", "table"]
                assert watch.events[-1]["object"]["columnDefinitions"][0]["name"] == "Cluster"
        del fleet.client.headers["Accept"]


async def test_a5_other_resources_and_namespaces_are_not_shown(fleet: QueryApi):
    path = "/kube/eu1/api/v1/namespaces/test/pods"
    async with watching(fleet.client, path, resourceVersion=await version_of(fleet)) as watch:
        await fleet.add("eu1", "core/configmaps", "c", namespace="test")
        await fleet.add("eu1", PODS, "other", namespace="prod")
        await fleet.add("eu1", PODS, "mine", namespace="test")
        await watch.has("ADDED mine")


async def test_a5_an_object_without_a_body_is_an_event_all_the_same(fleet: QueryApi):
    async with watching(fleet.client, EU1, resourceVersion=await version_of(fleet)) as watch:
        await fleet.add_body("eu1", PODS, "large", None, degraded="oversized")
        await watch.has("ADDED large")
