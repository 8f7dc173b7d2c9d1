"""Every answer says how far it can be relied on (rule A4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fleetbus.snapshot import ResourceState
from fleetbus.snapshot.records import ScopeRecord
from fleetbus_query_api.responses.openapi import ClusterDetailModel, ClusterListModel, ListModel
from support.rigs.query_api import KINDS

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from support.rigs.query_api import QueryApi

LIST = "/fleet/v1/resources/pods"


async def test_a4_a_synced_and_reporting_fleet_is_complete(api: QueryApi):
    await api.add_cluster("c1")

    answer = (await api.get(LIST)).json()

    assert answer["incomplete"] == []
    assert answer["freshness"]["c1"]["complete"]
    assert 0 <= answer["freshness"]["c1"]["ageSeconds"] < 30
    ListModel.model_validate(answer)


async def test_a4_a_cluster_not_reported_is_incomplete_and_its_rows_stay(api: QueryApi):
    await api.add_cluster("c1")
    await api.add_cluster("c2", reported_ago=200)
    await api.add("c2", "core/pods", "old")

    answer = (await api.get(LIST)).json()

    assert answer["incomplete"] == ["c2"]
    assert answer["freshness"]["c2"]["ageSeconds"] >= 200
    assert re.fullmatch(
        r"its watcher has been silent for 2\d\d s", answer["freshness"]["c2"]["reason"]
    )
    assert [item["cluster"] for item in answer["items"]] == ["c2"]


async def test_a4_no_other_state_than_synced_is_complete(api: QueryApi):
    others = sorted(set(ResourceState) - {ResourceState.SYNCED})
    for state in others:
        await api.add_cluster(f"c-{state}", state=state)

    answer = (await api.get(LIST)).json()

    assert answer["incomplete"] == [f"c-{state}" for state in others]
    assert {freshness["state"] for freshness in answer["freshness"].values()} == set(others)


async def test_a4_a_cluster_without_the_resource_is_incomplete(api: QueryApi):
    await api.add_cluster("c1")
    await api.add_cluster("c2", "core/configmaps")

    answer = (await api.get(LIST)).json()

    assert answer["incomplete"] == ["c2"]
    assert answer["freshness"]["c2"]["reason"] == "not watched there"


async def test_a4_a_namespace_that_is_not_watched_is_incomplete_not_empty(api: QueryApi):
    await api.add_cluster("c1", "core/pods")
    (resource,) = await api.snapshot.reader.resources("c1")
    scope = ScopeRecord(
        namespace="prod", state=resource.state, last_received=resource.last_received, epoch="1 1"
    )
    narrowed = replace(resource, is_declared=True).with_scopes({"hash": scope})
    await api.snapshot.writer.put_resource_state("c1", narrowed)

    assert (await api.get(LIST, namespace="prod")).json()["incomplete"] == []
    answer = (await api.get(LIST, namespace="stage")).json()

    assert answer["incomplete"] == ["c1"]
    assert answer["freshness"]["c1"]["reason"] == "namespace 'stage' is not watched"


async def test_a4_a_stranger_is_named_and_has_nothing(api: QueryApi):
    await api.add_cluster("c1")

    answer = (await api.get(LIST, cluster="c1,zz")).json()

    assert answer["incomplete"] == ["zz"]
    assert answer["freshness"]["zz"]["reason"] == "not in the fleet"


async def test_a4_objects_that_no_field_selector_can_match_make_it_incomplete(api: QueryApi):
    await api.add_cluster("c1")
    await api.add_body("c1", "core/pods", "big", None, degraded="oversized")

    answer = (await api.get(LIST, fieldSelector="status.phase=Running")).json()

    assert answer["incomplete"] == ["c1"]
    assert "1 objects without a body" in answer["freshness"]["c1"]["reason"]


@pytest.mark.parametrize("value", [b"1e400", b"9" * 5000])
async def test_w16_an_object_that_no_decoder_holds_spoils_no_list(api: QueryApi, value: bytes):
    await api.add_cluster("c1")
    await api.add("c1", "core/pods", "good", status={"phase": "Running"})
    body = b'{"metadata":{"name":"huge"},"status":{"phase":"Running","x":' + value + b"}}"
    await api.add_body("c1", "core/pods", "huge", body)

    answer = (await api.get(LIST, fieldSelector="status.x!=1")).json()
    assert [item["object"]["metadata"]["name"] for item in answer["items"]] == ["good"]
    assert answer["incomplete"] == ["c1"]
    readable = (await api.get(LIST, fieldSelector="status.phase=Running")).text
    assert '"name":"good"' in readable
    assert '"name":"huge"' in readable
    assert readable.endswith('"incomplete":[]}')


async def test_clusters_are_listed_with_what_is_known_of_them(api: QueryApi):
    await api.add_cluster("c1", hub=True, server_version="v1.33.1", labels={"eu": ""})
    await api.add_cluster("c2", connected=False, reason="Unreachable", message="refused")
    await api.add_cluster("c3", reported_ago=300)
    await api.add_cluster("c4", state=ResourceState.LISTING)

    answer = (await api.get("/fleet/v1/clusters")).json()

    ClusterListModel.model_validate(answer)
    assert [item["name"] for item in answer["items"]] == ["c1", "c2", "c3", "c4"]
    assert [item["complete"] for item in answer["items"]] == [True, False, False, False]
    assert answer["incomplete"] == ["c2", "c3", "c4"]
    assert answer["freshness"]["c2"]["reason"] == "refused"
    assert "silent for 3" in answer["freshness"]["c3"]["reason"]
    assert "and 2 more" in answer["freshness"]["c4"]["reason"]


async def test_one_cluster_is_shown_with_its_resources_and_numbers_of_objects(api: QueryApi):
    await api.add_cluster("c1")
    await api.add("c1", "core/pods", "a")
    await api.add("c1", "core/pods", "b")

    answer = (await api.get("/fleet/v1/clusters/c1")).json()

    ClusterDetailModel.model_validate(answer)
    counts = {f"{r['group']}/{r['plural']}": r["objects"] for r in answer["resources"]}
    assert counts == dict.fromkeys(KINDS, 0) | {"core/pods": 2}


async def test_a_cluster_of_which_no_resource_is_known_is_incomplete(api: QueryApi):
    await api.add_cluster("c1", "core/pods")
    await api.snapshot.forget_resource("c1", "core/pods")

    answer = (await api.get("/fleet/v1/clusters")).json()

    assert answer["incomplete"] == ["c1"]


async def test_a8_a_cluster_with_a_thousand_types_is_described_with_few_round_trips(
    api: QueryApi, redis: Redis
):
    """One round trip for each took seconds of the process with 10,000 types of one member."""
    await api.add_cluster("c1", "core/pods", *(f"example.com/widgets{at}" for at in range(1_000)))
    for name in "abc":
        await api.add("c1", "example.com/widgets7", name)
    before = (await redis.info("stats"))["total_reads_processed"]
    answer = (await api.get("/fleet/v1/clusters/c1")).json()
    reads = (await redis.info("stats"))["total_reads_processed"] - before
    objects = {each["plural"]: each["objects"] for each in answer["resources"]}
    assert (len(objects), objects["widgets7"], sum(objects.values())) == (1_001, 3, 3)
    assert reads < 200
