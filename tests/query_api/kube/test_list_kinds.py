"""Lists of a custom type have the kind that its definition gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetbus.snapshot import Definition, ResourceRecord, ResourceState
from support.rigs.query_api import QueryApi, ago

PATH = "/kube/{}/apis/lab.example.org/v1/lanterns"
METADATA = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io"


async def define(api: QueryApi, cluster: str, list_kind: str) -> None:
    record = ResourceRecord(
        group="lab.example.org",
        version="v1",
        plural="lanterns",
        kind="Lantern",
        state=ResourceState.SYNCED,
        last_received=ago(1),
        definition=Definition(list_kind=list_kind),
    )
    await api.snapshot.writer.put_resource_state(cluster, record)


@pytest.fixture
async def lanterns(api: QueryApi) -> QueryApi:
    """Lanterns of three clusters, one of which defines them in another way."""
    for cluster, list_kind in (("a", ""), ("b", "LanternCollection"), ("c", "LanternCollection")):
        await api.add_cluster(cluster)
        await define(api, cluster, list_kind)
        parts: dict[str, Any] = {"apiVersion": "lab.example.org/v1", "kind": "Lantern"}
        await api.add(cluster, "lab.example.org/lanterns", "hall", **parts)
    return api


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [("a", "LanternList"), ("b", "LanternCollection"), ("-", "LanternCollection")],
)
async def test_a_list_has_the_kind_of_the_definition_that_most_clusters_have(
    lanterns: QueryApi, cluster: str, kind: str
):
    for query in ({}, {"limit": "1"}, {"labelSelector": "none=such"}):
        assert (await lanterns.get(PATH.format(cluster), **query)).json()["kind"] == kind
    accept = {"Accept": METADATA.format("")}
    refused = await lanterns.client.get(PATH.format(cluster), headers=accept)
    assert refused.json()["message"].endswith(f"is a list (*{kind})")
    accept = {"Accept": METADATA.format("List")}
    answer = await lanterns.client.get(PATH.format(cluster), headers=accept)
    assert answer.json()["kind"] == "PartialObjectMetadataList"


@pytest.mark.slow
async def test_bookmarks_of_a_watch_have_the_kind_of_the_objects(lanterns: QueryApi):
    query = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "1",
    }
    for cluster in ("b", "-"):
        answer = await lanterns.get(PATH.format(cluster), **query)
        events = [json.loads(line) for line in answer.text.splitlines()]
        assert {event["type"] for event in events} == {"ADDED", "BOOKMARK"}
        assert {event["object"]["kind"] for event in events} == {"Lantern"}
