"""Rule A2 for types: what other clusters have of a type is hidden from who may not read there."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import Definition, ResourceRecord, ResourceState
from fleetbus_proto.events import PrinterColumn
from support.rigs.query_api import QueryApi, ago
from support.rigs.secured_api import grant, rule, secured_api
from support.rigs.watch_client import watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.secured_api import SecuredApi

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
WIDGETS = "/kube/-/apis/example.com/{}/widgets"
VERBS = "get list watch"
BRIEF = {"token_cache": timedelta(0), "allow_cache": timedelta(0), "deny_cache": timedelta(0)}


def in_cluster(name: str, resource: str) -> dict[str, Any]:
    return rule(VERBS, "fleetbus.dev", f"clusters/{resource}", names=(name,))


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    """Both clusters have widgets, each with a version and a column of its own; us1 has gadgets."""
    async with secured_api(redis, valkey_url, tmp_path) as server:
        await define(server, "eu1", "widgets", "v1", "Size")
        await define(server, "us1", "widgets", "v2", "Price", short_names=["wg"])
        await define(server, "us1", "gadgets", "v1", "Price")
        yield server


def owned_by(owner: dict[str, Any]) -> bytes:
    return json.dumps(
        {"metadata": {"name": "part", "namespace": "prod", "ownerReferences": [owner]}}
    ).encode()


async def define(
    api: SecuredApi, cluster: str, plural: str, version: str, *columns: str, **names: Any
):
    columns_of_type = [
        PrinterColumn(name=name, type="string", json_path=".spec.x") for name in columns
    ]
    record = ResourceRecord(
        group="example.com",
        version=version,
        plural=plural,
        kind=plural[:-1].capitalize(),
        state=ResourceState.SYNCED,
        last_received=ago(1),
        definition=Definition(columns=columns_of_type, **names),
    )
    await api.snapshot.writer.put_resource_state(cluster, record)


def filling(api: SecuredApi) -> QueryApi:
    return QueryApi("", api.client, api.snapshot, version=1000)


async def test_a2_a_watch_has_the_columns_of_the_clusters_that_its_user_may_read(api: SecuredApi):
    """Events are encoded once for many: not for those whose columns differ."""
    await api.start()
    grant(api.hub, "ann", in_cluster("eu1", "widgets.example.com"))
    grant(api.hub, "bob", rule(VERBS, "fleetbus.dev", "clusters/widgets.example.com"))
    await filling(api).add_cluster("ap1", "core/pods")
    for cluster in ("us1", "ap1"):
        await define(api, cluster, "widgets", "v1", "Price", "Size")
    ann, bob = api.user("ann"), api.user("bob")
    path = WIDGETS.format("v1")
    api.client.headers["accept"] = TABLE
    async with (
        watching(api.client, path, token=bob) as his,
        watching(api.client, path, token=ann) as hers,
    ):
        await filling(api).add("eu1", "example.com/widgets", "w")
        await hers.has("ADDED ")
        await his.has("ADDED ")
    columns = [column["name"] for column in hers.events[0]["object"]["columnDefinitions"]]
    assert columns == ["Cluster", "Name", "Size"]


async def test_a2_versions_and_names_of_a_type_are_those_of_readable_clusters(api: SecuredApi):
    await api.start()
    token = api.user("ann")
    grant(api.hub, "ann", in_cluster("eu1", "widgets.example.com"))

    described = (await api.get(token, "/fleet/v1/resources/widgets")).json()["resource"]
    assert described["versions"] == ["v1"]
    owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "uid-w"}
    fill = filling(api)
    await fill.add("eu1", "example.com/widgets", "w", uid="uid-w")
    await fill.add_body("eu1", "example.com/widgets", "part", owned_by(owner), uid="uid-part")
    for path in ("where?name=w", "children/eu1/widgets/prod/w", "owners/eu1/widgets/prod/part"):
        (item,) = (await api.get(token, f"/fleet/v1/{path}")).json()["items"]
        assert item["resource"]["versions"] == ["v1"], path
    refused = await api.get(token, WIDGETS.format("v2"))
    assert "kept in version v1, not v2" in refused.json()["message"]
    for name in ("wg", "v2/widgets", "example.com/v2/widgets"):
        assert (await api.get(token, f"/fleet/v1/resources/{name}")).status_code == 404


async def test_a2_a_type_of_unreadable_clusters_only_is_answered_like_an_absent_one(
    api: SecuredApi,
):
    """Also to who may read everything in the other clusters."""
    await api.start(**BRIEF)
    token = api.user("ann")
    grant(api.hub, "ann", rule(VERBS, "fleetbus.dev", "*", names=("eu1",)))
    assert (await api.get(token, "/fleet/v1/resources/widgets")).status_code == 200
    for path in (
        "/fleet/v1/resources/{}",
        "/fleet/v1/resources/{}?cluster=eu1",
        "/fleet/v1/resources/{}.example.com",
        "/fleet/v1/counts?resource={}",
        "/fleet/v1/objects/eu1/{}/prod/a",
        "/kube/-/apis/example.com/v1/{}",
        "/kube/eu1/apis/example.com/v1/{}",
        "/kube/eu1/apis/example.com/v1/namespaces/prod/{}/a",
    ):
        answers: list[tuple[int, str, int]] = []
        for name in ("gadgets", "nothing"):
            before = api.reviews("subjectaccessreviews")
            answer = await api.get(token, path.format(name))
            reviews = api.reviews("subjectaccessreviews") - before
            answers.append((answer.status_code, answer.text.replace(name, "x"), reviews))
        assert answers[0] == answers[1], path


async def test_a2_objects_without_a_body_count_in_the_asked_namespace_only(api: SecuredApi):
    await api.start()
    token = api.user("ann")
    pods = rule(VERBS, "fleetbus.dev", "clusters/pods", names=("eu1",))
    grant(api.hub, "ann", pods, namespace="prod")
    fill = filling(api)
    for number in range(300):
        await fill.add("eu1", "core/pods", f"more-{number}", spec={"nodeName": "n1"})
    for number in range(7):
        name = f"secret-{number}"
        await fill.add_body("eu1", "core/pods", name, None, namespace="test", degraded="oversized")
    path = "/kube/eu1/api/v1/namespaces/prod/pods"
    answer = await api.get(token, path, fieldSelector="spec.nodeName=n1")

    assert len(answer.json()["items"]) == 300
    assert "warning" not in answer.headers, answer.headers


async def test_a8_a_cluster_of_many_types_is_shown_without_a_review_of_each(
    api: SecuredApi, monkeypatch: pytest.MonkeyPatch
):
    """Its page took a review for each, and the user's budget: 429 for who may see everything."""
    monkeypatch.setattr("fleetbus_query_api.catalog.cluster_listing.MAX_REVIEWS", 3)
    monkeypatch.setattr("fleetbus_query_api.access.authorise.REVIEW_BURST", 9)
    await api.start()
    token = api.user("ann")
    grant(api.hub, "ann", rule("get list", "fleetbus.dev", "*"))
    for number in range(20):
        await define(api, "eu1", f"gizmos{number}", "v1")
    await filling(api).add_cluster("eu1", "core/pods", "networking.k8s.io/ingresses")
    answer = await api.get(token, "/fleet/v1/clusters/eu1")
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    counted = [each["plural"] for each in shown["resources"] if each["objects"] is not None]
    assert len(counted) == 3
    assert {"pods", "ingresses"} <= {*counted}
    assert shown["uncountedResourceCount"] == len(shown["resources"]) - 3
