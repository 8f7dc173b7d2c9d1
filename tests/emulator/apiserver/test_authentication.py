"""Who somebody is, over HTTPS: tokens, certificates, ServiceAccounts, impersonation."""

import base64
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.support.auth_rig import (
    ACCOUNTS,
    AUTHENTICATION,
    Clock,
    Secured,
    review_token,
    secured,
    whoami,
)
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.apiserver.auth.certificates import Authority

ADMIN = User("root", ("system:masters",))
OURS = "https://kubernetes.default.svc.cluster.local"
SECRETS = "/api/v1/secrets"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def rig(tmp_path: Path, clock: Clock) -> AsyncIterator[Secured]:
    clusters = [
        Cluster(name, tokens={"root": ADMIN, "ann": "ann"}, clock=clock) for name in ("one", "two")
    ]
    async with secured(tmp_path, *clusters) as rig:
        yield rig


async def status_of(client: httpx.AsyncClient) -> int:
    return (await client.get(SECRETS)).status_code


# nobody, and tokens ------------------------------------------------------------------------------


async def test_without_a_proof_all_but_health_and_version_is_403(rig: Secured):
    nobody = rig.client()
    refused = await nobody.get(SECRETS)
    assert refused.status_code == 403
    assert refused.json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'secrets is forbidden: User "system:anonymous" cannot list resource "secrets" '
        'in API group "" at the cluster scope',
        "reason": "Forbidden",
        "details": {"kind": "secrets"},
        "code": 403,
    }
    refused = await nobody.get("/apis")
    message = 'forbidden: User "system:anonymous" cannot get path "/apis"'
    assert (refused.status_code, refused.json()["message"]) == (403, message)
    assert refused.json()["details"] == {}
    # The gate comes before the question what is served.
    assert (await nobody.get("/apis/example.com/v1/widgets")).status_code == 403
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert (await nobody.get(path)).status_code == 200


async def test_a_wrong_token_is_401_as_recorded_from_a_real_server(rig: Secured):
    refused = await rig.client("wrong").get("/healthz")
    assert refused.status_code == 401
    assert refused.json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }


async def test_tokens_come_go_and_run_out_while_the_server_runs(rig: Secured, clock: Clock):
    credentials = rig.cluster.credentials
    new = rig.client("new")
    assert await status_of(new) == 401
    credentials.add_token("new", "bob", ends=clock() + timedelta(minutes=5))
    assert (await whoami(new))["username"] == "bob"
    clock.advance(minutes=5)
    assert await status_of(new) == 401
    old = rig.client("ann")
    assert await status_of(old) == 200
    credentials.revoke_token("ann")
    assert await status_of(old) == 401
    with pytest.raises(KeyError):
        credentials.revoke_token("ann")


def test_a_token_that_ends_at_a_time_of_no_zone_is_refused(clock: Clock):
    credentials = Cluster("alpha", clock=clock, tokens={}).credentials
    with pytest.raises(ValueError, match="has no time zone"):
        credentials.add_token("late", "ann", ends=clock().replace(tzinfo=None))


async def test_a_user_is_reported_with_his_groups_uid_and_extra(rig: Secured):
    bob = User("bob", ("devs",), "u1", {"scopes": ("read", "write")})
    rig.cluster.credentials.add_token("bob", bob)
    expected = {
        "username": "bob",
        "uid": "u1",
        "groups": ["devs", "system:authenticated"],
        "extra": {"scopes": ["read", "write"]},
    }
    assert await whoami(rig.client("bob")) == expected
    status = await review_token(rig.client("root"), "bob")
    assert status == {"authenticated": True, "user": expected, "audiences": [OURS]}


async def test_a_token_for_one_audience_passes_nowhere_else(rig: Secured):
    rig.cluster.credentials.add_token("narrow", "ann", audiences=("fleetbus",))
    assert await status_of(rig.client("narrow")) == 401
    root = rig.client("root")
    status = await review_token(root, "narrow", "fleetbus", "others")
    assert (status["authenticated"], status["audiences"]) == (True, ["fleetbus"])
    for token, audiences in (("narrow", ()), ("narrow", ("others",)), ("ann", ("fleetbus",))):
        status = await review_token(root, token, *audiences)
        assert status == {"user": {}, "error": "invalid bearer token"}


