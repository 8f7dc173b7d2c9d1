"""Rules A1 to A3: what rights hide, how long decisions are kept, and who is away."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus_emulator.apiserver import Hang, User
from fleetbus_query_api.access import authorise
from fleetbus_query_api.access.authorise import (
    Decisions,
    HubAccess,
    MemberAccess,
    Right,
    UndecidedProblem,
)
from fleetbus_query_api.requests.user import User as Caller
from support.eventually import eventually
from support.rigs.query_api import QueryApi, served
from support.rigs.secured_api import RBAC, grant, rule, secured_api
from support.servers.health_probes import read_probe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.secured_api import SecuredApi

LIST = "/fleet/v1/resources/pods"
PODS = rule("get list", "fleetbus.dev", "clusters/pods")
EU1 = rule("get list", "fleetbus.dev", "clusters/pods", names=("eu1",))
CLUSTERS = rule("get list", "fleetbus.dev", "clusters")
BRIEF = {"token_cache": timedelta(0), "allow_cache": timedelta(0), "deny_cache": timedelta(0)}


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield server


async def pages(api: SecuredApi, token: str, **query: Any) -> list[dict[str, Any]]:
    """All pages of a list, without what differs from one moment to the next."""
    bodies: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        body = (await api.get(token, LIST, limit="1", **query, **more)).json()
        for freshness in body["freshness"].values():
            freshness["ageSeconds"] = None
        bodies.append(body)
        if not body["continue"]:
            return bodies
        more = {"continue": body["continue"]}


@pytest.mark.slow
async def test_a2_counts_and_pages_are_equal_with_and_without_forbidden_objects(api: SecuredApi):
    await api.start()
    token = api.user("ann")
    grant(api.hub, "ann", EU1)
    before = await pages(api, token)
    selected = await pages(api, token, fieldSelector="metadata.name!=x")
    fill = QueryApi("", api.client, api.snapshot, version=1000)
    await fill.add_cluster("ap1")
    for number in range(3):
        for cluster in ("ap1", "us1"):
            await fill.add(cluster, "core/pods", f"more-{number}", namespace="prod")
    await asyncio.sleep(1.1)  # the catalog keeps the fleet for a second

    after = await pages(api, token)

    assert [page["remaining"] for page in before] == [1, 0]
    for body in (*before, *after):
        del body["resourceVersion"]
        body["continue"] = bool(body["continue"])  # a token has the version, too
    assert after == before
    after = await pages(api, token, fieldSelector="metadata.name!=x")
    assert [page["items"] for page in after] == [page["items"] for page in selected]
    assert all(page["freshness"].keys() == {"eu1"} for page in (*before, *after))


async def test_a2_a_cluster_is_named_as_left_out_only_to_who_named_it_or_may_know_it(
    api: SecuredApi,
):
    await api.start()
    ann, bob = api.user("ann"), api.user("bob")
    for user in ("ann", "bob"):
        grant(api.hub, user, EU1)
    grant(api.hub, "bob", CLUSTERS)

    assert (await api.get(ann, LIST)).json()["incomplete"] == []
    assert (await api.get(bob, LIST)).json()["incomplete"] == ["us1"]
    named = (await api.get(ann, LIST, cluster="eu1,none,us1")).json()
    assert named["incomplete"] == ["none", "us1"]
    assert named["freshness"]["none"] == named["freshness"]["us1"]
    assert {item["cluster"] for item in named["items"]} == {"eu1"}


async def test_a2_what_is_forbidden_is_answered_like_what_is_absent(api: SecuredApi):
    await api.start(**BRIEF)
    token = api.user("ann")
    grant(api.hub, "ann", EU1, namespace="prod")
    alike = [
        ("/fleet/v1/objects/us1/pods/prod/prod-1", "/fleet/v1/objects/none/pods/prod/prod-1"),
        ("/fleet/v1/objects/eu1/pods/test/test-1", "/fleet/v1/objects/eu1/pods/none/test-1"),
        ("/fleet/v1/clusters/us1", "/fleet/v1/clusters/none"),
        (f"{LIST}?cluster=us1&namespace=prod", f"{LIST}?cluster=none&namespace=prod"),
        ("/fleet/v1/resources/configmaps", "/fleet/v1/resources/widgets"),
        ("/fleet/v1/objects/eu1/configmaps/prod/a", "/fleet/v1/objects/eu1/widgets/prod/a"),
        ("/v1/list?gvr=configmaps", "/v1/list?gvr=widgets"),
    ]
    for pair in alike:
        answers: list[tuple[int, str, int]] = []
        for path in pair:
            before = api.reviews("subjectaccessreviews")
            answer = await api.get(token, path)
            text = answer.text
            for word in ("us1", "none", "test", "configmaps", "widgets"):
                text = text.replace(word, "x")
            # As many reviews, so as much time.
            answers.append((answer.status_code, text, api.reviews("subjectaccessreviews") - before))
        assert answers[0] == answers[1], pair
        assert answers[0][0] == 404


async def test_a2_the_count_of_a_resource_needs_the_right_to_list_it(api: SecuredApi):
    await api.start()
    grant(api.hub, "ann", CLUSTERS, PODS)
    body = (await api.get(api.user("ann"), "/fleet/v1/clusters/eu1")).json()
    assert {each["plural"]: each["objects"] for each in body["resources"]} == {
        "configmaps": None,
        "pods": 2,
    }


async def test_a3_rights_in_a_cluster_and_in_a_namespace_do_not_combine(api: SecuredApi):
    """A review of the Cluster and one of the namespace would allow all four combinations."""
    await api.start()
    token = api.user("ann")
    us1 = rule("get list", "fleetbus.dev", "clusters/pods", names=("us1",))
    grant(api.hub, "ann", EU1, namespace="prod")
    grant(api.hub, "ann", us1, namespace="test")
    assert await api.names(token, namespace="prod") == ["eu1/prod-1"]
    assert await api.names(token, namespace="test") == ["us1/test-1"]
    assert (await api.get(token, LIST)).status_code == 404


async def test_a3_a_list_costs_few_reviews_and_the_next_one_none(api: SecuredApi):
    await api.start()
    token = api.user("ann")
    grant(api.hub, "ann", PODS)
    for _ in range(3):
        assert len(await api.names(token)) == 4
    assert api.reviews("subjectaccessreviews") == 1
    assert api.reviews("tokenreviews") == 1


async def test_a3_users_of_one_name_with_other_groups_or_uid_share_no_decision(api: SecuredApi):
    await api.start()
    grant(api.hub, "ann", PODS)
    binding = api.hub.list(f"{RBAC}/clusterrolebindings")
    role = next(b["roleRef"]["name"] for b in binding if b["metadata"]["name"].startswith("ann"))
    ref = {"kind": "ClusterRole", "name": role}
    subjects = [{"kind": "Group", "name": "devs"}]
    api.hub.create(
        f"{RBAC}/clusterrolebindings",
        {"metadata": {"name": "devs"}, "roleRef": ref, "subjects": subjects},
    )
    users = [
        User("eve", ("devs",)),
        User("eve"),
        User("eve", ("devs",), "u1"),
        User("eve", (), "u2"),
    ]
    statuses: list[int] = []
    for number, user in enumerate(users):
        api.hub.credentials.add_token(f"eve-{number}", user, audiences=("fleetbus",))
        statuses.append((await api.get(f"eve-{number}", LIST)).status_code)
    assert statuses == [200, 404, 200, 404]


@pytest.mark.slow
async def test_a3_what_is_revoked_ends_when_the_cache_does(api: SecuredApi):
    keep = timedelta(seconds=1)
    await api.start(token_cache=keep, allow_cache=keep, deny_cache=timedelta(0))
    token = api.user("ann")
    assert (await api.get(token, LIST)).status_code == 404
    grant(api.hub, "ann", PODS)
    assert (await api.get(token, LIST)).status_code == 200, "a new right counts at once"
    allowed_at = time.monotonic()
    for binding in api.hub.list(f"{RBAC}/clusterrolebindings"):
        if binding["metadata"]["name"].startswith("ann"):
            api.hub.delete(f"{RBAC}/clusterrolebindings", None, binding["metadata"]["name"])
    answer = await api.get(token, LIST)
    assert answer.status_code == 200 or time.monotonic() - allowed_at > 1, "it is kept"
    await asyncio.sleep(1.1)  # the decision is kept for a second
    assert (await api.get(token, LIST)).status_code == 404
    api.hub.credentials.revoke_token(token)
    await asyncio.sleep(1.1)  # so is the user of the token
    assert (await api.get(token, LIST)).status_code == 401


async def test_a3_the_caches_cannot_be_set_longer_than_the_rule_allows(api: SecuredApi):
    for name, most in (("token_cache", 120), ("allow_cache", 300), ("deny_cache", 30)):
        with pytest.raises(ValueError, match=name):
            await api.start(**{name: timedelta(seconds=most + 1)})


async def test_a3_without_the_hub_what_is_known_goes_on_and_the_rest_is_503(api: SecuredApi):
    await api.start()
    ann, bob = api.user("ann"), api.user("bob")
    grant(api.hub, "ann", PODS)
    assert len(await api.names(ann)) == 4
    await api.servers.stop("hub")

    assert len(await api.names(ann)) == 4
    unknown = await api.get(bob, LIST)
    assert unknown.status_code == 503
    assert "your token cannot be verified" in unknown.json()["detail"]
    undecided = await api.get(ann, "/fleet/v1/resources/configmaps")
    assert undecided.status_code == 503
    assert "your rights cannot be checked" in undecided.json()["detail"]
    assert ann not in unknown.text + undecided.text


async def test_a3_a_hub_that_refuses_reviews_is_503_and_not_401(api: SecuredApi):
    await api.start()
    for binding in api.hub.list(f"{RBAC}/clusterrolebindings"):
        if binding["metadata"]["name"].startswith("query-api"):
            api.hub.delete(f"{RBAC}/clusterrolebindings", None, binding["metadata"]["name"])
    assert (await api.get(api.user("ann"), LIST)).status_code == 503


@pytest.mark.slow
async def test_a3_with_authority_member_the_cluster_decides_and_one_that_is_away_is_undecided(
    api: SecuredApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authorise, "MEMBER_WITHIN", timedelta(seconds=0.5))
    await api.start(authority="member", **BRIEF)
    token = api.user("ann")
    pods = rule("get list", "", "pods")
    grant(api.hub, "ann", CLUSTERS, PODS)
    assert (await api.get(token, LIST)).status_code == 404, "a right on the hub is none there"
    grant(api.members["eu1"], "ann", pods)
    grant(api.members["us1"], "ann", pods, namespace="test")
    assert await api.names(token) == ["eu1/prod-1", "eu1/test-1"]
    assert await api.names(token, namespace="test") == ["eu1/test-1", "us1/test-1"]

    hanging = api.members["us1"].faults.add(Hang(), verb="create")
    assert await api.names(token, namespace="test") == ["eu1/test-1"]
    assert (await api.get(token, LIST, namespace="test")).json()["incomplete"] == ["us1"]
    pod = "/fleet/v1/objects/us1/pods/test/test-1"
    for path in (pod, "/kube/us1/api/v1/namespaces/test/pods/test-1"):
        assert (await api.get(token, path)).status_code == 503, "nobody has denied it"
    hanging.remove()
    assert (await api.get(token, pod)).status_code == 200, "nothing undecided is kept"

    await api.servers.stop("eu1")
    await api.servers.stop("us1")
    answer = await api.get(token, LIST, namespace="test")
    assert answer.status_code == 503
    assert "eu1, us1" in answer.json()["detail"]


async def test_a3_with_authority_member_who_may_not_see_the_cluster_has_no_right_in_it(
    api: SecuredApi,
):
    await api.start(authority="member", **BRIEF)
    grant(api.members["eu1"], "ann", rule("get list", "", "pods"))
    assert (await api.get(api.user("ann"), LIST)).status_code == 404
    assert api.reviews("subjectaccessreviews", at="eu1") == 0, "the time would tell"


async def test_a3_a_service_account_of_the_hub_is_not_that_of_a_member(api: SecuredApi):
    """Else whoever may create a ServiceAccount on the hub takes the rights of its namesake."""
    await api.start(authority="member", **BRIEF)
    account = "system:serviceaccount:flux-system:flux"
    api.hub.credentials.add_token(
        "t", User(account, ("system:masters", "system:authenticated")), audiences=("fleetbus",)
    )
    grant(api.members["eu1"], account, rule("get list", "", "pods"))
    assert (await api.get("t", LIST)).status_code == 404
    grant(api.members["eu1"], f"hub:{account}", rule("get list", "", "pods"))
    assert await api.names("t") == ["eu1/prod-1", "eu1/test-1"]


async def test_a8_a_user_has_one_limit_from_all_addresses_and_bad_tokens_have_their_own(
    api: SecuredApi,
):
    await api.start(user_request_burst=3, user_requests_per_second=0.01)
    ann, bob = api.user("ann"), api.user("bob")
    path = "/fleet/v1/clusters"
    assert [(await api.get(ann, path)).status_code for _ in range(4)] == [200] * 3 + [429]
    assert (await api.get(bob, path)).status_code == 200
    invented = [(await api.get(f"no-{number}", path)).status_code for number in range(3)]
    assert invented == [401, 429, 429], "the first tokens of ann and bob counted, too"
    assert [(await api.get("", path)).status_code] == [429]
    assert (await api.get(bob, path)).status_code == 200, "a known token has no such limit"
    assert api.reviews("tokenreviews") == 3


async def test_a_jwt_is_not_known_longer_than_it_is_valid(api: SecuredApi):
    await api.start()
    api.hub.create("v1/serviceaccounts", {"metadata": {"name": "ci"}}, "prod")
    token = api.hub.credentials.account_token(
        "prod", "ci", audiences=("fleetbus",), lifetime=timedelta(seconds=-1)
    )
    for _ in range(2):  # API servers accept it for a minute more
        assert (await api.get(token, "/fleet/v1/clusters")).status_code == 200
    assert api.reviews("tokenreviews") == 2


async def test_a_token_for_another_audience_says_which_one_is_needed(api: SecuredApi):
    await api.start(audience="https://fleet.example")
    answer = await api.get(api.user("ann", audiences=("fleetbus",)), LIST)
    assert answer.status_code == 401
    assert "--audience=https://fleet.example" in answer.json()["detail"]


async def test_a_kubeconfig_that_comes_late_is_waited_for(api: SecuredApi):
    file, probes = api.folder / "kubeconfig", api.folder / "health.port"
    content = file.read_text()
    file.unlink()
    shared = {**api.shared, "health_port_file": probes}

    async def tells() -> bool:
        status, text = await read_probe(probes, "/readyz")
        return status == 503 and "cannot read the kubeconfig: No such file" in text

    async def mend() -> None:
        await eventually(tells)
        file.write_text(content)

    mending = asyncio.create_task(mend())
    async with served(api.redis_url, api.folder, shared=shared, authentication="token") as url:
        await mending
        await api.use(url)
        grant(api.hub, "ann", PODS)
        assert await api.names(api.user("ann"))


async def test_a8_invented_names_of_one_user_cost_the_hub_so_many_reviews(
    api: SecuredApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authorise, "REVIEW_BURST", 40)
    monkeypatch.setattr(authorise, "REVIEWS_PER_SECOND", 1e-9)
    await api.start()
    ann, bob = api.user("ann"), api.user("bob")
    statuses = [
        (
            await api.get(ann, LIST, cluster=",".join(f"none-{at}-{n}" for n in range(30)))
        ).status_code
        for at in range(3)
    ]
    assert statuses == [404, 429, 429]
    assert api.reviews("subjectaccessreviews") == 40
    assert (await api.get(bob, LIST)).status_code == 404, "another user has their own"


class _Reviews:
    """An API server that answers reviews with yes, after a while or never."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs

    async def request(self, _: object) -> bytes:
        await asyncio.sleep(3600 if self.hangs else 0.001)  # a review takes its time
        return b'{"status":{"allowed":true}}'


