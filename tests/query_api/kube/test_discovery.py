"""Discovery: what clients find out before they ask for objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rigs.query_api import QueryApi
from support.rigs.secured_api import grant, rule, secured_api

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """eu1 with all that tests know, us1 with pods only."""
    await api.add_cluster("eu1", server_version="v1.31.4")
    await api.add_cluster("us1", "core/pods", server_version="v1.29.9-gke.1")
    return api


async def test_the_groups_and_resources_of_a_cluster(fleet: QueryApi):
    root = "/kube/eu1"
    assert (await fleet.get(f"{root}/api")).json()["versions"] == ["v1"]
    groups = (await fleet.get(f"{root}/apis")).json()
    assert [group["name"] for group in groups["groups"]] == ["apps", "batch", "networking.k8s.io"]
    apps = (await fleet.get(f"{root}/apis/apps")).json()
    assert apps["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    assert (await fleet.get(f"{root}/apis/apps/v1")).json() == {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "apps/v1",
        "resources": [
            {
                "name": "deployments",
                "singularName": "deployment",
                "namespaced": True,
                "kind": "Deployment",
                "verbs": ["get", "list", "watch"],
                "shortNames": ["deploy"],
                "categories": ["all"],
            }
        ],
    }
    core = (await fleet.get(f"{root}/api/v1")).json()["resources"]
    assert [each["name"] for each in core] == ["configmaps", "pods"]
    paths = (await fleet.get(root)).json()["paths"]
    assert {"/api/v1", "/apis/apps/v1", "/version"} <= set(paths)
    for path in ("/apis/none", "/apis/apps/v2", "/apis/core/v1", "/nothing", "/api/v2"):
        refused = await fleet.get(root + path)
        assert (refused.status_code, refused.json()["reason"]) == (404, "NotFound"), path


async def test_aggregated_discovery_says_the_same(fleet: QueryApi):
    headers = {"Accept": f"{AGGREGATED},application/json"}
    answer = await fleet.client.get("/kube/eu1/apis", headers=headers)
    assert answer.headers["content-type"] == AGGREGATED
    groups = answer.json()["items"]
    assert [group["metadata"]["name"] for group in groups] == [
        "apps",
        "batch",
        "networking.k8s.io",
    ]
    assert groups[0]["versions"][0]["resources"] == [
        {
            "resource": "deployments",
            "responseKind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "scope": "Namespaced",
            "singularResource": "deployment",
            "verbs": ["get", "list", "watch"],
            "shortNames": ["deploy"],
            "categories": ["all"],
        }
    ]
    core = (await fleet.client.get("/kube/eu1/api", headers=headers)).json()["items"]
    assert [r["resource"] for r in core[0]["versions"][0]["resources"]] == ["configmaps", "pods"]


async def test_the_fleet_has_what_any_cluster_has(fleet: QueryApi):
    core = (await fleet.get("/kube/us1/api/v1")).json()["resources"]
    assert [each["name"] for each in core] == ["pods"]
    everywhere = (await fleet.get("/kube/-/api/v1")).json()["resources"]
    assert [each["name"] for each in everywhere] == ["configmaps", "pods"]


async def test_versions_are_those_of_the_clusters(fleet: QueryApi):
    async def version(cluster: str) -> str:
        return (await fleet.get(f"/kube/{cluster}/version")).json()["gitVersion"]

    assert [await version(name) for name in ("eu1", "us1")] == ["v1.31.4", "v1.29.9-gke.1"]
    assert await version("-") == "v1.29.9-gke.1", "the oldest of the fleet"


async def test_a_cluster_that_is_not_in_the_fleet(fleet: QueryApi):
    for path in ("", "/version", "/api", "/apis/apps/v1", "/api/v1/pods", "/api/v1/pods?limit=1"):
        refused = await fleet.get(f"/kube/none{path}")
        assert refused.status_code == 404
        assert refused.json()["message"] == "the fleet has no cluster 'none'", path


async def test_a2_custom_types_are_shown_to_who_may_list_them_or_get_the_cluster(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    """Whoever may do neither finds under any name what is built in, after as many reviews."""
    async with secured_api(redis, valkey_url, tmp_path) as api:
        widgets = "example.com/widgets"
        await api.start()
        for name in ("eu1", "us1"):
            await QueryApi(api.url, api.client, api.snapshot).add_cluster(name, widgets)
        listed = rule("list", "fleetbus.dev", "clusters/widgets.example.com", names=("eu1",))
        grant(api.hub, "lister", listed)
        grant(api.hub, "admin", rule("get", "fleetbus.dev", "clusters", names=("eu1",)))
        grant(api.hub, "narrow", listed, namespace="prod")

        async def groups(user: str, cluster: str) -> list[str]:
            answer = await api.get(api.user(user), f"/kube/{cluster}/apis")
            return [group["name"] for group in answer.json()["groups"]]

        for user, clusters in (("lister", ("eu1", "-")), ("admin", ("eu1", "-"))):
            for name in clusters:
                assert await groups(user, name) == ["example.com"], (user, name)
            for name in ("us1", "none"):
                assert await groups(user, name) == [], (user, name)
        counts: list[int] = []
        for name in ("eu1", "us1", "none"):
            before = api.reviews("subjectaccessreviews")
            assert await groups("narrow", name) == []
            counts.append(api.reviews("subjectaccessreviews") - before)
        assert counts[1] == counts[2] > 0, "the number of reviews would tell which clusters exist"
        core = (await api.get(api.user("narrow"), "/kube/none/api/v1")).json()["resources"]
        assert [each["name"] for each in core] == ["configmaps", "pods"]