async def test_a_token_review_without_a_token_is_400(rig: Secured):
    bodies: tuple[dict[str, Any], ...] = ({}, {"spec": {}}, {"spec": {"token": ""}})
    for body in bodies:
        refused = await rig.client("root").post(f"{AUTHENTICATION}/tokenreviews", json=body)
        message = "token is required for TokenReview in authentication"
        assert (refused.status_code, refused.json()["message"]) == (400, message)


# certificates ------------------------------------------------------------------------------------


async def test_a_client_certificate_names_its_user_and_groups(rig: Secured):
    certificate = rig.cluster.credentials.issue_certificate("eve", ("ops", "devs"))
    info = await whoami(rig.client(certificate=certificate))
    assert info["username"] == "eve"
    assert sorted(info["groups"]) == ["devs", "ops", "system:authenticated"]
    der = ssl.PEM_cert_to_DER_cert(certificate.certificate.decode())
    fingerprint = f"X509SHA256={hashlib.sha256(der).hexdigest()}"
    assert info["extra"] == {"authentication.kubernetes.io/credential-id": [fingerprint]}


async def test_a_certificate_counts_before_a_token_and_a_bad_one_not_at_all(
    rig: Secured, clock: Clock
):
    credentials = rig.cluster.credentials
    good = credentials.issue_certificate("eve")
    bad = credentials.issue_certificate("eve", lifetime=timedelta(hours=-1))
    assert (await whoami(rig.client("ann", certificate=good)))["username"] == "eve"
    assert (await whoami(rig.client("ann", certificate=bad)))["username"] == "ann"
    assert await status_of(rig.client(certificate=bad)) == 401
    eve = rig.client(certificate=credentials.issue_certificate("eve", lifetime=timedelta(hours=1)))
    assert await status_of(eve) == 200
    clock.advance(hours=2)
    assert await status_of(eve) == 401


async def test_a_certificate_of_another_cluster_is_401(rig: Secured):
    other = rig.servers.clusters["two"].credentials.issue_certificate("eve", ("system:masters",))
    assert await status_of(rig.client(certificate=other, cluster="two")) == 200
    assert await status_of(rig.client(certificate=other, cluster="one")) == 401


async def test_a_certificate_without_a_name_is_nobody(rig: Secured):
    unnamed = rig.cluster.credentials.issue_certificate("")
    assert await status_of(rig.client(certificate=unnamed)) == 403


async def test_a_certificate_of_a_stranger_ends_the_handshake(rig: Secured, clock: Clock):
    times = {"begins": clock(), "ends": clock() + timedelta(hours=1)}
    stranger = Authority("a stranger").issue_client("eve", (), **times)
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        await status_of(rig.client(certificate=stranger))


async def test_servers_are_trusted_strictly_under_both_names_and_under_no_other(rig: Secured):
    port = rig.servers.url("one").rpartition(":")[2]
    context = rig.trusting()
    for host, believed in (("127.0.0.1", None), ("localhost", None), ("127.0.0.1", "example.com")):
        request = httpx.Request("GET", f"https://{host}:{port}/healthz")
        async with httpx.AsyncClient(verify=context) as client:
            if believed is None:
                assert (await client.send(request)).text == "ok"
            else:
                request.extensions["sni_hostname"] = believed
                with pytest.raises(httpx.ConnectError, match="Hostname mismatch"):
                    await client.send(request)
    assert context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_a_kubeconfig_holds_tokens_or_a_certificate_of_each_cluster(rig: Secured):
    kubeconfig = rig.servers.kubeconfig("ann")
    assert [user["user"] for user in kubeconfig["users"]] == [{"token": "ann"}]
    several = rig.servers.kubeconfig({"one": "ann"})
    assert {u["name"]: u["user"] for u in several["users"]} == {
        "devfleet-one": {"token": "ann"},
        "devfleet-two": {},
    }
    by_certificate = rig.servers.kubeconfig(user=User("eve", ("ops",)))
    contexts = {c["name"]: c["context"]["user"] for c in by_certificate["contexts"]}
    assert contexts == {"one": "devfleet-one", "two": "devfleet-two"}
    for entry in by_certificate["users"]:
        pem = base64.b64decode(entry["user"]["client-certificate-data"])
        assert pem.startswith(b"-----BEGIN CERTIFICATE-----")
    async with serve([Cluster("plain")]) as servers:
        with pytest.raises(ValueError, match="tls=True"):
            servers.kubeconfig(user=ADMIN)


