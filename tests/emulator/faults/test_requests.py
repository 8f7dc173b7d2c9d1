"""Faults of single requests, as aiohttp sees them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from emulator.support.fault_rig import SILENCE
from emulator.support.kube_calls import CONFIGMAPS, Calls, config_map
from fleetbus_emulator.apiserver import (
    Abort,
    Cluster,
    Compact,
    CutAnswer,
    CutWatch,
    Delay,
    Drip,
    Expire,
    Fail,
    FieldError,
    Garble,
    GroupDown,
    Hang,
    LagWatch,
    PartialList,
    StaleList,
    StallWatch,
)
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.support.fault_rig import FaultRig
    from fleetbus_emulator.apiserver import Action

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
MOMENT = timedelta(milliseconds=300)


async def test_each_status_comes_with_its_reason(faulty: FaultRig):
    reasons = {
        401: "Unauthorized",
        403: "Forbidden",
        409: "Conflict",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
        504: "Timeout",
    }
    for status, reason in reasons.items():
        faulty.faults.add(Fail(status), count=1)
        answered, document = await faulty.get()
        assert (answered, document["code"], document["reason"]) == (status, status, reason)


async def test_a_delay_comes_before_the_write_or_behind_it(faulty: FaultRig):
    faulty.faults.add(Delay(MOMENT), name="", verb="create", count=1)
    late = asyncio.ensure_future(faulty.post("a"))
    await eventually(lambda: faulty.faults.list()[0].hits)
    assert not faulty.has("a")
    assert await late == 201
    faulty.faults.add(Delay(MOMENT, after_commit=True), verb="create", count=1)
    late = asyncio.ensure_future(faulty.post("b"))
    await eventually(lambda: faulty.has("b"))
    assert not late.done()
    assert await late == 201


async def test_a_hang_comes_before_the_write_or_behind_it(faulty: FaultRig):
    for status in (0, 201):
        faulty.faults.add(Hang(after_commit=status != 0), verb="create", count=1)
        hanging = asyncio.ensure_future(faulty.post("a"))
        await eventually(
            lambda s=status: s in [request.status for request in faulty.cluster.requests]
        )
        await asyncio.wait([hanging], timeout=SILENCE)
        assert not hanging.done()
        assert faulty.has("a") == (status == 201)
        hanging.cancel()


async def test_an_abort_is_a_lost_connection_and_a_reset_is_a_reset(faulty: FaultRig):
    faulty.faults.add(Abort(), verb="create", count=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await faulty.post("a")
    faulty.faults.add(Abort(reset=True), verb="create", count=1)
    with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
        await faulty.post("a")
    assert not faulty.has("a")
    faulty.faults.add(Abort(after_commit=True, reset=True), verb="create", count=1)
    with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
        await faulty.post("a")
    assert faulty.has("a")


async def read_into(received: bytearray, stream: aiohttp.StreamReader) -> None:
    async for piece in stream.iter_any():
        received += piece


@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_is_cut_behind_its_headers_or_in_the_midst(faulty: FaultRig, reset: bool):
    for number in range(20):
        faulty.add(f"a{number}")
    message = "reset by peer" if reset else "Not enough data"
    for share in (0.0, 0.5):
        faulty.faults.add(CutAnswer(share=share, reset=reset), verb="list", count=1)
        async with faulty.session.get(faulty.url + CONFIGMAPS) as answer:
            assert answer.status == 200
            length = int(answer.headers["Content-Length"])
            received = bytearray()
            with pytest.raises(aiohttp.ClientPayloadError, match=message):
                await read_into(received, answer.content)
        # aiohttp drops what it has not handed out when the reset comes.
        assert len(received) == int(length * share) or (reset and len(received) == 0)


async def test_a_dripping_answer_is_whole_and_slow(faulty: FaultRig):
    faulty.add("a")
    faulty.faults.add(Drip(size=100, pause=timedelta(milliseconds=2)), verb="list", count=1)
    async with faulty.session.get(faulty.url + CONFIGMAPS) as answer:
        pieces = [piece async for piece in answer.content.iter_any()]
    assert len(pieces) >= 3
    assert json.loads(b"".join(pieces))["items"][0]["metadata"]["name"] == "a"


async def test_garbage_breaks_the_framing_or_stands_where_json_should(faulty: FaultRig):
    faulty.faults.add(Garble("chunk"), verb="list", count=1)
    # Which of the two depends on whether it arrives together with the headers.
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientResponseError)):
        await faulty.get()
    faulty.faults.add(Garble("body"), verb="list", count=1)
    with pytest.raises(json.JSONDecodeError):
        await faulty.get()
    assert await faulty.names() == []


# lists ------------------------------------------------------------------------------------------


async def test_compaction_faster_than_a_relist_makes_every_second_page_too_old(faulty: FaultRig):
    for name in ("a", "b", "c"):
        faulty.add(name)
    faulty.faults.add(Compact(), verb="list", nth=2)
    _, first = await faulty.get(limit="1")
    faulty.add("d")
    status, second = await faulty.get(limit="1", **{"continue": first["metadata"]["continue"]})
    assert (status, second["reason"]) == (410, "Expired")


async def test_compaction_between_list_and_watch_makes_the_watch_too_old(faulty: FaultRig):
    _, listed = await faulty.get()
    faulty.add("a")
    faulty.faults.add(Compact(), verb="watch", count=1)
    async with faulty.watch(resourceVersion=listed["metadata"]["resourceVersion"]) as stream:
        (error,) = [json.loads(raw) async for raw in stream]
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)


async def test_a_list_is_empty_or_partial_once_and_calls_itself_complete(faulty: FaultRig):
    for name in ("a", "b", "c", "d"):
        faulty.add(name)
    faulty.faults.add(PartialList(), verb="list", count=1)
    assert await faulty.names() == []
    faulty.faults.add(PartialList(share=0.5), verb="list", count=1)
    status, partial = await faulty.get(limit="2")
    assert (status, len(partial["items"])) == (200, 1)
    assert not partial["metadata"].get("continue")
    assert "remainingItemCount" not in partial["metadata"]
    assert await faulty.names() == ["a", "b", "c", "d"]


def test_a_stale_list_is_that_of_a_watch_cache_that_is_behind():
    calls = Calls(Cluster("alpha"))
    calls.post(CONFIGMAPS, config_map("a"))
    rule = calls.cluster.faults.add(StaleList(), verb="list")
    past = calls.cluster.resource_version
    calls.post(CONFIGMAPS, config_map("b"))
    present = calls.cluster.resource_version

    assert calls.get(CONFIGMAPS).names == ["a", "b"]
    assert rule.hits == 0, "a list without a version does not come from the cache"
    for version in ("0", str(past)):
        stale = calls.get(CONFIGMAPS, resourceVersion=version)
        assert (stale.names, stale.rv) == (["a"], str(past))
    too_large = calls.get(CONFIGMAPS, resourceVersion=str(present))
    assert (too_large.status, too_large.document["reason"]) == (504, "Timeout")
    assert f"current: {past}" in too_large.message
    calls.cluster.compact()
    assert calls.get(CONFIGMAPS, resourceVersion="0").names == ["a", "b"]


# discovery and tokens ---------------------------------------------------------------------------


async def test_a_group_that_is_down_is_503_and_stale_in_discovery(faulty: FaultRig):
    faulty.faults.add(GroupDown(), group="apps")
    for path in ("/apis/apps", "/apis/apps/v1", "/apis/apps/v1/deployments"):
        async with faulty.session.get(faulty.url + path) as answer:
            assert (answer.status, await answer.text()) == (503, "service unavailable\n")
    _, groups = await faulty.get("/apis")
    assert "apps" in [group["name"] for group in groups["groups"]]
    headers = {"Accept": AGGREGATED}
    async with faulty.session.get(f"{faulty.url}/apis", headers=headers) as answer:
        versions_of = {
            item["metadata"]["name"]: item["versions"] for item in (await answer.json())["items"]
        }
    assert versions_of["apps"] == [{"version": "v1", "freshness": "Stale"}]
    assert versions_of["batch"][0]["freshness"] == "Current"
    assert (await faulty.get("/api/v1/pods"))[0] == 200


async def test_a_client_that_has_discovery_learns_that_a_group_is_down_and_is_up_again(
    faulty: FaultRig,
):
    async def ask(tag: str = "") -> tuple[int, str, str]:
        headers = {"Accept": AGGREGATED, "If-None-Match": tag}
        async with faulty.session.get(f"{faulty.url}/apis", headers=headers) as answer:
            return answer.status, answer.headers["ETag"], await answer.text()

    _, up, before = await ask()
    rule = faulty.faults.add(GroupDown(), group="apps")
    status, down, stale = await ask(up)
    assert (status, "Stale" in stale) == (200, True)
    assert (await ask(down))[::2] == (304, "")
    rule.remove()
    assert await ask(down) == (200, up, before)


async def test_discovery_and_health_can_fail_apart_from_resources(faulty: FaultRig):
    faulty.faults.add(Fail(500), verb="discover", group="batch")
    assert (await faulty.get("/apis/batch/v1"))[0] == 500
    assert (await faulty.get("/apis/batch/v1/jobs"))[0] == 200
    assert (await faulty.get("/apis/apps/v1"))[0] == 200
    faulty.faults.add(Fail(503), verb="health")
    assert (await faulty.get("/readyz"))[0] == 503
    assert (await faulty.get("/apis"))[0] == 200


async def test_a_token_that_expired_is_401_and_its_successor_is_not(faulty: FaultRig):
    faulty.faults.add(Fail(401), token="old")
    statuses: dict[str, int] = {}
    for token in ("old", "new"):
        headers = {"Authorization": f"Bearer {token}"}
        async with faulty.session.get(faulty.url + CONFIGMAPS, headers=headers) as answer:
            statuses[token] = answer.status
    assert statuses == {"old": 401, "new": 200}


# rules ------------------------------------------------------------------------------------------


def statuses(calls: Calls, *paths: str) -> list[int]:
    return [calls.get(path).status for path in paths]


def test_a_rule_can_be_about_a_subresource_a_group_or_the_nth_request():
    calls = Calls(Cluster("alpha"))
    calls.post(CONFIGMAPS, config_map("a"))
    path, status = f"{CONFIGMAPS}/a", "/apis/apps/v1/namespaces/default/deployments/a/status"
    rule = calls.cluster.faults.add(Fail(500), subresource="status")
    assert statuses(calls, path, status) == [200, 500]
    rule.remove()
    rule = calls.cluster.faults.add(Fail(500), resource="deployments", subresource="status")
    assert statuses(calls, path, status, status.removesuffix("/status")) == [200, 500, 404]
    rule.remove()
    rule = calls.cluster.faults.add(Fail(500), group="core", verb="read")
    assert statuses(calls, path, CONFIGMAPS, status) == [500, 500, 404]
    rule.remove()
    calls.cluster.faults.add(Fail(500), nth=3)
    assert statuses(calls, path, path, path, path) == [200, 200, 500, 200]


def test_a_probability_applies_to_some_of_many():
    calls = Calls(Cluster("alpha", seed=3))
    rule = calls.cluster.faults.add(Fail(500), probability=0.3)
    failed = [calls.get(CONFIGMAPS).status for _ in range(200)].count(500)
    assert failed == rule.hits
    assert 30 < failed < 90


@pytest.mark.parametrize(
    "action",
    [CutWatch(), StallWatch(), LagWatch(MOMENT), Expire("open"), Expire("page"), StaleList()],
    ids=lambda action: type(action).__name__,
)
def test_a_rule_does_not_count_what_it_cannot_affect(action: Any):
    calls = Calls(Cluster("alpha"))
    rule = calls.cluster.faults.add(action, count=1)
    assert statuses(calls, CONFIGMAPS, f"{CONFIGMAPS}/a", "/apis", "/readyz") == [
        200,
        404,
        200,
        200,
    ]
    assert (rule.hits, rule.active) == (0, True)


def test_requests_name_the_rules_that_applied_to_them():
    calls = Calls(Cluster("alpha"))
    calls.get(CONFIGMAPS)
    first = calls.cluster.faults.add(Fail(500), verb="get")
    second = calls.cluster.faults.add(Fail(500), verb="list")
    assert (first.id, second.id) == (1, 2)
    calls.get(CONFIGMAPS)
    assert [(r.number, r.faults) for r in calls.cluster.requests] == [(1, ()), (2, (second.id,))]


def test_rules_can_be_found_listed_and_removed_and_long_spent_ones_are_forgotten():
    calls = Calls(Cluster("alpha"))
    faults = calls.cluster.faults
    rule = faults.add(Fail(500), verb="delete")
    assert (faults.get(rule.id), faults.get(99)) == (rule, None)
    for _ in range(1_100):
        faults.add(Fail(500), count=1)
    assert calls.get(CONFIGMAPS).status == 500
    assert calls.get(CONFIGMAPS).status == 200
    faults.add(Fail(500), verb="patch")
    assert len(faults.list()) == 1_002
    assert faults.list()[0] is rule
    rule.remove()
    rule.remove()
    assert faults.get(rule.id) is None
    faults.clear()
    assert (faults.list(), faults.active) == ([], False)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fail(200), "status"),
        (lambda: Fail(500, retry_after=timedelta(seconds=-1)), "retry_after"),
        (lambda: Delay(timedelta(0)), "duration"),
        (lambda: CutAnswer(share=1.0), "share"),
        (lambda: PartialList(share=-0.1), "share"),
        (lambda: Drip(size=0), "size"),
        (lambda: StallWatch(after_events=-1), "after_events"),
        (lambda: StaleList(-1), "resource_version"),
    ],
)
def test_an_action_that_makes_no_sense_is_refused_by_field(make: Callable[[], object], field: str):
    with pytest.raises(FieldError) as refused:
        make()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("action", "where", "field"),
    [
        (GroupDown(), {}, "group"),
        (Hang(), {"verb": "lst"}, "verb"),
        (CutWatch(), {"verb": "list"}, "verb"),
        (CutAnswer(), {"verb": "watch"}, "verb"),
        (PartialList(), {"verb": "write"}, "verb"),
        (Expire("page"), {"verb": "get"}, "verb"),
        (Hang(), {"count": 0}, "count"),
        (Hang(), {"skip": -1}, "skip"),
        (Hang(), {"nth": 0}, "nth"),
        (Hang(), {"nth": 2, "count": 1}, "nth"),
        (Hang(), {"probability": 0.0}, "probability"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_field(
    action: Action, where: dict[str, Any], field: str
):
    faults = Cluster("alpha").faults
    with pytest.raises(FieldError) as refused:
        faults.add(action, **where)
    assert refused.value.field == field
    assert faults.list() == []
