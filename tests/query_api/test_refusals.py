"""Every error is a problem document, and nothing is guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_query_api.catalog.catalog import KnownFleet, KnownResource, ResourceIndex
from fleetbus_query_api.responses.problem import NotFoundProblem
from support.rigs.query_api import query_api

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from support.rigs.query_api import QueryApi

LIST = "/fleet/v1/resources/pods"
VERBS = ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"nmae": "a"}, "nmae"),
    ({"name": ["a", "b"]}, "name"),
    ({"limit": "0"}, "limit"),
    ({"limit": "1001"}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"labelSelector": "a=b=c"}, "label selector"),
    ({"labelSelector": "a=" + "b" * 5000}, "labelSelector"),
    ({"fieldSelector": "status"}, "field selector"),
    ({"continue": "garbage"}, "continue token"),
    ({"name": "a/b"}, "name"),
]
PATHS = [LIST, "/fleet/v1/clusters", "/v1/list", "/nowhere", "/"]


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("c1")
    return api


def check_problem(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    for word in words:
        assert word in problem["detail"]


async def test_a_question_that_cannot_be_read_is_400(fleet: QueryApi):
    for query, word in MALFORMED:
        check_problem(await fleet.get(LIST, **query), 400, word)


async def test_parameters_that_mean_nothing_are_400(fleet: QueryApi):
    for path in ("/fleet/v1/clusters", "/fleet/v1/objects/c1/pods/prod/a"):
        check_problem(await fleet.get(path, limit="1"), 400, "limit")


async def test_an_unknown_resource_is_404(fleet: QueryApi):
    detail = "foos is not watched in any cluster of the fleet; watched are: "
    check_problem(await fleet.get("/fleet/v1/resources/foos"), 404, detail, "pods", ".apps")
    check_problem(await fleet.get("/fleet/v1/resources/v2/pods"), 404, "v2/pods")


def test_a_refusal_of_a_resource_names_few_of_what_is_watched_and_sorted():
    groups = ["core", "apps", *(f"g{number:02}.example" for number in range(12))]
    resources = [
        KnownResource(
            group=group, plural="deployments", kind="Deployment", namespaced=True, versions=("v1",)
        )
        for group in groups
    ]
    with pytest.raises(NotFoundProblem) as refused:
        KnownFleet({}, ResourceIndex(resources[::-1])).find("nodes")
    first = "deployments, deployments.apps, deployments.g00.example, "
    message = str(refused.value)
    assert message.startswith(
        f"nodes is not watched in any cluster of the fleet; watched are: {first}"
    )
    assert message.endswith("deployments.g09.example and 2 more")

    with pytest.raises(NotFoundProblem, match="nothing is watched yet"):
        KnownFleet({}, ResourceIndex()).find("nodes")


async def test_a_resource_name_that_is_none_is_400(fleet: QueryApi):
    check_problem(await fleet.get("/fleet/v1/resources/a..b"), 400, "a..b")


async def test_an_unknown_cluster_is_404(fleet: QueryApi):
    check_problem(await fleet.get("/fleet/v1/clusters/zz"), 404, "zz")


async def test_an_unknown_path_is_404(fleet: QueryApi):
    for path in ("/nowhere", "/index.html", "/fleet", "/fleet/v1/clusters/", "/docs"):
        check_problem(await fleet.get(path), 404)


async def test_a7_every_other_verb_is_405_on_every_path(fleet: QueryApi):
    for path in PATHS:
        for verb in VERBS:
            answer = await fleet.client.request(verb, path)

            assert answer.status_code == 405, (verb, path)
            assert answer.headers["allow"] == "GET"


async def test_a_foreign_host_name_is_not_answered(fleet: QueryApi):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        check_problem(await fleet.client.get(LIST, headers={"Host": host}), 421)


async def test_names_of_this_machine_are_answered(fleet: QueryApi):
    for host in ("localhost:1", "127.0.0.1", "[::1]:80", "[::1]"):
        assert (await fleet.client.get(LIST, headers={"Host": host})).status_code == 200, host


async def test_p13_a_token_of_a_lost_store_is_410(fleet: QueryApi):
    await fleet.add("c1", "core/pods", "a")
    await fleet.add("c1", "core/pods", "b")
    token = (await fleet.get(LIST, limit=1)).json()["continue"]
    await fleet.snapshot.redis.flushall()
    await fleet.snapshot.set_up()
    await fleet.add_cluster("c1")

    check_problem(await fleet.get(LIST, **{"limit": 1, "continue": token}), 410, "list again")


async def test_p13_an_empty_store_is_no_empty_fleet_but_503(fleet: QueryApi):
    await fleet.snapshot.redis.flushall()

    for path in (LIST, "/fleet/v1/clusters", "/fleet/v1/clusters/c1"):
        answer = await fleet.get(path)
        check_problem(answer, 503, "empty")
        assert answer.headers["retry-after"] == "1"
    assert (await fleet.get("/v1/list_cluster")).status_code == 503


async def test_p13_a_store_that_was_emptied_a_moment_ago_is_503(fleet: QueryApi):
    await fleet.get(LIST)  # the catalog still knows what pods are
    await fleet.snapshot.redis.flushall()

    check_problem(await fleet.get(LIST), 503, "empty")


async def test_a_fault_of_ours_is_a_problem_and_no_end(
    fleet: QueryApi, caplog: pytest.LogCaptureFixture
):
    await fleet.snapshot.redis.hset(SnapshotKeys().clusters(0), "c2", "garbage")

    check_problem(await fleet.get("/fleet/v1/clusters"), 500)
    assert "DecodeError" in caplog.text

    await fleet.snapshot.forget_cluster("c2")
    assert (await fleet.get("/fleet/v1/clusters")).status_code == 200


async def test_a_store_that_is_down_is_503_and_no_end(tmp_path: Path):
    async with (
        valkey_server(dir=tmp_path / "valkey", appendonly=True) as server,
        Redis.from_url(server.url) as redis,
        query_api(redis, server.url, tmp_path) as api,
    ):
        await api.add_cluster("c1")
        assert await api.names() == []
        await server.stop()

        for path in ("/fleet/v1/clusters", LIST):
            check_problem(await api.get(path), 503)
        assert (await api.get("/v1/list_cluster")).status_code == 503

        await server.restart()
        assert await api.names() == []