# ServiceAccounts ---------------------------------------------------------------------------------


def add_account(cluster: Cluster, name: str = "robot") -> dict[str, Any]:
    return cluster.create("v1/serviceaccounts", {"metadata": {"name": name}}, "default")


async def request_token(client: httpx.AsyncClient, spec: Any, name: str = "robot") -> Any:
    reply = await client.post(f"{ACCOUNTS}/{name}/token", json={"spec": spec})
    return reply.status_code, reply.json()


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


async def test_a_service_account_token_says_for_whom_and_how_long_it_is(rig: Secured, clock: Clock):
    account = add_account(rig.cluster)
    status, reply = await request_token(rig.client("root"), {"expirationSeconds": 600})
    assert status == 201
    token = reply["status"]["token"]
    claims = claims_of(token)
    uid = account["metadata"]["uid"]
    assert claims["sub"] == "system:serviceaccount:default:robot"
    assert claims["aud"] == [OURS] == reply["spec"]["audiences"]
    assert claims["exp"] - claims["iat"] == 600
    assert claims["kubernetes.io"] == {
        "namespace": "default",
        "serviceaccount": {"name": "robot", "uid": uid},
    }
    assert await whoami(rig.client(token)) == {
        "username": "system:serviceaccount:default:robot",
        "uid": uid,
        "groups": [
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated",
        ],
        "extra": {"authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"]},
    }
    clock.advance(minutes=10, seconds=59)  # real servers allow a minute more
    assert await status_of(rig.client(token)) == 200
    clock.advance(seconds=2)
    assert await status_of(rig.client(token)) == 401
    error = (await review_token(rig.client("root"), token))["error"]
    assert error == "[invalid bearer token, service account token has expired]"


async def test_a_service_account_token_ends_with_its_account_even_if_it_comes_again(rig: Secured):
    root = rig.client("root")
    first = add_account(rig.cluster)["metadata"]["uid"]
    token = rig.cluster.credentials.account_token("default", "robot")
    assert await status_of(rig.client(token)) == 200
    rig.cluster.delete("v1/serviceaccounts", "default", "robot")
    assert await status_of(rig.client(token)) == 401
    error = (await review_token(root, token))["error"]
    assert error == '[invalid bearer token, serviceaccounts "robot" not found]'
    second = add_account(rig.cluster)["metadata"]["uid"]
    assert await status_of(rig.client(token)) == 401
    error = (await review_token(root, token))["error"]
    why = f"service account UID ({second}) does not match claim ({first})"
    assert error == f"[invalid bearer token, {why}]"


async def test_a_service_account_token_is_good_for_its_audiences_only(rig: Secured):
    add_account(rig.cluster)
    root = rig.client("root")
    _, reply = await request_token(root, {"audiences": ["fleetbus"]})
    token = reply["status"]["token"]
    assert await status_of(rig.client(token)) == 401
    assert (await review_token(root, token, "fleetbus"))["audiences"] == ["fleetbus"]
    error = (await review_token(root, token))["error"]
    why = f'token audiences ["fleetbus"] is invalid for the target audiences ["{OURS}"]'
    assert error == f"[invalid bearer token, {why}]"


async def test_a_token_of_another_cluster_or_a_changed_one_is_unknown(rig: Secured):
    for cluster in rig.servers.clusters.values():
        add_account(cluster)
    token = rig.servers.clusters["two"].credentials.account_token("default", "robot")
    assert await status_of(rig.client(token, cluster="two")) == 200
    root = rig.client("root")
    head, payload, signature = token.split(".")
    claims = {**claims_of(token), "sub": "system:serviceaccount:default:other"}
    forged = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    for wrong in (token, f"{head}.{forged}.{signature}", f"{unsigned}.{payload}.", "a.b.c"):
        assert (await review_token(root, wrong))["error"] == "invalid bearer token"


