"""Reviews over HTTPS: what fleetbus's query API asks a cluster about its users."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.support.auth_rig import AUTHENTICATION, AUTHORIZATION, RBAC, Secured, secured
from fleetbus_emulator.apiserver import Cluster, User
from support.processes.kubectls import kubectls

TOKENS: dict[str, str | User] = {"root": User("root", ("system:masters",)), "ann": "ann"}
ACCESS = f"{AUTHORIZATION}/subjectaccessreviews"
LOCAL = f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews"
OWN_ACCESS = f"{AUTHORIZATION}/selfsubjectaccessreviews"
OWN_RULES = f"{AUTHORIZATION}/selfsubjectrulesreviews"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Secured]:
    async with secured(tmp_path, Cluster("one", tokens=TOKENS, authorize="rbac")) as rig:
        rig.cluster.create(
            f"{RBAC}/rolebindings",
            {
                "metadata": {"name": "viewers"},
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "devs"}],
            },
            "default",
        )
        yield rig


async def ask(client: httpx.AsyncClient, path: str, **spec: Any) -> dict[str, Any]:
    reply = await client.post(path, json={"spec": spec})
    assert reply.status_code == 201, reply.text
    return reply.json()["status"]


PODS = {"verb": "list", "resource": "pods", "namespace": "default"}
BY_VIEWERS = 'RBAC: allowed by RoleBinding "viewers/default" of ClusterRole "view" to '


async def test_an_access_review_answers_for_anybody_by_name_and_groups(rig: Secured):
    root = rig.client("root")
    status = await ask(root, ACCESS, user="ann", resourceAttributes=PODS)
    assert status == {"allowed": True, "reason": BY_VIEWERS + 'User "ann"'}
    status = await ask(root, ACCESS, user="bob", groups=["devs"], resourceAttributes=PODS)
    assert status == {"allowed": True, "reason": BY_VIEWERS + 'Group "devs"'}
    more = {"user": "bob", "uid": "u", "extra": {"scopes": ["a", "b"]}}
    assert await ask(root, ACCESS, **more, resourceAttributes=PODS) == {"allowed": False}
    deletion = {**PODS, "verb": "delete"}
    assert await ask(root, ACCESS, user="ann", resourceAttributes=deletion) == {"allowed": False}
    anywhere = {"verb": "list", "resource": "pods"}
    assert await ask(root, ACCESS, user="ann", resourceAttributes=anywhere) == {"allowed": False}
    log = {**PODS, "verb": "get", "subresource": "log", "name": "p"}
    assert (await ask(root, ACCESS, user="ann", resourceAttributes=log))["allowed"]


async def test_an_access_review_answers_for_paths(rig: Secured):
    root = rig.client("root")
    for path, groups, allowed in (
        ("/healthz", ["system:unauthenticated"], True),
        ("/apis/apps/v1", ["system:authenticated"], True),
        ("/apis/apps/v1", [], False),
        ("/metrics", ["system:authenticated"], False),
    ):
        attributes = {"path": path, "verb": "get"}
        status = await ask(root, ACCESS, user="x", groups=groups, nonResourceAttributes=attributes)
        assert status["allowed"] is allowed


async def test_a_review_follows_a_revocation_at_once(rig: Secured):
    root = rig.client("root")
    assert (await ask(root, ACCESS, user="ann", resourceAttributes=PODS))["allowed"]
    rig.cluster.delete(f"{RBAC}/rolebindings", "default", "viewers")
    assert await ask(root, ACCESS, user="ann", resourceAttributes=PODS) == {"allowed": False}


async def test_reviews_of_others_are_a_right_and_those_of_oneself_are_not(rig: Secured):
    ann = rig.client("ann")
    for path in (ACCESS, LOCAL, f"{AUTHENTICATION}/tokenreviews"):
        refused = await ann.post(path, json={"spec": {}})
        assert refused.status_code == 403
        assert 'User "ann" cannot create resource' in refused.json()["message"]
    assert (await ask(ann, OWN_ACCESS, resourceAttributes=PODS))["allowed"]
    delegator = {
        "metadata": {"name": "gate"},
        "roleRef": {"kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [{"kind": "User", "name": "ann"}],
    }
    rig.cluster.create(f"{RBAC}/clusterrolebindings", delegator)
    assert (await ask(ann, ACCESS, user="ann", resourceAttributes=PODS))["allowed"]
    token = await ask(ann, f"{AUTHENTICATION}/tokenreviews", token="ann")
    assert token["user"]["username"] == "ann"


async def test_a_local_review_asks_about_its_own_namespace(rig: Secured):
    root = rig.client("root")
    assert (await ask(root, LOCAL, user="ann", resourceAttributes=PODS))["allowed"]
    other = {**PODS, "namespace": "web"}
    reply = await root.post(LOCAL, json={"spec": {"user": "ann", "resourceAttributes": other}})
    assert reply.status_code == 422
    assert "must match metadata.namespace" in reply.json()["message"]
    spec = {"user": "ann", "nonResourceAttributes": {"path": "/", "verb": "get"}}
    reply = await root.post(LOCAL, json={"spec": spec})
    assert "disallowed on this kind of request" in reply.json()["message"]
    nowhere = f"{AUTHORIZATION}/localsubjectaccessreviews"
    assert (await root.post(nowhere, json={"spec": {}})).status_code == 404


async def test_a_rules_review_lists_what_one_really_may(rig: Secured):
    ann = rig.client("ann")
    status = await ask(ann, OWN_RULES, namespace="default")
    assert status["incomplete"] is False
    rules = status["resourceRules"]
    assert {
        "verbs": ["get", "list", "watch"],
        "apiGroups": [""],
        "resources": ["namespaces"],
    } in rules
    assert not any("secrets" in rule["resources"] for rule in rules)
    assert any("/apis/*" in rule["nonResourceURLs"] for rule in status["nonResourceRules"])
    elsewhere = await ask(ann, OWN_RULES, namespace="kube-system")
    assert {tuple(rule["verbs"]) for rule in elsewhere["resourceRules"]} == {("create",)}
    refused = await ann.post(OWN_RULES, json={"spec": {}})
    assert (refused.status_code, refused.json()["message"]) == (400, "no namespace on request")


INVALID = 'SubjectAccessReview.authorization.k8s.io "" is invalid: '
NO_USER = 'spec.user: Invalid value: "": at least one of user or group must be specified'
NOTHING = (
    'spec.resourceAttributes: Invalid value: "null": exactly one of nonResourceAttributes or '
    "resourceAttributes must be specified"
)
BOTH = "cannot be specified in combination with resourceAttributes"
BAD_TYPE = (
    'SubjectAccessReview in version "v1" cannot be handled as a SubjectAccessReview: json: cannot '
    "unmarshal {} into Go struct field SubjectAccessReviewSpec.spec.{} of type {}"
)
OTHER_VERSION = (
    "the API version in the data (v1) does not match the expected API version "
    "(authorization.k8s.io/v1)"
)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"spec": {}}, 422, f"{INVALID}[{NOTHING}, {NO_USER}]"),
        ({"spec": {"resourceAttributes": PODS}}, 422, INVALID + NO_USER),
        ({"spec": {"user": "ann"}}, 422, INVALID + NOTHING),
        (
            {"spec": {"user": 7, "resourceAttributes": PODS}},
            400,
            BAD_TYPE.format("number", "user", "string"),
        ),
        (
            {"spec": {"user": "a", "groups": "g", "resourceAttributes": PODS}},
            400,
            BAD_TYPE.format("string", "groups", "[]string"),
        ),
        (
            {"spec": {"user": "a", "extra": {"k": ["v", 1]}, "resourceAttributes": PODS}},
            400,
            BAD_TYPE.format("number", "extra", "string"),
        ),
        ({"apiVersion": "v1", "kind": "Pod"}, 400, OTHER_VERSION),
    ],
)
async def test_a_bad_access_review_is_refused_as_by_a_real_server(
    rig: Secured, body: Any, code: int, message: str
):
    reply = await rig.client("root").post(ACCESS, json=body)
    assert (reply.status_code, reply.json()["message"]) == (code, message)


async def test_a_review_has_one_kind_one_method_and_one_question(rig: Secured):
    root = rig.client("root")
    both = {"resourceAttributes": PODS, "nonResourceAttributes": {"path": "/", "verb": "get"}}
    reply = await root.post(ACCESS, json={"spec": {"user": "ann", **both}})
    assert (reply.status_code, BOTH in reply.json()["message"]) == (422, True)
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    assert (await root.post(ACCESS, json=kind)).status_code == 400
    assert (await root.post(ACCESS, content=b"{")).status_code == 400
    review = {"spec": {"user": "ann", "resourceAttributes": PODS, "team": "x"}}
    warned = await root.post(ACCESS, json=review)
    assert warned.headers["warning"] == '299 - "unknown field \\"spec.team\\""'
    strictly = await root.post(ACCESS, json=review, params={"fieldValidation": "Strict"})
    assert strictly.status_code == 400
    assert (await root.get(ACCESS)).status_code == 405
    assert (await root.get(f"{ACCESS}/a")).status_code == 404


async def test_a_function_as_policy_answers_reviews_as_it_does_requests(tmp_path: Path):
    cluster = Cluster("one", tokens=TOKENS, authorize=lambda access: access.verb != "delete")
    async with secured(tmp_path, cluster) as rig:
        ann = rig.client("ann")
        for verb, allowed in (("get", True), ("delete", False)):
            attributes = {"user": "bob", "resourceAttributes": {"verb": verb, "resource": "pods"}}
            assert (await ask(ann, ACCESS, **attributes)) == {"allowed": allowed}
        rights = await ask(ann, OWN_RULES, namespace="default")
        assert rights["incomplete"] is True
        assert (await ann.delete("/api/v1/namespaces/default/pods/p")).status_code == 403
        assert (await ann.get("/api/v1/namespaces/default/pods/p")).status_code == 404


# kubectl -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not kubectls(), reason="kubectl is not installed")
@pytest.mark.parametrize("version", [*kubectls()][-1:])
async def test_kubectl_asks_who_and_what_it_may_and_acts_as_others(
    rig: Secured, tmp_path: Path, version: str
):
    certified, path = tmp_path / "certified", tmp_path / "kubeconfig"
    rig.servers.write_kubeconfig(path, token="root")
    rig.servers.write_kubeconfig(certified, user=User("eve", ("devs",)))

    async def kubectl(*arguments: str, config: Path = path) -> str:
        cache = ["--cache-dir", str(tmp_path / "cache"), "--kubeconfig", str(config)]
        done = await asyncio.to_thread(
            subprocess.run,
            [str(kubectls()[version]), *cache, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout + done.stderr

    rig.cluster.create("v1/serviceaccounts", {"metadata": {"name": "robot"}}, "default")
    outputs = await asyncio.gather(
        kubectl("auth", "can-i", "list", "pods", config=certified),
        kubectl("auth", "can-i", "delete", "pods", config=certified),
        kubectl("auth", "can-i", "--list", config=certified),
        kubectl("auth", "whoami", "-o", "json", config=certified),
        kubectl("get", "secrets", config=certified),
        kubectl("auth", "can-i", "get", "pods/log", "--as=ann"),
        kubectl("auth", "can-i", "get", "/metrics", "--as=ann", "--as-group=ops"),
        kubectl("create", "token", "robot", "--duration=10m"),
    )
    yes, no, listed, whoami, refused, log, metrics, token = outputs
    assert (yes, no.splitlines()[0]) == ("yes\n", "no")
    assert "pods/log" in listed
    assert '"username": "eve"' in whoami
    assert refused == (
        'Error from server (Forbidden): secrets is forbidden: User "eve" cannot list resource '
        '"secrets" in API group "" in the namespace "default"\n'
    )
    assert log == "yes\n"
    assert metrics.splitlines()[0] == "no"
    assert len(token.split(".")) == 3
