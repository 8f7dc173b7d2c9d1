"""Random requests to every path of /fleet/v1: each answer is one that OpenAPI describes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from jsonschema.validators import validator_for

from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi
    from support.rigs.query_api import QueryApi

_REQUESTS = 60
"""To each path."""
_ODD = (
    *("", " ", "/", "..", "%", "\0", "ü" * 300, "a" * 5000, "-", ",", "[", "a..b", "{}", "null"),
    *("a=b=c", "in (", "a in (b", "\\", "9" * 400, "-1", "0", "1e400", "true", "{.a}", "'", '"'),
)
_GOOD: dict[str, tuple[str, ...]] = {
    "cluster": ("c1", "c2", "c1,c2", "none"),
    "namespace": ("prod", "prod", "-", "dev"),
    "name": ("web", "web", "db", "none", "c1"),
    "resource": ("pods", "deployments", "apps/v1/deployments", "widgets", "po"),
    "labelSelector": ("app=web", "app in (web,db),!x", "app!=web"),
    "fieldSelector": ("status.phase=Running", "spec.a[*].b!=1", "metadata.name in (web, db)"),
    "sort": ("-metadata.name", "status.phase,-cluster", "spec.n", "spec.a[*].b"),
    "fields": ("metadata.name", "metadata.labels,spec.a[*].b,status"),
    "by": ("status.phase", "cluster,metadata.namespace", "spec.a[*].b", "metadata.labels", "spec"),
    "limit": ("1", "1", "1", "2"),
    "depth": ("1", "3"),
    "kind": ("Pod", "deployments"),
    "view": ("table", "objects"),
    "wide": ("true", "false"),
    "showLabels": ("true",),
    "asOf": ("0s", "0s", "1h"),
    "since": ("0s", "1m", "2026-01-01T00:00:00Z"),
    "until": ("0s", "1m"),
    "owned": ("true",),
}


@pytest.fixture
async def fleet(past_api: PastApi) -> QueryApi:
    api = past_api
    for cluster in ("c1", "c2"):
        await api.add_cluster(cluster, hub=cluster == "c1")
        for number, name in enumerate(("web", "db", "x")):
            await api.add(
                cluster,
                "core/pods",
                name,
                labels={"app": name},
                spec={"n": number, "a": [{"b": number}, {"b": "x"}]},
                status={"phase": "Running"} if number else {},
                ownerReferences=[],
            )
        await api.add(cluster, "apps/deployments", "web", spec={"replicas": len(cluster)})
        await api.add_body(cluster, "core/pods", "oversized", None)
    await api.add("c2", "apps/deployments", "web", spec={"replicas": 7})
    pods = Source(cluster="c1")
    await api.past.record(
        pods.added("gone", 900, body=pod("gone", 900, labels={"app": "web"})),
        pods.modified("gone", 901, body=pod("gone", 901, "b")),
        pods.deleted("gone", 902, body=pod("gone", 901, "b")),
        pods.deleted("large", 903, body=None, degraded="oversized"),
        pods.modified("web", 904, body=pod("web", 904, "b")),
    )
    return api


def pick(chance: random.Random, name: str, tokens: list[str]) -> str:
    candidates = _GOOD.get(name, ("x",))
    if name == "continue":
        candidates = (*tokens[-3:], "", "bm90IGEgdG9rZW4")
    return chance.choice(_ODD) if chance.random() < 0.15 else chance.choice(candidates)


def make_request(
    chance: random.Random, path: str, operation: dict[str, Any], tokens: list[str]
) -> tuple[str, dict[str, str]]:
    query: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", quote(pick(chance, name, tokens), safe=""))
        elif chance.random() < 0.22 or parameter.get("required"):
            query[name] = pick(chance, name, tokens)
    if chance.random() < 0.05:
        query["unknown"] = "x"
    return path, query


@pytest.mark.slow
async def test_every_answer_to_a_random_request_is_one_that_openapi_describes(fleet: QueryApi):
    document = (await fleet.get("/openapi.json")).json()
    chance, tokens = random.Random(16), list[str]()
    statuses: dict[str, set[int]] = {}
    validators: dict[tuple[str, int], Any] = {}
    for path, item in document["paths"].items():
        if not path.startswith("/fleet/v1") or "get" not in item:
            continue
        answers = item["get"]["responses"]
        if "text/event-stream" in answers["200"]["content"]:
            continue  # it has no end
        for _ in range(_REQUESTS):
            url, query = make_request(chance, path, item["get"], tokens)
            answer = await fleet.client.get(url, params=query)
            status = answer.status_code
            statuses.setdefault(path, set()).add(status)
            assert status < 500, (url, query, answer.text)
            assert str(status) in answers, (url, query, status)
            kind = answer.headers["content-type"].partition(";")[0]
            content = answers[str(status)]["content"]
            assert kind in content, (url, query, kind)
            if "json" in kind and kind != "application/x-ndjson":
                key = (path, status)
                if key not in validators:
                    schema = {**content[kind]["schema"], "components": document["components"]}
                    validators[key] = validator_for(schema)(schema)
                validators[key].validate(answer.json())
            if status == 200 and kind == "application/json":
                tokens += [token for token in (answer.json().get("continue"),) if token]
    assert all(200 in codes and 400 in codes for codes in statuses.values()), statuses
    assert tokens, "some answer had pages"
