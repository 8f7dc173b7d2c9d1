"""Where a name is, who owns an object, and what it owns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL, Owner
from fleetbus_emulator.apiserver import Hang
from fleetbus_query_api.access import authorise
from fleetbus_query_api.responses.openapi import ChildrenModel, OwnersModel, WhereModel
from support.rigs.query_api import QueryApi
from support.rigs.secured_api import grant, rule, secured_api
from support.rows import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

WHERE = "/fleet/v1/where"


def reference(kind: str, name: str, uid: str, api_version: str = "apps/v1") -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """A Deployment in c1 with a child in c2, which has a ConfigMap."""
    await api.add_cluster("c1")
    await api.add_cluster("c2")
    await api.add("c1", "apps/deployments", "web", uid="d1")
    mark = Owner("apps/v1", "Deployment", "prod", "web", "d1", "c1").to_json()
    await put(
        api,
        "c2",
        "core/pods",
        "web-1",
        "p1",
        labels={OWNER_UID_LABEL: "d1"},
        annotations={OWNER_ANNOTATION: mark},
    )
    await put(
        api,
        "c2",
        "core/configmaps",
        "settings",
        "m1",
        ownerReferences=[reference("Pod", "web-1", "p1", "v1")],
    )
    await api.add("c2", "core/configmaps", "web", namespace="dev")
    await api.add("c2", "networking.k8s.io/ingresses", "web", namespace="")
    return api


async def put(
    api: QueryApi, cluster: str, resource: str, name: str, uid: str, **metadata: Any
) -> None:
    tree = {"metadata": {"name": name, "namespace": "prod", "uid": uid, **metadata}}
    await api.add_body(cluster, resource, name, msgspec.json.encode(tree), uid=uid)


async def found(api: QueryApi, **query: str) -> list[str]:
    answer = await api.get(WHERE, **query)
    assert answer.status_code == 200, answer.text
    WhereModel.model_validate(answer.json())
    return [
        f"{item['cluster']} {item['resource']['plural']} {item['namespace']}/{item['name']}"
        for item in answer.json()["items"]
    ]


async def test_a_name_is_found_in_every_resource_cluster_and_namespace(fleet: QueryApi):
    everywhere = ["c1 deployments prod/web", "c2 configmaps dev/web", "c2 ingresses /web"]
    assert await found(fleet, name="web") == everywhere
    assert await found(fleet, name="web", namespace="dev") == ["c2 configmaps dev/web"]
    assert await found(fleet, name="web", namespace="-") == ["c2 ingresses /web"]
    assert await found(fleet, name="web", cluster="c1") == everywhere[:1]
    for kind in ("ConfigMap", "configmaps", "configmap"):
        assert await found(fleet, name="web", kind=kind) == everywhere[1:2]
    assert await found(fleet, name="we") == []
    assert await found(fleet, name="web", kind="Widget") == []


async def test_a8_hits_are_bounded_and_the_rest_is_counted(fleet: QueryApi):
    answer = (await fleet.get(WHERE, name="web", limit=1)).json()
    assert (len(answer["items"]), answer["remaining"]) == (1, 2)


async def test_a_name_is_found_among_many_namespaces(api: QueryApi):
    await api.add_cluster("c1")
    for number in range(40):
        await api.add("c1", "core/pods", f"o{number % 3}", namespace=f"team-{number}")
    assert len(await found(api, name="o1")) == 13


@each_row("query", [{}, {"name": ""}, {"name": "a/b"}, {"name": "a", "limit": 0}])
async def test_a8_a_name_that_is_none_is_400(fleet: QueryApi, query: dict[str, str]):
    assert (await fleet.get(WHERE, **query)).status_code == 400


async def test_owners_are_followed_to_the_top_and_into_other_clusters(fleet: QueryApi):
    answer = await fleet.get("/fleet/v1/owners/c2/configmaps/prod/settings")
    OwnersModel.model_validate(answer.json())
    rows = [
        (item["depth"], item["cluster"], item["kind"], item["name"], item["found"])
        for item in answer.json()["items"]
    ]
    assert rows == [(1, "c2", "Pod", "web-1", True), (2, "c1", "Deployment", "web", True)]


async def test_an_owner_that_is_gone_or_another_is_named_and_not_found(fleet: QueryApi):
    owners = [reference("Deployment", "web", "other"), reference("Widget", "x", "w", "no/v1")]
    await put(fleet, "c1", "core/pods", "orphan", "o1", ownerReferences=owners)
    answer = (await fleet.get("/fleet/v1/owners/c1/pods/prod/orphan")).json()
    OwnersModel.model_validate(answer)
    assert [(item["name"], item["found"]) for item in answer["items"]] == [
        ("web", False),
        ("x", False),
    ]


async def test_references_that_mean_nothing_break_nothing(
    fleet: QueryApi, subtests: pytest.Subtests
):
    for metadata in [
        dict[str, Any](ownerReferences="none"),
        dict[str, Any](ownerReferences=[1, {}]),
        dict[str, Any](annotations={OWNER_ANNOTATION: "{"}),
        dict[str, Any](annotations={OWNER_ANNOTATION: 7}),
        dict[str, Any](annotations="none"),
    ]:
        with subtests.test(metadata=metadata):
            await put(fleet, "c1", "core/pods", "odd", "odd", **metadata)
            answer = await fleet.get("/fleet/v1/owners/c1/pods/prod/odd")
            assert answer.status_code == 200
            assert answer.json()["items"] == []


async def test_owners_in_a_circle_end(fleet: QueryApi):
    await put(
        fleet, "c1", "core/pods", "a", "a", ownerReferences=[reference("Pod", "b", "b", "v1")]
    )
    await put(
        fleet, "c1", "core/pods", "b", "b", ownerReferences=[reference("Pod", "a", "a", "v1")]
    )
    answer = (await fleet.get("/fleet/v1/owners/c1/pods/prod/a")).json()
    assert [item["name"] for item in answer["items"]] == ["b", "a"]
    answer = (await fleet.get("/fleet/v1/children/c1/pods/prod/a", depth=5)).json()
    assert [item["name"] for item in answer["items"]] == ["b"]


async def test_children_are_found_in_all_clusters_and_to_a_depth(fleet: QueryApi):
    path = "/fleet/v1/children/c1/deployments/prod/web"
    answer = (await fleet.get(path)).json()
    ChildrenModel.model_validate(answer)
    assert [(i["cluster"], i["name"], i["depth"]) for i in answer["items"]] == [("c2", "web-1", 1)]
    answer = (await fleet.get(path, depth=3)).json()
    assert [(i["name"], i["depth"], i["ownerUid"]) for i in answer["items"]] == [
        ("web-1", 1, "d1"),
        ("settings", 2, "p1"),
    ]
    answer = (await fleet.get(path, depth=3, limit=1)).json()
    assert (len(answer["items"]), answer["hasMore"]) == (1, True)


async def test_a2_what_a_user_may_not_read_is_neither_owner_nor_child(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    async with secured_api(redis, valkey_url, tmp_path) as api:
        await api.start()
        filling = QueryApi(api.url, api.client, api.snapshot, version=1000)
        await put(filling, "eu1", "core/pods", "owner", "u1")
        owned = [reference("Pod", "owner", "u1", "v1")]
        for cluster in ("eu1", "us1"):
            place = (cluster, "core/configmaps", "child", f"c-{cluster}")
            await put(filling, *place, ownerReferences=owned)
        ann, bob, eve = (api.user(name) for name in ("ann", "bob", "eve"))
        pods, maps = "clusters/pods", "clusters/configmaps"
        grant(api.hub, "ann", rule("get list", "fleetbus.dev", pods))
        right = rule("get list", "fleetbus.dev", pods, maps, names=("eu1",))
        grant(api.hub, "bob", right, namespace="prod")
        grant(api.hub, "eve", rule("get", "fleetbus.dev", maps))

        path = "/fleet/v1/children/eu1/pods/prod/owner"
        assert (await api.get(ann, path)).json()["items"] == []
        items = (await api.get(bob, path)).json()["items"]
        assert [(item["cluster"], item["name"]) for item in items] == [("eu1", "child")]
        answer = (await api.get(eve, "/fleet/v1/owners/eu1/configmaps/prod/child")).json()
        assert [(item["name"], item["found"]) for item in answer["items"]] == [("owner", False)]


async def test_a3_an_owner_in_a_cluster_that_does_not_decide_is_not_gone(
    redis: Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authorise, "MEMBER_WITHIN", timedelta(seconds=0.5))
    async with secured_api(redis, valkey_url, tmp_path) as api:
        await api.start(authority="member")
        filling = QueryApi(api.url, api.client, api.snapshot, version=1000)
        await put(filling, "us1", "core/pods", "owner", "u1")
        mark = Owner("v1", "Pod", "prod", "owner", "u1", "us1").to_json()
        labels, annotations = {OWNER_UID_LABEL: "u1"}, {OWNER_ANNOTATION: mark}
        place = ("eu1", "core/configmaps", "child", "c1")
        await put(filling, *place, labels=labels, annotations=annotations)
        token = api.user("ann")
        grant(api.hub, "ann", rule("get list", "fleetbus.dev", "clusters"))
        for member in ("eu1", "us1"):
            grant(api.members[member], "ann", rule("get list", "", "pods", "configmaps"))
        path = "/fleet/v1/owners/eu1/configmaps/prod/child"
        hanging = api.members["us1"].faults.add(Hang(), verb="create")
        answer = (await api.get(token, path)).json()
        assert ([item["found"] for item in answer["items"]], answer["incomplete"]) == (
            [False],
            ["us1"],
        )
        hanging.remove()
        answer = (await api.get(token, path)).json()
        assert ([item["found"] for item in answer["items"]], answer["incomplete"]) == ([True], [])


async def test_a2_an_unknown_kind_takes_as_many_reviews_as_a_forbidden_one(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    async with secured_api(redis, valkey_url, tmp_path) as api:
        await api.start()
        token = api.user("nobody")
        reviews: list[int] = []
        for kind in ("Pod", "Widget"):
            before = api.reviews("subjectaccessreviews")
            answer = await api.get(token, WHERE, name="prod-1", kind=kind)
            assert answer.json()["items"] == []
            reviews.append(api.reviews("subjectaccessreviews") - before)
        # The first one also asks which clusters may be named.
        assert reviews[0] >= reviews[1] > 0
        again = api.reviews("subjectaccessreviews")
        await api.get(token, WHERE, name="prod-1", kind="ConfigMap")
        assert api.reviews("subjectaccessreviews") - again == reviews[1]
