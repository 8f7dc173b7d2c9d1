"""`/kube/-`: all clusters at once, same-named objects side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "/kube/-/api/v1/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """`web` in both clusters, and another pod in each."""
    for cluster in ("eu1", "us1"):
        await api.add_cluster(cluster)
        parts: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod"}
        await api.add(cluster, "core/pods", "web", labels={"at": cluster}, **parts)
        await api.add(cluster, "core/pods", f"only-{cluster}", **parts)
    return api


async def test_a_list_names_the_cluster_of_each_object(fleet: QueryApi):
    answer = (await fleet.get(PODS)).json()
    assert [
        (item["metadata"]["annotations"]["fleetbus.dev/cluster"], item["metadata"]["name"])
        for item in answer["items"]
    ] == [("eu1", "only-eu1"), ("eu1", "web"), ("us1", "only-us1"), ("us1", "web")]
    assert answer["kind"] == "PodList"
    items = (await fleet.get(PODS, labelSelector="at=us1")).json()["items"]
    assert [item["metadata"]["name"] for item in items] == ["web"]


async def test_a_table_begins_with_the_cluster(fleet: QueryApi):
    table = (await fleet.client.get(PODS, headers={"Accept": TABLE})).json()
    assert [column["name"] for column in table["columnDefinitions"]][:3] == [
        "Cluster",
        "Name",
        "Ready",
    ]
    assert [row["cells"][:2] for row in table["rows"]] == [
        ["eu1", "only-eu1"],
        ["eu1", "web"],
        ["us1", "only-us1"],
        ["us1", "web"],
    ]
    assert {
        row["object"]["metadata"]["annotations"]["fleetbus.dev/cluster"] for row in table["rows"]
    } == {"eu1", "us1"}


async def test_pages_go_on_in_the_next_cluster(fleet: QueryApi):
    names: list[str] = []
    query = {"limit": "1"}
    for _ in range(4):
        page = (await fleet.get(PODS, **query)).json()
        names += [item["metadata"]["name"] for item in page["items"]]
        query["continue"] = page["metadata"].get("continue", "")
    assert names == ["only-eu1", "web", "only-us1", "web"]
    assert not query["continue"]


async def test_a_get_shows_the_object_of_every_cluster(fleet: QueryApi):
    path = "/kube/-/api/v1/namespaces/prod/pods"
    several = (await fleet.get(f"{path}/web")).json()
    assert (several["kind"], several["apiVersion"]) == ("List", "v1")
    assert [i["metadata"]["annotations"]["fleetbus.dev/cluster"] for i in several["items"]] == [
        "eu1",
        "us1",
    ]
    table = (await fleet.client.get(f"{path}/web", headers={"Accept": TABLE})).json()
    assert [row["cells"][:2] for row in table["rows"]] == [["eu1", "web"], ["us1", "web"]]
    metadata = (await fleet.client.get(f"{path}/web", headers={"Accept": METADATA})).json()
    assert metadata["kind"] == "PartialObjectMetadataList"
    single = (await fleet.get(f"{path}/only-us1")).json()
    assert single["kind"] == "Pod"
    assert single["metadata"]["annotations"] == {"fleetbus.dev/cluster": "us1"}
    assert (await fleet.get(f"{path}/none")).status_code == 404
    assert (await fleet.get("/kube/-/api/v1/namespaces/other/pods/web")).status_code == 404


async def test_a_typed_client_learns_that_several_clusters_have_the_object(fleet: QueryApi):
    path = "/kube/-/api/v1/namespaces/prod/pods"
    for accept in ("application/json, */*", "application/vnd.kubernetes.protobuf,application/json"):
        headers = {"Accept": accept}
        several = await fleet.client.get(f"{path}/web", headers=headers)
        assert (several.status_code, several.json()["reason"]) == (409, "Conflict")
        assert "is in 2 clusters (eu1, us1): ask one of them" in several.json()["message"]
        single = await fleet.client.get(f"{path}/only-us1", headers=headers)
        assert single.json()["kind"] == "Pod"


async def test_annotations_of_the_object_stay(fleet: QueryApi):
    body = b'{"metadata":{"name":"a","namespace":"prod","resourceVersion":"9","annotations":%b}}'
    for name, annotation in (("one", b'{"team":"a"}'), ("none", b"null")):
        await fleet.add_body("eu1", "core/configmaps", name, body % annotation)
        answer = await fleet.get(f"/kube/-/api/v1/namespaces/prod/configmaps/{name}")
        annotations = answer.json()["metadata"]["annotations"]
        assert annotations.pop("fleetbus.dev/cluster") == "eu1"
        assert annotations == ({"team": "a"} if name == "one" else {})
