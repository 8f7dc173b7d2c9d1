"""Counts of objects by the values of their fields, and parts of objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot.reads.rows import RowReads
from fleetbus_query_api.responses.openapi import CountModel, ListModel

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

COUNTS = "/fleet/v1/counts/pods"
LIST = "/fleet/v1/resources/pods"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    for cluster in ("c1", "c2"):
        await api.add_cluster(cluster)
        for number in range(4):
            images = [{"name": "main", "image": f"i{number % 2}"}, {"name": "side", "image": "s"}]
            await api.add(
                cluster,
                "core/pods",
                f"p{number}",
                labels={"app.kubernetes.io/name": "web"} if number else {},
                spec={"containers": images},
                status={"phase": "Running" if number < 3 else "Failed"},
            )
    return api


async def count(api: QueryApi, **query: Any) -> dict[str, Any]:
    answer = await api.get(COUNTS, **query)
    assert answer.status_code == 200, answer.text
    CountModel.model_validate(answer.json())
    return answer.json()


def groups(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(*group["values"].values(), group["count"]) for group in answer["groups"]]


async def test_objects_are_counted_by_any_fields_the_largest_group_first(fleet: QueryApi):
    assert (await count(fleet))["total"] == 8
    answer = await count(fleet, by="status.phase,cluster")
    assert groups(answer) == [
        ("Running", "c1", 3),
        ("Running", "c2", 3),
        ("Failed", "c1", 1),
        ("Failed", "c2", 1),
    ]
    assert list(answer["groups"][0]["values"]) == ["status.phase", "cluster"]
    answer = await count(fleet, by="metadata.labels.app.kubernetes.io/name")
    assert groups(answer) == [("web", 6), (None, 2)]
    answer = await count(fleet, by="spec.containers[*].image", fieldSelector="status.phase=Running")
    assert (groups(answer), answer["total"]) == ([("s", 6), ("i0", 4), ("i1", 2)], 6)
    assert groups(await count(fleet, by="spec")) == [("<map or list>", 8)]


async def test_a8_groups_are_bounded_and_what_is_left_out_is_said(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    answer = await count(fleet, by="metadata.name,cluster", limit=3)
    assert groups(answer) == [("p0", "c1", 1), ("p0", "c2", 1), ("p1", "c1", 1)]
    assert (answer["groupCount"], answer["others"], answer["total"]) == (8, 0, 8)
    monkeypatch.setattr("fleetbus_query_api.fields.groups.MAX_GROUPS", 5)
    answer = await count(fleet, by="metadata.name,cluster")
    assert (answer["groupCount"], answer["others"], answer["total"]) == (5, 3, 8)


async def test_a8_a_count_that_means_nothing_is_400(fleet: QueryApi, subtests: pytest.Subtests):
    for query in [
        *({"by": "a,b,c,d,e"}, {"by": "a..b"}, {"by": "a,a"}, {"by": "a" * 5000}),
        *({"sort": "a"}, {"limit": 1001}, {"fieldSelector": "a"}),
    ]:
        with subtests.test(query=query):
            answer = await fleet.get(COUNTS, **query)
            assert answer.status_code == 400
            assert answer.json()["detail"]


async def test_a_list_answers_only_the_fields_that_were_asked_for(fleet: QueryApi):
    query = {"fields": "metadata.name,spec.containers[*].image,spec.containers[0].name,no.such"}
    answer = (await fleet.get(LIST, limit=1, **query)).json()
    ListModel.model_validate(answer)
    assert answer["items"][0]["object"] == {
        "metadata": {"name": "p0"},
        "spec": {"containers": [{"image": "i0", "name": "main"}, {"image": "s"}]},
    }
    answer = (await fleet.get(LIST, limit=1, fields="status,status.phase")).json()
    assert answer["items"][0]["object"] == {"status": {"phase": "Running"}}
    answer = (await fleet.get(LIST, limit=1, fields="no.such")).json()
    assert answer["items"][0]["object"] == {}


async def test_a_sorted_page_tells_what_remains_and_its_token_fits_its_question_only(
    fleet: QueryApi,
):
    page = (await fleet.get(LIST, sort="-metadata.name", limit=3)).json()
    assert [item["object"]["metadata"]["name"] for item in page["items"]] == ["p3", "p3", "p2"]
    assert page["remaining"] == 5
    token = {"continue": page["continue"]}
    following = (await fleet.get(LIST, sort="-metadata.name", limit=3, **token)).json()
    assert following["resourceVersion"] == page["resourceVersion"]
    assert following["remaining"] == 2
    for query in ({"sort": "metadata.name"}, {"namespace": "prod", "sort": "-metadata.name"}, {}):
        answer = await fleet.get(LIST, **query, **token)
        assert answer.status_code == 400, query
        assert "token" in answer.json()["detail"]


async def test_p13_a_sorted_token_of_a_lost_store_is_410(fleet: QueryApi):
    page = (await fleet.get(LIST, sort="metadata.name", limit=3)).json()
    await fleet.snapshot.redis.flushall()
    await fleet.snapshot.set_up()
    await fleet.add_cluster("c1")
    answer = await fleet.get(LIST, sort="metadata.name", **{"continue": page["continue"]})
    assert answer.status_code == 410


async def test_a8_the_work_for_a_client_that_has_left_is_given_up(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_query_api.fields.source.REPAID", 0)
    entered, given_up = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    with monkeypatch.context() as patch:
        patch.setattr(RowReads, "read", endless)
        asking = asyncio.create_task(fleet.get(COUNTS, by="spec.a"))
        await entered.wait()
        asking.cancel()
        await asyncio.wait_for(given_up.wait(), 5)
    assert (await count(fleet, by="spec.a"))["total"] == 8
