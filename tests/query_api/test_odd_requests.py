"""Random bytes in every part of a request to every route: refused in words, never an error of ours.

The requests are written to the socket as they are: a client library would mend or refuse most.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from support.full import FULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.rigs.past_api import PastApi

REQUESTS: Final = 12_000 if FULL else 900
SEED: Final = 27
HANGS_AFTER: Final = 20.0
"""Seconds; a watch is asked to end after one."""

_WORDS: Final = (
    *(
        "",
        "0",
        "-1",
        "1",
        "2",
        "9" * 30,
        "1e400",
        "true",
        "false",
        "null",
        "-",
        "..",
        "%2F",
        "%2e%2e",
    ),
    *("%00", "%ED%A0%80", "%FF%FE", "%u0041", "%", "%zz", "%C3%BC" * 200, "a" * 7000, "[" * 300),
    *("a=b", "a%3Db%2Cc!%3Dd", "a%20in%20(b%2Cc)", "!a", "in%20(", "metadata.name%3Dweb", "{.a}"),
    *("spec.a%5B*%5D.b", "spec" + ".a" * 400, "$", "*", "'", "%22", "%5C", "+", "%0d%0aX:%201"),
    *("core%2Fpods", "pods", "apps/v1/deployments", "c1", "c2", "none", "prod", "web", "objects"),
    *("table", "Background", "Exact", "NotOlderThan", "2026-01-01T00:00:00Z", "10m", "99999d"),
)
_FLEET: Final = (
    *("clusters", "resources", "counts", "outliers", "where", "owners", "children", "queues"),
    *("objects", "held-deletions", "history", "deleted", "timeline", "changes", "events"),
)
_KUBE: Final = (
    *("api", "apis", "version", "healthz", "openapi/v2", "openapi/v3", "openapi/v3/api/v1"),
    *("api/v1", "apis/apps/v1", "api/v1/pods", "api/v1/namespaces/prod/pods", "api/v1/nodes"),
    *("api/v1/namespaces/prod/pods/web", "api/v1/namespaces/prod/pods/web/log", "metrics"),
    *("apis/apps/v1/deployments", "apis/apps/v1/namespaces/prod/deployments/web/scale"),
    *("apis/authorization.k8s.io/v1/selfsubjectaccessreviews",),
    *("apis/authorization.k8s.io/v1/selfsubjectrulesreviews",),
    *("apis/authentication.k8s.io/v1/selfsubjectreviews",),
)
_NAMES: Final = (
    *("cluster", "namespace", "name", "resource", "labelSelector", "fieldSelector", "sort", "by"),
    *(
        "fields",
        "limit",
        "continue",
        "depth",
        "kind",
        "view",
        "wide",
        "showLabels",
        "asOf",
        "since",
    ),
    *("until", "owned", "watch", "resourceVersion", "resourceVersionMatch", "sendInitialEvents"),
    *("allowWatchBookmarks", "includeObject", "pretty", "dryRun", "fieldManager", "%00", ""),
)
_ACCEPTS: Final = (
    *("*/*", "application/json", "text/html", "text/event-stream", "application/x-ndjson", ""),
    *("application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=x"),
    *("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/yaml"),
    *("application/vnd.kubernetes.protobuf", "a" * 3000, ";;;,,,", "application/json;q=\x80", '"'),
)
_BODIES: Final = (
    *(b"", b"{}", b"null", b"[]", b"\xff\xfe", b'{"spec":', b'{"spec":[]}', b"[" * 4000, b"0"),
    *(b'{"spec":{"resourceAttributes":{"verb":7}}}', b'{"spec":{"resourceAttributes":null}}'),
    (
        b'{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":'
        b'{"resourceAttributes":{"verb":"list","resource":"pods","namespace":"\\ud800"}}}'
    ),
)


class Answer(NamedTuple):
    """The answer; status 0 if the server closed the connection without an answer."""

    status: int
    headers: bytes
    body: bytes


def _path(chance: random.Random) -> str:
    word = lambda: chance.choice(_WORDS)  # noqa: E731 -- shorter than a function of four lines
    match chance.randrange(5):
        case 0 | 1:
            tail = [word() for _ in range(chance.randrange(5))]
            return "/".join(["/fleet/v1", chance.choice(_FLEET), *tail])
        case 2:
            cluster = chance.choice(("c1", "c2", "-", word()))
            return f"/kube/{cluster}/{chance.choice(_KUBE)}"
        case 3:
            cluster = chance.choice(("c1", "-", word()))
            return "/".join(["/kube", cluster, *(word() for _ in range(chance.randrange(7)))])
        case _:
            route = chance.choice(("list", "list_with_cluster", "list_cluster"))
            return chance.choice((f"/v1/{route}", f"/{word()}", f"/page/{word()}", "/openapi.json"))


def make_request(chance: random.Random) -> bytes:
    """One request, as bytes: it asks the server to end a watch soon and to close."""
    method = chance.choice(("GET",) * 9 + ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
    pairs = [f"{chance.choice(_NAMES)}={chance.choice(_WORDS)}" for _ in range(chance.randrange(5))]
    if pairs and chance.random() < 0.3:
        pairs.append(chance.choice(pairs))  # repeated
    target = "?".join([_path(chance), "&".join([*pairs, "timeoutSeconds=1"])])
    body = chance.choice(_BODIES) if method in ("POST", "PUT", "PATCH") else b""
    head = [
        f"{method} {target} HTTP/1.1",
        "Host: localhost",
        f"Accept: {chance.choice(_ACCEPTS)}",
        *([f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []),
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


async def send(port: int, request: bytes) -> Answer:
    """Send a request and read the answer; of an endless stream only its beginning."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(0, b"", b"")
        body = b""
        if b"text/event-stream" not in head:
            body = await reader.read(-1)
        return Answer(int(head.split(b" ", 2)[1]), head.lower(), body)
    finally:
        writer.close()


