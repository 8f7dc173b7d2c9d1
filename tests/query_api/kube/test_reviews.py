"""Reviews below /kube: what `kubectl auth can-i` and k9s ask before they list (A1, A2, A7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.rigs.secured_api import SecuredApi, grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx
    from redis.asyncio import Redis

    from support.rigs.query_api import QueryApi

ACCESS = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
PROTOBUF = "application/vnd.kubernetes.protobuf"
WHO = "apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
async def secured(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield await server.start()


def review(**resource: str) -> dict[str, Any]:
    kind = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
    return {**kind, "spec": {"resourceAttributes": resource}}


async def post(
    api: SecuredApi, token: str, cluster: str, path: str, document: Any
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await api.client.post(f"/kube/{cluster}/{path}", json=document, headers=headers)


async def may(api: SecuredApi, token: str, cluster: str, **resource: str) -> bool:
    answer = await post(api, token, cluster, ACCESS, review(**resource))
    assert answer.status_code == 201, answer.text
    return answer.json()["status"]["allowed"]


async def test_a1_a_review_says_what_a_request_would_be_answered(secured: SecuredApi):
    narrow, reader, nobody = (secured.user(name) for name in ("narrow", "reader", "nobody"))
    right = rule("get list", "fleetbus.dev", "clusters/pods", names=("eu1",))
    grant(secured.hub, "narrow", right, namespace="prod")
    grant(secured.hub, "reader", rule("get list watch", "fleetbus.dev", "clusters/pods"))
    for token in (narrow, reader, nobody):
        for cluster in ("eu1", "us1", "-"):
            for namespace, resource in (("prod", "pods"), ("prod", "configmaps"), ("", "pods")):
                space = f"/namespaces/{namespace}" if namespace else ""
                list_ = await secured.get(token, f"/kube/{cluster}/api/v1{space}/{resource}")
                allowed = await may(
                    secured, token, cluster, verb="list", resource=resource, namespace=namespace
                )
                assert allowed == (list_.status_code == 200), (token, cluster, namespace, resource)
    prod = {"resource": "pods", "namespace": "prod"}
    assert await may(secured, narrow, "eu1", verb="get", name="any", **prod)
    assert not await may(secured, narrow, "eu1", verb="watch", **prod)
    for beyond in ({"verb": "delete"}, {"verb": "*"}, {"verb": "get", "subresource": "log"}):
        answer = await post(secured, reader, "eu1", ACCESS, review(**prod, **beyond))
        assert answer.json()["status"]["allowed"] is False
        assert answer.json()["status"]["reason"], beyond
    assert answer.json()["spec"] == {"resourceAttributes": {**prod, **beyond}}


async def test_a1_reviews_need_a_token_and_are_of_the_user_alone(secured: SecuredApi):
    wrong = secured.user("wrong", audiences=("https://kubernetes.default",))
    for path in (ACCESS, RULES, WHO):
        for token in ("", "invented", wrong):
            answer = await post(secured, token, "eu1", path, review(verb="list", resource="pods"))
            assert answer.status_code == 401, path
    ann = secured.user("ann")
    found = (await post(secured, ann, "none", WHO, {"kind": "SelfSubjectReview"})).json()
    assert found["status"]["userInfo"]["username"] == "ann"
    rules = (await post(secured, ann, "none", RULES, {"spec": {"namespace": "prod"}})).json()
    assert rules["status"]["incomplete"] is True
    assert "can-i list pods" in rules["status"]["evaluationError"]
    assert not any(each.method not in {"GET", "POST"} for each in secured.hub.requests)


async def test_a2_a_review_does_not_tell_what_exists(secured: SecuredApi):
    """Cluster, type and namespace: the same words, and as many reviews on the hub."""
    cases = [
        ("us1", {"resource": "pods", "namespace": "prod"}),
        ("none", {"resource": "pods", "namespace": "prod"}),
        ("eu1", {"resource": "configmaps", "namespace": "prod"}),
        ("eu1", {"resource": "widgets", "group": "example.com", "namespace": "prod"}),
        ("eu1", {"resource": "pods", "namespace": "test"}),
        ("eu1", {"resource": "pods", "namespace": "none"}),
    ]
    counts: set[int] = set()
    for number, (cluster, resource) in enumerate(cases):
        # Each as a user of whom nothing is known yet but the token.
        token = secured.user(f"narrow{number}")
        right = rule("get list", "fleetbus.dev", "clusters/pods", names=("eu1",))
        grant(secured.hub, f"narrow{number}", right, namespace="prod")
        before = secured.reviews("subjectaccessreviews")
        answer = await post(secured, token, cluster, ACCESS, review(verb="list", **resource))
        assert answer.json()["status"] == {"allowed": False}
        counts.add(secured.reviews("subjectaccessreviews") - before)
    assert counts == {2}


BAD: list[tuple[bytes, str, int, str]] = [
    (b"", "application/json", 400, "SelfSubjectAccessReview"),
    (b"[]", "application/json", 400, "SelfSubjectAccessReview"),
    (b"{}", "application/json", 400, "neither resourceAttributes"),
    (b'{"kind":"Pod"}', "application/json", 400, "'Pod'"),
    (b'{"spec":{"resourceAttributes":{"verb":1}}}', "application/json", 400, "str"),
    (b'{"spec":{"resourceAttributes":{"verb":"%b"}}}' % (b"x" * 300), "", 400, "253"),
    (b"[" * 10_000, "application/json", 400, "SelfSubjectAccessReview"),
    (b"x" * 20_000, "application/json", 413, "at most 16 KiB"),
    (b"a: b", "application/yaml", 415, "application/json"),
    (b"{}", PROTOBUF, 400, "protobuf"),
    (b"k8s\0", PROTOBUF, 400, "neither resourceAttributes"),
    (b"k8s\0\x12\xff", PROTOBUF, 400, "cut off"),
    (b"k8s\0\x12\x05abc", PROTOBUF, 400, "cut off"),
    (b"k8s\0\x0a\x05\x12\x03Pod", PROTOBUF, 400, "'Pod'"),
    (b"k8s\0\x12\x09\x12\x07\x0a\x05\x12\x03\xff\xff\xff", PROTOBUF, 400, "utf-8"),
]


async def test_bad_reviews_are_refused_with_a_status(api: QueryApi, subtests: pytest.Subtests):
    for body, media_type, status, text in BAD:
        with subtests.test(body=body, media_type=media_type, status=status, text=text):
            await api.add_cluster("eu1")
            headers = {"Content-Type": media_type} if media_type else {}
            answer = await api.client.post(f"/kube/eu1/{ACCESS}", content=body, headers=headers)
            assert (answer.status_code, answer.json()["kind"]) == (status, "Status"), answer.text
            assert text in answer.json()["message"]


async def test_a7_nothing_else_can_be_posted(api: QueryApi):
    await api.add_cluster("eu1")
    group = "apis/authorization.k8s.io/v1"
    others = ("subjectaccessreviews", "selfsubjectaccessreviews/a", "namespaces/a/pods", "")
    for path in (
        *(f"/kube/eu1/{group}/{each}" for each in others),
        f"/kube/{ACCESS}",
        f"/{ACCESS}",
    ):
        answer = await api.client.post(path, json=review(verb="list", resource="pods"))
        assert answer.status_code == 405, path
    assert (await api.get(f"/kube/eu1/{ACCESS}")).status_code == 404
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await api.client.request(method, f"/kube/eu1/{ACCESS}")).status_code == 405


async def test_without_authentication_everything_may_be_read(api: QueryApi):
    await api.add_cluster("eu1")
    answer = await api.client.post(
        f"/kube/-/{ACCESS}", json=review(verb="list", resource="pods", namespace="a")
    )
    assert answer.json()["status"] == {"allowed": True}
    for path, allowed in (("/version", True), ("/apis/apps/v1", True), ("/metrics", False)):
        spec = {"nonResourceAttributes": {"verb": "get", "path": path}}
        answer = await api.client.post(f"/kube/eu1/{ACCESS}", json={"spec": spec})
        assert answer.json()["status"]["allowed"] is allowed, path
