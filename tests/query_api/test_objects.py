"""Lists and single objects: selection, paging, bodies as stored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus_query_api.fields import pages as pages_by_field
from fleetbus_query_api.objects import listing
from fleetbus_query_api.responses.openapi import ListModel, ObjectModel
from support.rows import each_row
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "core/pods"

FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"cluster": "c2"}, ["c2/a"]),
    ({"cluster": ["c1", "c2"], "name": "a"}, ["c1/a", "c2/a"]),
    ({"cluster": "c2,c1", "name": "a"}, ["c1/a", "c2/a"]),
    ({"namespace": "test"}, ["c1/d", "c1/e"]),
    ({"namespace": "prod", "name": "b"}, ["c1/b"]),
    ({"labelSelector": "app=web"}, ["c1/a", "c1/c", "c1/e", "c2/a"]),
    ({"labelSelector": "app notin (web)"}, ["c1/b", "c1/d"]),
    ({"fieldSelector": "status.phase=Running"}, ["c1/a", "c1/b", "c2/a"]),
    ({"fieldSelector": "metadata.name=a,status.phase!=Pending"}, ["c1/a", "c2/a"]),
    ({"fieldSelector": "metadata.namespace=test"}, ["c1/d", "c1/e"]),
    ({"fieldSelector": "metadata.name=a", "name": "b"}, []),
    ({"labelSelector": "app=web", "fieldSelector": "status.phase=Pending"}, ["c1/c", "c1/e"]),
    ({"namespace": "nowhere"}, []),
    ({"cluster": "nowhere"}, []),
]


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """Two clusters; c1 with pods a to e in two namespaces, c2 with an a of the same name."""
    await api.add_cluster("c1")
    await api.add_cluster("c2")
    for at, name in enumerate("abcde"):
        await api.add(
            "c1",
            PODS,
            name,
            namespace="prod" if at < 3 else "test",
            labels={"app": "web" if at % 2 == 0 else "db"},
            status={"phase": "Running" if at < 2 else "Pending"},
        )
    await api.add("c2", PODS, "a", labels={"app": "web"}, status={"phase": "Running"})
    return api


async def all_pages(api: QueryApi, **query: Any) -> tuple[list[str], int]:
    """All names over pages, and how many pages it took."""
    names: list[str] = []
    token, pages = "", 0
    while True:
        more = {"continue": token} if token else {}
        answer = await api.get("/fleet/v1/resources/pods", **query, **more)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        names += [f"{i['cluster']}/{i['object']['metadata']['name']}" for i in body["items"]]
        token, pages = body["continue"], pages + 1
        if not token:
            return names, pages


async def test_a_list_holds_the_objects_of_every_cluster_in_order(fleet: QueryApi):
    assert await fleet.names() == ["c1/a", "c1/b", "c1/c", "c1/d", "c1/e", "c2/a"]


async def test_filters_can_be_combined(fleet: QueryApi):
    for query, expected in FILTERS:
        assert await fleet.names(**query) == expected, query


@each_row("query", [{}, {"labelSelector": "app=web"}, {"fieldSelector": "status.phase!=Failed"}])
async def test_pages_put_together_are_the_whole_list(fleet: QueryApi, query: dict[str, str]):
    all_names = await fleet.names(**query)
    for limit in (1, 2, 4, 6, 1000):
        names, pages = await all_pages(fleet, limit=limit, **query)

        assert names == all_names
        assert pages == -(-len(all_names) // limit)


async def test_a_page_tells_how_many_objects_remain(fleet: QueryApi):
    answer = await fleet.get("/fleet/v1/resources/pods", limit=4)

    assert answer.json()["remaining"] == 2


async def test_a8_a_scan_stops_and_goes_on_with_the_next_page(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_query_api.fields.source.REPAID", math.inf)
    monkeypatch.setattr("fleetbus_query_api.fields.source.STEP", 2)
    monkeypatch.setattr("fleetbus_query_api.fields.pages.MAX_READ", 2)

    names, pages = await all_pages(fleet, fieldSelector="status.phase=Pending")

    assert names == ["c1/c", "c1/d", "c1/e"]
    assert pages == 3


@pytest.mark.parametrize("query", [{}, {"fieldSelector": "status.phase!=Failed"}])
async def test_a8_a_page_is_cut_where_it_grows_too_large(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
):
    for module in (listing, pages_by_field):
        monkeypatch.setattr(module, "MAX_PAGE_BYTES", 600)
    all_names = ["c1/a", "c1/b", "c1/c", "c1/d", "c1/e", "c2/a"]

    names, pages = await all_pages(fleet, **query)

    assert names == all_names
    assert pages == 3


async def test_bodies_are_the_bytes_of_the_snapshot(fleet: QueryApi):
    body = b'{"metadata":{"name":"x"},"spec":{"big":12345678901234567890,"f":1.10,"s":"\\u00e9"}}'
    await fleet.add_body("c1", PODS, "x", body)

    answer = await fleet.get("/fleet/v1/resources/pods", name="x")

    assert body in answer.content


async def test_an_object_too_large_for_the_bus_is_listed_without_a_body(fleet: QueryApi):
    await fleet.add_body("c1", PODS, "big", None, degraded="oversized")

    answer = await fleet.get("/fleet/v1/resources/pods", name="big")

    (item,) = answer.json()["items"]
    assert item["object"] is None
    assert item["degraded"] == "oversized"
    assert (item["cluster"], item["namespace"], item["name"]) == ("c1", "prod", "big")
    ListModel.model_validate(answer.json())


@pytest.mark.parametrize("reason", ["", "oversized"])
@pytest.mark.parametrize(
    "body", [b'{"metadata":', b'{"metadata":{}}},{"cluster":"c2"', b'{"metadata":{},"a":"\xff"}']
)
async def test_w16_a_body_that_is_no_json_does_not_spoil_the_list(
    fleet: QueryApi, body: bytes, reason: str
):
    event = Source(cluster="c1").added("broken", 1000, body=body)
    await fleet.snapshot.apply(msgspec.structs.replace(event, degraded=reason))

    answer = await fleet.get("/fleet/v1/resources/pods", namespace="prod", cluster="c1")

    items = answer.json()["items"]
    assert [i["degraded"] for i in items if i["object"] is None] == ["unreadable"]
    assert len(items) == 4


async def test_one_object_is_answered_with_its_cluster_and_resource(fleet: QueryApi):
    answer = await fleet.get("/fleet/v1/objects/c2/v1/pods/prod/a")

    answer_body = answer.json()
    assert answer.status_code == 200
    assert answer_body["object"]["metadata"]["uid"] == "uid-c2-a"
    assert answer_body["resource"]["kind"] == "Pod"
    ObjectModel.model_validate(answer_body)


async def test_one_object_without_a_namespace_is_asked_for_with_a_dash(fleet: QueryApi):
    await fleet.add_cluster("c1", "core/nodes")
    await fleet.add("c1", "core/nodes", "n1", namespace="")

    answer = await fleet.get("/fleet/v1/objects/c1/nodes/-/n1")

    assert answer.json()["object"]["metadata"]["name"] == "n1"


async def test_a2_every_absent_object_is_answered_alike(fleet: QueryApi):
    details: set[str] = set()
    for path in ("c1/pods/prod/zz", "c1/pods/nowhere/a", "nowhere/pods/prod/a"):
        answer = await fleet.get(f"/fleet/v1/objects/{path}")
        assert answer.status_code == 404
        details.add(answer.json()["detail"])
    assert len(details) == 1


async def test_an_absent_object_is_a_problem_with_freshness(fleet: QueryApi):
    await fleet.add_cluster("c3", reported_ago=500)

    answer = await fleet.get("/fleet/v1/objects/c3/pods/prod/a")

    assert answer.status_code == 404
    assert answer.json()["incomplete"] == ["c3"]


NAMES = {
    "apps/deployments": (
        "deployments deployment deploy Deployment deployments.apps deploy.apps "
        "apps.v1.deployments apps/v1/deployments v1.apps.deployments deployments.v1.apps"
    ),
    PODS: "pods pod po Pod v1.pods core.v1.pods v1/pods core/v1/pods",
    "core/configmaps": "configmaps cm",
    "batch/jobs": "jobs job batch/v1/jobs",
    "networking.k8s.io/ingresses": (
        "ingresses ing networking.k8s.io.v1.ingresses networking.k8s.io/v1/ingresses "
        "ingresses.networking.k8s.io v1.networking.k8s.io.ingresses"
    ),
}


async def test_t19_every_form_of_a_name_means_the_resource(api: QueryApi):
    await api.add_cluster("c1")
    for key in NAMES:
        await api.add("c1", key, key.replace("/", "."))

    for key, names in NAMES.items():
        for name in names.split():
            assert await api.names(name) == [f"c1/{key.replace('/', '.')}"], name


async def test_a_name_of_several_groups_means_the_built_in_one(api: QueryApi):
    await api.add_cluster("c1", "apps/deployments", "aaa.example.com/deployments")
    await api.add("c1", "apps/deployments", "built-in")
    await api.add("c1", "aaa.example.com/deployments", "custom")

    assert await api.names("deployments") == ["c1/built-in"]
    assert await api.names("deployments.aaa.example.com") == ["c1/custom"]