def _check(request: bytes, answer: Answer) -> None:
    beginning = request[:300]
    assert answer.status, f"the connection was closed without an answer to {beginning!r}"
    assert answer.status < 500, (answer.status, beginning, answer.body[:500])
    assert b"Traceback" not in answer.body, beginning
    is_whole = b"transfer-encoding: chunked" not in answer.headers
    if answer.body and is_whole and b"json" in answer.headers and b"ndjson" not in answer.headers:
        json.loads(answer.body)


async def _send_all(port: int, requests: Sequence[bytes]) -> list[int]:
    statuses: list[int] = []
    for request in requests:
        async with asyncio.timeout(HANGS_AFTER):
            answer = await send(port, request)
        _check(request, answer)
        statuses.append(answer.status)
    return statuses


@pytest.mark.slow
@pytest.mark.longer
@pytest.mark.timeout(300)
async def test_a8_odd_requests_to_any_route_are_answered_in_words(past_api: PastApi):
    """Bounds of what a request costs, and of what it may break (rule A8)."""
    api = past_api
    for cluster in ("c1", "c2"):
        await api.add_cluster(cluster, hub=cluster == "c1")
        await api.add(cluster, "core/pods", "web", labels={"a": "b"}, spec={"a": [{"b": 1}]})
        await api.add(cluster, "apps/deployments", "web", spec={"replicas": 2})
        await api.add_body(cluster, "core/pods", "oversized", None)
    port = urlsplit(api.url).port
    assert port
    chance = random.Random(SEED)
    requests = [make_request(chance) for _ in range(REQUESTS)]
    async with asyncio.TaskGroup() as group:
        shares = [
            group.create_task(_send_all(port, requests[each::8]), name=f"share {each}")
            for each in range(8)
        ]
    statuses = {status for share in shares for status in share.result()}
    assert {200, 400, 404} <= statuses, statuses
