"""The paths of multi_resource_operator (T19)."""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus_query_api.fields import source
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "core/pods"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """Two clusters with twelve pods, the newest is p11; one name and one uid are in both."""
    await api.add_cluster("c1")
    await api.add_cluster("c2")
    for i in range(10):
        created = f"2026-01-01T00:00:{i:02}Z"
        await api.add("c1", PODS, f"p{i}", created=created, labels={"app": f"a{i % 2}"})
    for i in (9, 10, 11):
        created = f"2026-01-01T00:00:{i:02}Z"
        await api.add("c2", PODS, f"p{i}", namespace="test", created=created, uid="same")
    await api.add("c1", PODS, "p11", namespace="test", created="2026-01-01T00:00:11Z", uid="same")
    return api


async def ask(api: QueryApi, **query: Any) -> list[str]:
    answer = await api.get("/v1/list_with_cluster", **{"gvr": "v1.pods", **query})
    assert answer.status_code == 200, answer.text
    return [f"{row['clusterName']}/{row['Object']['metadata']['name']}" for row in answer.json()]


async def test_t19_the_newest_ten_come_first(fleet: QueryApi):
    rows = await ask(fleet)

    assert rows[:5] == ["c1/p11", "c2/p11", "c2/p10", "c1/p9", "c2/p9"]
    assert len(rows) == 10


async def test_t19_limit_zero_means_all(fleet: QueryApi):
    assert len(await ask(fleet, limit=0)) == 14
    assert len(await ask(fleet, limit=3)) == 3


async def test_t19_pages_go_on_where_the_one_before_ended(fleet: QueryApi):
    pods: list[str] = []
    query: dict[str, Any] = {"gvr": "v1.pods", "limit": 5}
    sizes: list[int] = []
    while True:
        answer = await fleet.get("/v1/list_with_cluster", **query)
        rows = answer.json()
        sizes.append(len(rows))
        pods += [f"{row['clusterName']}/{row['Object']['metadata']['name']}" for row in rows]
        if "fleetbus-continue" not in answer.headers:
            break
        query["continue"] = answer.headers["fleetbus-continue"]
        if len(sizes) == 1:  # newer than all that was listed: it is on no later page
            created = "2026-01-01T01:00:00Z"
            await fleet.add("c1", PODS, "newest", namespace="test", created=created)
    assert sizes == [5, 5, 4]
    assert len(set(pods)) == 14
    assert (await ask(fleet, limit=1)) == ["c1/newest"]
    other = await fleet.get("/v1/list", **{"gvr": "cm", "continue": query["continue"]})
    assert other.status_code == 400


@pytest.mark.parametrize("is_kept", [True, False])
async def test_the_newest_are_found_without_the_bodies_of_all_others(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch, is_kept: bool
):
    """In columns that are kept, or read for the request alone."""
    monkeypatch.setattr(source, "REPAID", 0 if is_kept else math.inf)
    chance = random.Random(is_kept)
    rows: list[tuple[str, str]] = []
    for cluster in ("c1", "c2"):
        await api.add_cluster(cluster)
        origin = Source(cluster=cluster, rank=(1, 1))
        for number in range(150):
            created = f"2026-01-{chance.randint(1, 28):02}T00:00:00Z"
            rows.append((created, f"{cluster}/p{number:03}"))
            metadata = {"name": f"p{number:03}", "namespace": "prod", "creationTimestamp": created}
            body = msgspec.json.encode({"metadata": metadata, "spec": {"text": "x" * 4_000}})
            await api.snapshot.apply(origin.added(f"p{number:03}", 100 + number, body=body))
    newest_first = sorted(rows, key=lambda row: row[1])
    newest_first.sort(key=lambda row: row[0], reverse=True)
    names = [name for _, name in newest_first]
    for limit in (1, 7, 100, 0):
        assert await ask(api, limit=limit) == names[: limit or None]
    before = await _sent(api)
    await ask(api, limit=5)
    read = await _sent(api) - before
    assert (read < 100_000) is is_kept, f"{read} bytes were read"


async def _sent(api: QueryApi) -> int:
    """The bytes that the store has sent."""
    return int((await api.snapshot.redis.info("stats"))["total_net_output_bytes"])


