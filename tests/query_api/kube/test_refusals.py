"""Refusals below /kube: always with a Status, and with a message that says what to do."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus_cli.api_client import USER_AGENT
from support.full import examples

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "/kube/eu1/api/v1/namespaces/prod/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.fixture
async def pods(api: QueryApi) -> QueryApi:
    """eu1 with a pod, us1 without deployments."""
    await api.add_cluster("eu1")
    await api.add_cluster("us1", "core/pods")
    await api.add("eu1", "core/pods", "web")
    return api


async def test_an_object_that_does_not_exist(pods: QueryApi):
    assert (await pods.get(f"{PODS}/none")).json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "none" not found',
        "reason": "NotFound",
        "details": {"name": "none", "kind": "pods"},
        "code": 404,
    }
    path = "/kube/eu1/apis/apps/v1/namespaces/prod/deployments/none"
    assert (await pods.get(path)).json()["message"] == 'deployments.apps "none" not found'


NOT_THERE: dict[str, str] = {
    "/kube/us1/apis/apps/v1/deployments": "it is not watched in cluster 'us1'",
    "/kube/eu1/apis/apps/v1beta1/deployments": "kept in version v1, not v1beta1",
    "/kube/-/apis/apps/v1beta1/deployments": "kept in version v1, not v1beta1",
    "/kube/eu1/api/v1/po": "core/po is not watched in any cluster",
    "/kube/eu1/api/v1/deployments": "core/deployments is not watched in any cluster",
    "/kube/eu1/api/v1/pods/web": "it is namespaced",
    "/kube/eu1/api/v1/watch/pods": 'watch "pods" not found',
    f"{PODS}/web/nothing": "pods have no subresource nothing here; there are status of",
    "/kube/eu1/api/v1/namespaces/prod/configmaps/a/status": "have no subresource status here",
    f"{PODS}/web/scale": "have no subresource scale here",
    "/kube/eu1/api/v1//pods": "could not find the requested resource",
    "/kube/eu1/metrics": "/metrics is not served here: they are measured in the API server",
    "/kube/eu1/healthz/etcd": "/healthz/etcd is not served here: GET /fleet/v1/clusters says",
    "/kube/-/logs/a.log": "is not served here: they are files of the control plane",
    "/kube/eu1/openapi/v3/apis/none/v1": "no such path of a Kubernetes API",
}


async def test_what_is_not_served_is_a_404(pods: QueryApi):
    for path, text in NOT_THERE.items():
        answer = await pods.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound"), path
        assert text in answer.json()["message"], path


async def test_a7_writes_are_405_and_say_where_to_write(pods: QueryApi):
    methods = ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
    paths = (PODS, f"{PODS}/web", "/kube/-/api/v1/pods", "/kube/none/anything")
    for method, path in itertools.product(methods, paths):
        answer = await pods.client.request(method, path)
        assert answer.status_code == 405, (method, path)
        assert answer.headers["allow"] == "GET"
        if method != "HEAD":
            assert answer.json()["reason"] == "MethodNotAllowed"
            assert "write to the API server of the cluster itself" in answer.json()["message"]


async def test_a_connection_is_not_upgraded_and_the_refusal_says_so(pods: QueryApi):
    key = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    for protocol in ("websocket", "WebSocket", "SPDY/3.1"):
        headers = {"Connection": "Upgrade", "Upgrade": protocol, **key}
        for path in (f"{PODS}?watch=1", PODS, f"{PODS}/web"):
            answer = await pods.client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest"), path
            assert f"cannot be upgraded to {protocol}" in answer.json()["message"]
        for subresource in ("exec", "attach", "portforward"):
            answer = await pods.client.get(f"{PODS}/web/{subresource}", headers=headers)
            assert answer.status_code == 405
    offered = {"Connection": "Upgrade", "Upgrade": "h2c"}
    assert (await pods.client.get(PODS, headers=offered)).status_code == 200


async def test_a_command_that_waits_is_refused_in_the_fleet(pods: QueryApi):
    for command in ("kubectl wait", "kubectl rollout status"):
        for path in ("pods", "namespaces/prod/pods/web", "pods?watch=1"):
            headers = {"Kubectl-Command": command}
            answer = await pods.client.get(f"/kube/-/api/v1/{path}", headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict"), path
            assert f"{command} would end with the first cluster" in answer.json()["message"]
        one = await pods.client.get(f"{PODS}/web", headers={"Kubectl-Command": command})
        assert one.status_code == 200


@pytest.mark.slow
async def test_following_one_name_that_several_clusters_have_is_refused(pods: QueryApi):
    """A client may not say that it is kubectl; only `kubectl get -w` shows them side by side."""
    only, watch = "fieldSelector=metadata.name%3Dweb", "watch=true&timeoutSeconds=1"
    fleet, everywhere = "/kube/-/api/v1/namespaces/prod/pods", "/kube/-/api/v1/pods"
    followed = [
        f"{path}?{only}&{query}"
        for path in (fleet, everywhere)
        for query in ("resourceVersion=0", watch, f"resourceVersion=1&{watch}")
    ]

    async def statuses(**headers: str) -> set[int]:
        answers = [await pods.client.get(path, headers=headers) for path in followed]
        return {answer.status_code for answer in answers}

    assert await statuses() == {200}
    await pods.add("us1", "core/pods", "web")
    assert await statuses() == {409}
    assert await statuses(Accept=TABLE) == {200}
    assert await statuses(**{"Kubectl-Command": "kubectl get"}) == {200}
    assert await statuses(**{"User-Agent": USER_AGENT}) == {200}
    message = (await pods.get(followed[0])).json()["message"]
    assert 'pods "web" is in 2 clusters (eu1, us1)' in message
    assert len((await pods.get(f"{fleet}?{only}")).json()["items"]) == 2


async def test_a7_what_acts_on_the_cluster_is_405(pods: QueryApi):
    for subresource in ("log", "exec", "attach", "portforward", "proxy", "proxy/a"):
        answer = await pods.get(f"{PODS}/web/{subresource}")
        assert (answer.status_code, answer.json()["reason"]) == (405, "MethodNotAllowed")
        assert "only on the API server of the cluster itself" in answer.json()["message"]
        assert (await pods.get(f"{PODS}/none/{subresource}")).json() == answer.json() | {
            "details": {"name": "none", "kind": "pods"}
        }, "whether the object exists does not matter"


async def test_a_client_that_accepts_no_json_gets_406(pods: QueryApi):
    for accept in (PROTOBUF, "application/yaml", "application/json;as=Scale;v=v1;g=autoscaling"):
        answer = await pods.client.get(PODS, headers={"Accept": accept})
        assert (answer.status_code, answer.json()["reason"]) == (406, "NotAcceptable"), accept
        assert answer.json()["message"].endswith("are accepted: application/json")
    for accept in (f"{PROTOBUF},application/json", "application/yaml, */*", "*/*", ""):
        answer = await pods.client.get(PODS, headers={"Accept": accept})
        assert answer.status_code == 200, accept
    only = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    assert (await pods.client.get(PODS, headers={"Accept": only})).status_code == 406
    lists = only.replace("Metadata;", "MetadataList;")
    assert (await pods.client.get(f"{PODS}/web", headers={"Accept": lists})).status_code == 406
    assert (
        await pods.client.get("/kube/eu1/apis", headers={"Accept": PROTOBUF})
    ).status_code == 406


BAD: list[tuple[str, int, str]] = [
    ("limit=-1", 400, "query parameter limit: '-1' is not a number of 0 or more"),
    ("limit=x", 400, "is not a number"),
    ("limit=" + "9" * 30, 400, "is larger than"),
    ("limit=1&limit=2", 400, "is given 2 times"),
    ("foo=bar", 400, "unknown query parameter 'foo'; known: allowWatchBookmarks"),
    ("labelSelector=a in (b", 400, "unable to parse requirement"),
    ("labelSelector=" + "a" * 5000, 400, "longer than 4096"),
    ("fieldSelector=nonsense", 400, "unable to parse requirement"),
    ("fieldSelector=" + ",".join(f"a{n}=b" for n in range(40)), 400, "at most 32"),
    ("resourceVersion=abc", 400, "is not a number"),
    ("resourceVersionMatch=Best&resourceVersion=1", 400, "not one of Exact, NotOlderThan"),
    ("resourceVersionMatch=Exact", 422, "is forbidden unless resourceVersion is provided"),
    ("resourceVersionMatch=Exact&resourceVersion=0", 422, 'forbidden for resourceVersion "0"'),
    ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
    ("watch=perhaps", 400, "is not true, 1, false or 0"),
    ("includeObject=Some", 400, "not one of None, Metadata, Object"),
    ("continue=nonsense", 400, "invalid continue token"),
    ("continue=a&resourceVersion=5", 400, "specifying resource version is not allowed"),
    ("continue=" + "a" * 3000, 400, "longer than 2048"),
]


async def test_bad_parameters_say_what_is_allowed(pods: QueryApi):
    for query, code, text in BAD:
        answer = await pods.get(f"{PODS}?{query}")
        status: dict[str, Any] = answer.json()
        assert answer.status_code == code, status
        assert status["kind"] == "Status"
        assert status["reason"] == {400: "BadRequest", 422: "Invalid"}[code]
        assert text in status["message"]


async def test_a_page_of_a_lost_store_is_410(pods: QueryApi):
    await pods.add("eu1", "core/pods", "web-2")
    token = (await pods.get(PODS, limit=1)).json()["metadata"]["continue"]
    await pods.snapshot.redis.flushall()
    empty = await pods.get(PODS)
    assert (empty.status_code, empty.json()["reason"]) == (503, "ServiceUnavailable")
    await pods.snapshot.set_up()
    await pods.add_cluster("eu1")
    answer = await pods.get(PODS, limit=1, **{"continue": token})
    assert (answer.status_code, answer.json()["reason"]) == (410, "Expired")


PARTS = (
    *("-", "eu1", "api", "v1", "apis", "apps", "core", "pods", "namespaces", "prod", "*"),
    *("%00", "%0a", "%2F", "%F0%28%8C", "%ff", "a" * 300, "status", "log", "watch", "version"),
    *("openapi", "v2", "v3", "%20", "{x}"),
)
QUERIES = (
    *("", "?limit=1&continue=AAAA", "?fieldSelector=a%00=b", "?labelSelector=%ff", "?=", "?a"),
    *("?resourceVersion=00000000000000000001", "?limit=%C2%B2", "?watch=1&limit=x"),
)
ACCEPTS = ("*/*", TABLE, "application/json;as=;v=", ";;,=", "application/json;as=Table;v=9")


@pytest.mark.longer
async def test_random_paths_get_an_answer_or_a_status(pods: QueryApi):
    chance = random.Random(1)
    for _ in range(examples(600)):
        start = chance.choice((["eu1", "api", "v1"], ["-", "api", "v1"], ["eu1", "apis"], []))
        parts = start + chance.choices(PARTS, k=chance.randint(1, 8))
        path = f"/kube/{'/'.join(parts)}{chance.choice(QUERIES)}"
        answer = await pods.client.get(path, headers={"Accept": chance.choice(ACCEPTS)})
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code >= 400:
            assert answer.json()["kind"] == "Status", path