class _Fleet:
    hub = "hub"

    def __init__(self, **clients: _Reviews) -> None:
        self._clients = clients

    def client(self, name: str) -> _Reviews:
        return self._clients[name]


async def test_a3_a_hanging_member_takes_nothing_from_users_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(authorise, "MEMBER_WITHIN", timedelta(seconds=5))
    fleet: Any = _Fleet(hub=_Reviews(), eu1=_Reviews(), us1=_Reviews(hangs=True))
    decisions = Decisions(allow=timedelta(minutes=5), deny=timedelta(seconds=30))
    hub = HubAccess(hub=fleet.client("hub"), decisions=decisions)
    access = MemberAccess(hub=hub, clusters=fleet, decisions=decisions)
    many = [
        asyncio.create_task(
            access.authorise(Caller("mallory"), Right("list", "core", f"t{number}"), ["us1"])
        )
        for number in range(300)
    ]
    await asyncio.sleep(0)
    for number in range(50):
        right = Right("get", "core", "pods", "prod", f"web-{number}")
        assert await access.authorise(Caller("carl"), right, ["eu1"]) == {"eu1"}
    assert not any(task.done() for task in many), "the others were never waited for"
    for task in many:
        task.cancel()
    await asyncio.wait(many)


async def test_a3_what_no_cluster_has_decided_is_a_problem_and_no_denial(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(authorise, "MEMBER_WITHIN", timedelta(seconds=0.05))
    monkeypatch.setattr(authorise, "SHORT_WITHIN", timedelta(seconds=0.05))
    fleet: Any = _Fleet(hub=_Reviews(), eu1=_Reviews(), us1=_Reviews(hangs=True))
    decisions = Decisions(allow=timedelta(minutes=5), deny=timedelta(seconds=30))
    hub = HubAccess(hub=fleet.client("hub"), decisions=decisions)
    access = MemberAccess(hub=hub, clusters=fleet, decisions=decisions)
    right, user = Right("list", "core", "pods"), Caller("carl")

    some = await access.authorise(user, right, ["eu1", "us1"])
    assert (some, some.undecided) == ({"eu1"}, {"us1"})
    for _ in range(2):
        with pytest.raises(UndecidedProblem, match="us1"):
            await access.authorise(user, right, ["us1"])
    fleet.client("us1").hangs = False
    assert await access.authorise(user, right, ["us1"]) == {"us1"}