async def test_t19_filters_alone_and_together(fleet: QueryApi):
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"name": "p9"}, ["c1/p9", "c2/p9"]),
        ({"cluster": "c2"}, ["c2/p11", "c2/p10", "c2/p9"]),
        ({"namespace": "test"}, ["c1/p11", "c2/p11", "c2/p10", "c2/p9"]),
        ({"cluster": "c1", "name": "p9", "namespace": "prod"}, ["c1/p9"]),
        ({"cluster": "c1", "name": "p9", "namespace": "test"}, []),
        ({"labels[app]": "a1", "limit": "2"}, ["c1/p9", "c1/p7"]),
        ({"cluster": "zz"}, []),
        ({"namespace": "zz"}, []),
        ({"name": "zz"}, []),
        ({"name": "", "namespace": "", "cluster": "c2"}, ["c2/p11", "c2/p10", "c2/p9"]),
    ]
    for query, expected in cases:
        assert await ask(fleet, **query) == expected, query


async def test_list_answers_bare_objects(fleet: QueryApi):
    answer = await fleet.get("/v1/list", gvr="core/v1/pods", name="p11", cluster="c2")

    (tree,) = answer.json()
    assert tree["metadata"]["uid"] == "same"
    assert tree["metadata"]["managedFields"]


async def test_t19_a_gvr_that_is_missing_or_malformed_is_400(fleet: QueryApi):
    missing = await fleet.get("/v1/list")
    assert (missing.status_code, missing.json()) == (400, {"error": "not found gvr"})
    for query in (
        {"gvr": ""},
        {"gvr": "a..b"},
        {"gvr": "w/x/y/z"},
        {"gvr": "pods", "limit": "-1"},
        {"gvr": "pods", "limit": "x"},
        {"gvr": "pods", "nmae": "x"},
        {"gvr": ["pods", "pods"]},
        {"gvr": "pods", "labels[a b]": "c"},
    ):
        answer = await fleet.get("/v1/list_with_cluster", **query)
        assert answer.status_code == 400, query
        assert list(answer.json()) == ["error"]


async def test_t19_an_unknown_gvr_is_never_an_empty_200(fleet: QueryApi):
    answer = await fleet.get("/v1/list", gvr="v1/foos")

    assert answer.status_code == 404
    assert "foos" in answer.json()["error"]


async def test_unknown_paths_have_the_message_of_the_seed(fleet: QueryApi):
    answer = await fleet.get("/v1/nowhere")

    assert (answer.status_code, answer.json()) == (404, {"message": "Not Found handler"})
    for path in ("/nowhere", "/debug/pprof/"):
        answer = await fleet.get(path)
        assert (answer.status_code, answer.json()["message"]) == (404, "Not Found handler")


async def test_a4_a_header_names_the_clusters_that_are_behind(fleet: QueryApi):
    assert "fleetbus-incomplete" not in (await fleet.get("/v1/list", gvr="pods")).headers
    await fleet.add_cluster("c2", reported_ago=200)

    answer = await fleet.get("/v1/list", gvr="pods")

    header = answer.headers["fleetbus-incomplete"]
    assert re.fullmatch(r'"c2";age=2\d\d;reason="its watcher has been silent for 2\d\d s"', header)


async def test_a_reason_of_a_server_cannot_break_the_header(fleet: QueryApi):
    await fleet.add_cluster("c2", connected=False, message='a"b\\c\r\nX: y\u20ac')

    answer = await fleet.get("/v1/list_cluster")

    expected = r';reason="a\"b\\c??X: y?"'
    assert answer.headers["fleetbus-incomplete"].endswith(expected)


async def test_an_object_without_a_body_is_marked(fleet: QueryApi):
    await fleet.add_body("c1", PODS, "big", None, degraded="oversized")

    (tree,) = (await fleet.get("/v1/list", gvr="pods", name="big")).json()

    assert tree["metadata"]["annotations"] == {"fleetbus.dev/degraded": "oversized"}


async def test_list_cluster_tells_the_true_state(fleet: QueryApi):
    away: dict[str, Any] = {"reason": "Unreachable", "hub": True, "platform": "linux/arm64"}
    await fleet.add_cluster("c2", connected=False, **away)

    rows = (await fleet.get("/v1/list_cluster")).json()
    (cluster,) = (await fleet.get("/v1/list_cluster", name="c1")).json()

    assert [row["status"] for row in rows] == ["Running", "Unreachable"]
    assert [row["isMaster"] for row in rows] == ["false", "true"]
    assert [row["platform"] for row in rows] == ["", "linux/arm64"]
    assert cluster["name"] == "c1"
    assert (await fleet.get("/v1/list_cluster", nmae="c1")).status_code == 400