async def test_a_token_bound_to_a_pod_ends_with_the_pod(rig: Secured):
    add_account(rig.cluster)
    root = rig.client("root")
    containers = [{"name": "c", "image": "i"}]
    spec = {"serviceAccountName": "robot", "nodeName": "n1", "containers": containers}
    pod = rig.cluster.create("v1/pods", {"metadata": {"name": "p"}, "spec": spec}, "default")
    ref = {"apiVersion": "v1", "kind": "Pod", "name": "p"}
    _, reply = await request_token(root, {"boundObjectRef": ref})
    token = reply["status"]["token"]
    extra = (await whoami(rig.client(token)))["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]
    rig.cluster.delete("v1/pods", "default", "p", grace=0)
    error = (await review_token(root, token))["error"]
    assert error == "[invalid bearer token, service account token has been invalidated]"


TOO_SHORT = "Invalid value: 60: may not specify a duration less than 10 minutes"
TOO_LONG = "Invalid value: 8589934592: may not specify a duration larger than 2^32 seconds"
BAD_SECONDS = 'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: '
BAD_TYPE = (
    'TokenRequest in version "v1" cannot be handled as a TokenRequest: json: cannot unmarshal '
    "string into Go struct field TokenRequestSpec.spec.audiences of type []string"
)
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
UNBOUND = "cannot bind token to object of type apps/v1, Kind=Deployment"
GONE = {"apiVersion": "v1", "kind": "Pod", "name": "gone"}


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({"expirationSeconds": 60}, 422, BAD_SECONDS + TOO_SHORT),
        ({"expirationSeconds": 1 << 33}, 422, BAD_SECONDS + TOO_LONG),
        ({"boundObjectRef": DEPLOYMENT}, 400, UNBOUND),
        ({"boundObjectRef": GONE}, 404, 'pods "gone" not found'),
        ({"audiences": "fleetbus"}, 400, BAD_TYPE),
    ],
)
async def test_a_bad_token_request_is_refused_as_by_a_real_server(
    rig: Secured, spec: Any, code: int, message: str
):
    add_account(rig.cluster)
    status, reply = await request_token(rig.client("root"), spec)
    assert (status, reply["message"]) == (code, message)


async def test_a_token_of_a_missing_account_is_404(rig: Secured):
    status, reply = await request_token(rig.client("root"), {}, name="nobody")
    assert (status, reply["message"]) == (404, 'serviceaccounts "nobody" not found')


# impersonation -----------------------------------------------------------------------------------


async def test_whoever_may_acts_as_somebody_else_with_all_that_belongs_to_him(rig: Secured):
    root = rig.client("root")
    acting = httpx.Headers(
        [
            ("Impersonate-User", "bob"),
            ("Impersonate-Group", "devs"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Uid", "u1"),
            ("Impersonate-Extra-example.com%2Fscopes", "read"),
            ("Impersonate-Extra-example.com%2Fscopes", "write"),
        ]
    )
    reply = await root.post(f"{AUTHENTICATION}/selfsubjectreviews", json={}, headers=acting)
    assert reply.json()["status"]["userInfo"] == {
        "username": "bob",
        "uid": "u1",
        "groups": ["devs", "ops", "system:authenticated"],
        "extra": {"example.com/scopes": ["read", "write"]},
    }
    account = "system:serviceaccount:default:robot"
    groups = (await whoami(root, **{"Impersonate-User": account}))["groups"]
    assert groups == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    refused = await root.get(SECRETS, headers={"Impersonate-User": "system:anonymous"})
    assert refused.status_code == 403


async def test_groups_without_a_user_cannot_be_acted_as(rig: Secured):
    refused = await rig.client("root").get(SECRETS, headers={"Impersonate-Group": "devs"})
    assert (refused.status_code, refused.headers["content-type"]) == (
        500,
        "text/plain; charset=utf-8",
    )
    assert "without impersonating a user" in refused.text


async def test_an_open_cluster_takes_all_for_the_admin_or_whom_they_act_as_and_reviews_tokens(
    tmp_path: Path,
):
    async with secured(tmp_path, Cluster("open")) as rig:
        client = rig.client("any")
        admin = {"username": "system:admin", "groups": ["system:masters", "system:authenticated"]}
        assert await whoami(client) == admin
        acting = await whoami(client, **{"Impersonate-User": "bob"})
        assert acting == {"username": "bob", "groups": ["system:authenticated"]}
        add_account(rig.cluster)
        token = rig.cluster.credentials.account_token("default", "robot", audiences=("a",))
        status = await review_token(client, token, "a")
        assert status["user"]["username"] == "system:serviceaccount:default:robot"
