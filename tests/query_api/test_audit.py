"""One line for each request, with who, what and the decision, never a token; metrics of reviews."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from support.eventually import eventually
from support.rigs.secured_api import SecuredApi, grant, rule, secured_api
from support.rigs.watch_client import watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

PODS = "/fleet/v1/resources/pods"


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as api:
        yield await api.start()


def audited(logs: Sequence[Any]) -> list[dict[str, Any]]:
    return [line for line in logs if line["event"] == "api_request"]


def reviews(kind: str, result: str) -> float:
    names = {"kind": kind, "result": result}
    return REGISTRY.get_sample_value("fleetbus_query_api_reviews_total", names) or 0


def known(kind: str) -> float:
    name = "fleetbus_query_api_reviews_known_total"
    return REGISTRY.get_sample_value(name, {"kind": kind}) or 0


async def test_a3_each_request_is_a_line_with_who_what_and_the_decision(api: SecuredApi):
    grant(api.hub, "ann", rule("list", "fleetbus.dev", "clusters/pods"))
    grant(api.hub, "bob", rule("list", "fleetbus.dev", "clusters/pods", names=("eu1",)))
    ann, bob, eve = (api.user(name) for name in ("ann", "bob", "eve"))
    with capture_logs() as logs:
        for token in (ann, bob, eve, "CANARY-token", ""):
            await api.get(token, PODS, cluster="eu1,us1", namespace="prod")
        await api.get(ann, "/fleet/v1/resources/pods%0aapi_request")
    lines = audited(logs)
    assert [(line["user"], line["decision"], line["log_level"]) for line in lines[:5]] == [
        ("ann", "allowed", "info"),
        ("bob", "partly denied", "info"),
        ("eve", "denied", "warning"),
        ("", "unauthenticated", "warning"),
        ("", "unauthenticated", "warning"),
    ]
    of_bob = lines[1]
    assert of_bob["path"] == PODS
    assert of_bob["rights"][0] == "list pods prod"
    assert of_bob["denied"] == ["us1"]
    assert of_bob["client"] == "127.0.0.1"
    assert "\n" not in lines[5]["path"]
    text = str(logs)
    assert not [token for token in (ann, bob, eve, "CANARY-token") if token in text]


async def test_a3_a_watch_is_a_line_as_soon_as_it_is_open(api: SecuredApi):
    grant(api.hub, "ann", rule("watch", "fleetbus.dev", "clusters/pods", names=("eu1",)))
    ann = api.user("ann")
    path = "/kube/-/api/v1/pods"
    with capture_logs() as logs:
        async with watching(api.client, path, token=ann) as watch:
            await eventually(lambda: watch.events)
            (line,) = audited(logs)
            assert (line["path"], line["status"]) == (path, 200)
            assert (line["decision"], line["denied"]) == ("partly denied", ["us1"])
            assert line["rights"][0] == "watch pods"
        refused = await api.get(api.user("eve"), path, watch="1")
        assert refused.status_code == 404
        await eventually(lambda: len(audited(logs)) == 2)
    assert (audited(logs)[1]["user"], audited(logs)[1]["decision"]) == ("eve", "denied")


async def test_reviews_are_counted_by_result_and_those_that_were_known(api: SecuredApi):
    grant(api.hub, "ann", rule("list", "fleetbus.dev", "clusters/pods"))
    ann = api.user("ann")
    kinds = [("token", "allowed"), ("token", "denied"), ("access", "allowed")]
    before = [reviews(*each) for each in kinds]
    before_known = known("token"), known("access")
    for _ in range(2):
        await api.get(ann, PODS)
    await api.get("unknown", PODS)
    assert [reviews(*each) - was for each, was in zip(kinds, before, strict=True)] == [1, 1, 1]
    assert known("token") == before_known[0] + 1
    assert known("access") > before_known[1]
    seconds = "fleetbus_query_api_review_seconds_count"
    assert (REGISTRY.get_sample_value(seconds, {"kind": "token"}) or 0) >= 2
