"""Tokens of the accounts on members are renewed before they expire (rules S7, W19)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from fleetbus.clusters.account_tokens import access_data
from fleetbus.clusters.member_rights import NAMESPACE, WATCHER, WRITER
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import Unauthorized
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.process.access.tokens import read_expiry
from fleetbus_cli.bootstrap.enroll import enroll
from fleetbus_cli.bootstrap.options import BootstrapOptions
from fleetbus_emulator.apiserver import Fail, User
from fleetbus_reconciler.fleet_status.token_renewal import TokenRenewal
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Rule
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet

ADMIN = "admin-token-of-the-test"
PLACES = {WRITER: ("fleetbus-clusters", "eu1-kubeconfig"), WATCHER: ("fleetbus", "eu1-watcher")}
LIFETIME = timedelta(hours=1)

pytestmark = pytest.mark.fleet(
    ["hub", "eu1"],
    workloads=False,
    tokens={ADMIN: User("root", ("system:masters",))},
    authorize="rbac",
)


@dataclass
class Rig:
    """A hub and a member that joined with limited accounts."""

    fleet: EmulatedFleet
    config: KubeConfig
    client: KubeClient
    clusters: Clusters

    @property
    def hub(self) -> EmulatedCluster:
        return self.fleet["hub"]

    def renewal(self, later: timedelta = timedelta(), **options: Any) -> TokenRenewal:
        """One projector's part, whose clock shows so much more."""
        return TokenRenewal(
            hub=self.config,
            clusters=self.clusters,
            namespace="fleetbus-clusters",
            watcher_secrets=["/".join(PLACES[WATCHER])],
            now=lambda: time.time() + later.total_seconds(),
            apart=timedelta(),
            **options,
        )

    def tokens(self) -> dict[str, str]:
        return {
            account: token_in(self.hub.get("v1/secrets", *PLACES[account])) for account in PLACES
        }


def token_in(secret: dict[str, Any] | None) -> str:
    assert secret is not None
    document = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    return str(document["users"][0]["user"]["token"])


@asynccontextmanager
async def _running(clusters: Clusters) -> AsyncGenerator[None]:
    task = asyncio.create_task(clusters.run(), name="clusters")
    try:
        await clusters.known()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def rig(fleet: EmulatedFleet) -> AsyncGenerator[Rig]:
    for definition in crds():
        fleet["hub"].create(CRDS, definition)
    for name in ("fleetbus-clusters", "fleetbus"):
        fleet["hub"].create("v1/namespaces", {"metadata": {"name": name}})
    config = read_kube_config(fleet.kubeconfig, "hub")
    async with KubeClient(config) as client:
        admin = read_kube_config(fleet.kubeconfig, "eu1")
        options = BootstrapOptions(watched=["pods"], lifetime=LIFETIME)
        await enroll(client, "eu1", admin, options)
        clusters = Clusters([ClusterProvider(config, "fleetbus-clusters")])
        async with _running(clusters):
            yield Rig(fleet, config, client, clusters)


def outcomes(account: str = WRITER) -> dict[str, float]:
    name = "fleetbus_member_token_renewals_total"
    return {
        outcome: REGISTRY.get_sample_value(
            name, {"cluster": "eu1", "account": account, "outcome": outcome}
        )
        or 0
        for outcome in ("renewed", "failed", "superseded")
    }


async def uid_with(rig: Rig, token: str) -> str:
    """Which cluster answers to a token."""
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": rig.fleet["eu1"].url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    async with KubeClient(KubeConfig(json.dumps(document), http=True)) as client:
        return await client.kube_system_uid()


async def test_w19_a_token_is_renewed_after_half_of_its_life(rig: Rig):
    before = rig.tokens()
    await rig.renewal(LIFETIME * 0.4).renew_all(rig.client)
    assert rig.tokens() == before
    await rig.renewal(LIFETIME * 0.6).renew_all(rig.client)
    after = rig.tokens()
    assert not before.items() & after.items()
    for token in after.values():
        assert await uid_with(rig, token)
    left = REGISTRY.get_sample_value(
        "fleetbus_member_token_left_ratio", {"cluster": "eu1", "account": WRITER}
    )
    assert left == pytest.approx(0.4, abs=0.01)


async def test_two_projectors_renew_a_token_once(rig: Rig):
    before, old = outcomes(), rig.tokens()
    for place in PLACES.values():  # the new tokens are not due yet, whoever looks at them
        marks = {"fleetbus.dev/token-lifetime": str(36_000)}
        rig.hub.patch("v1/secrets", *place, {"metadata": {"annotations": marks}})
    both = [rig.renewal(LIFETIME * 0.6).renew_all(rig.client) for _ in range(2)]
    await asyncio.gather(*both)
    differences = {outcome: count - before[outcome] for outcome, count in outcomes().items()}
    assert differences == {"renewed": 1, "failed": 0, "superseded": 1}
    assert await uid_with(rig, rig.tokens()[WRITER])
    assert rig.tokens()[WRITER] != old[WRITER]


async def test_a_failed_renewal_is_counted_and_tried_again_later(
    rig: Rig,
    fault: Callable[..., Rule],
    capfd: pytest.CaptureFixture[str],
):
    before, old = outcomes(), rig.tokens()
    broken = fault("eu1", Fail(503), resource="serviceaccounts", subresource="token")
    renewal = rig.renewal(LIFETIME * 0.6)
    await renewal.renew_all(rig.client)
    await renewal.renew_all(rig.client)  # too early
    assert outcomes()["failed"] == before["failed"] + 1
    assert rig.tokens() == old
    broken.remove()
    again = rig.renewal(LIFETIME * 0.6, backoff_first=timedelta())
    await again.renew_all(rig.client)
    assert rig.tokens()[WRITER] != old[WRITER]
    printed = "".join(capfd.readouterr())
    assert not [token for token in (*old.values(), *rig.tokens().values()) if token in printed]


async def test_a_revoked_token_says_what_to_do(rig: Rig, capfd: pytest.CaptureFixture[str]):
    rig.fleet["eu1"].delete("v1/serviceaccounts", NAMESPACE, WRITER)
    old = rig.tokens()
    await rig.renewal(LIFETIME * 0.6).renew_all(rig.client)
    assert rig.tokens()[WRITER] == old[WRITER]
    assert rig.tokens()[WATCHER] != old[WATCHER]  # the other account is not affected
    output = "".join(capfd.readouterr())
    assert "member_token_not_renewed" in output
    assert "fleetbus join eu1 --bootstrap" in output


async def test_w13_no_token_is_taken_from_another_cluster(rig: Rig):
    clusters = "fleetbus.dev/v1alpha1/clusters"
    cluster_object = rig.hub.get(clusters, None, "eu1") or {}
    rig.hub.update_status(clusters, {**cluster_object, "status": {"uid": "another"}})
    fresh = Clusters([ClusterProvider(rig.config, "fleetbus-clusters")])
    async with _running(fresh):
        old = rig.tokens()
        rig.clusters = fresh
        await rig.renewal(LIFETIME * 0.6).renew_all(rig.client)
    assert rig.tokens() == old


async def test_secrets_that_no_join_wrote_are_left_alone(rig: Rig):
    token = rig.tokens()[WRITER]
    for marks in ({}, {"fleetbus.dev/token-lifetime": "soon"}):
        metadata: dict[str, Any] = {
            "name": f"own-{len(marks)}",
            "namespace": "fleetbus-clusters",
            "labels": {"fleetbus.dev/kubeconfig": "true"},
            "annotations": marks,
        }
        data = access_data({"server": rig.fleet["eu1"].url}, token)
        rig.hub.create("v1/secrets", {"metadata": metadata, "data": data})
    await rig.renewal(LIFETIME * 0.6).renew_all(rig.client)
    for number in (0, 1):
        assert token_in(rig.hub.get("v1/secrets", "fleetbus-clusters", f"own-{number}")) == token


async def test_a_running_client_goes_on_with_the_new_token(rig: Rig):
    client = rig.clusters.client("eu1")
    uid = await client.kube_system_uid()
    old = rig.tokens()[WRITER]
    await rig.renewal(LIFETIME * 0.6).renew_all(rig.client)
    requests = [r for r in rig.fleet["eu1"].requests if r.path.endswith("/token")]
    assert len(requests) == 4  # two of the join, two renewals
    await eventually(lambda: old not in _document(rig))
    assert await client.kube_system_uid() == uid
    assert rig.clusters.client("eu1") is client


def _document(rig: Rig) -> str:
    info = rig.clusters.get("eu1")
    assert info is not None
    assert info.config is not None
    return info.config.document


async def test_an_expired_token_is_said_to_be_expired(rig: Rig):
    issue = rig.fleet["eu1"].credentials.account_token
    token = issue(NAMESPACE, WRITER, lifetime=timedelta(minutes=-5))
    assert (read_expiry(token) or 0) < time.time()
    with pytest.raises(Unauthorized, match=r"the token expired at .*fleetbus join --bootstrap"):
        await uid_with(rig, token)


class HostileMember:
    """Answers requests for tokens with what it likes, and has the UID of the accepted cluster."""

    def __init__(self, uid: str) -> None:
        self.answer = b""
        self.asked = 0
        self._uid = uid

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"metadata": {"name": "kube-system", "uid": self._uid}})
        self.asked += 1
        return web.Response(status=201, body=self.answer, content_type="application/json")

    def issue(self, token: object) -> None:
        self.answer = json.dumps({"status": {"token": token}}).encode()

    @asynccontextmanager
    async def at(self) -> AsyncGenerator[str]:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def jwt(begins: float, ends: float, *, head: str = "e30", signature: str = "c2ln") -> str:
    """A token whose times are so many seconds from now."""
    claims = {"iat": time.time() + begins, "exp": time.time() + ends}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def lead_to(rig: Rig, place: tuple[str, str], server: str) -> None:
    """Let a kubeconfig Secret name another server."""
    secret = rig.hub.get("v1/secrets", *place) or {}
    document = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    document["clusters"][0]["cluster"] = {"server": server}
    text = base64.b64encode(json.dumps(document).encode()).decode()
    rig.hub.patch("v1/secrets", *place, {"data": {"kubeconfig": text}})


async def test_s7_what_a_hostile_member_answers_is_not_written_and_stalls_no_other(rig: Rig):
    hour = LIFETIME.total_seconds()
    member = HostileMember(await uid_with(rig, rig.tokens()[WRITER]))
    answers: dict[str, object] = {
        "a header of its own": jwt(0, hour, head="a\r\nx-evil: b"),
        "huge": jwt(0, hour, signature="s" * 300_000),
        "in the past": jwt(-2 * hour, -hour),
        "before all dates": jwt(0, -1e300),
        "after all dates": jwt(-1e301, 1e300),
        "no string": 7,
    }
    async with member.at() as server:
        lead_to(rig, PLACES[WATCHER], server)
        for name, token in answers.items():
            member.issue(token)
            await _is_refused(rig, member, name)
        member.answer = b"[" * 10_000
        await _is_refused(rig, member, "deep")
        member.answer = b" " * 100_000_000
        await _is_refused(rig, member, "endless")


async def _is_refused(rig: Rig, member: HostileMember, name: str) -> None:
    before, failed, count = rig.tokens(), outcomes(WATCHER)["failed"], member.asked
    renewal = rig.renewal(LIFETIME * 0.6)
    for _ in range(2):  # the second time is too early for the hostile one
        await renewal.renew_all(rig.client)
    assert rig.tokens()[WATCHER] == before[WATCHER], name
    assert rig.tokens()[WRITER] != before[WRITER], name
    assert (outcomes(WATCHER)["failed"], member.asked) == (failed + 1, count + 1), name


async def test_s7_a_member_whose_tokens_are_due_at_once_does_not_keep_the_hub_writing(rig: Rig):
    member = HostileMember(await uid_with(rig, rig.tokens()[WRITER]))
    hour = LIFETIME.total_seconds()
    async with member.at() as server:
        lead_to(rig, PLACES[WATCHER], server)
        member.issue(token := jwt(-9 * hour, 2 * hour))
        renewal = rig.renewal(LIFETIME * 0.6)
        for _ in range(3):
            await renewal.renew_all(rig.client)
    assert member.asked == 1
    assert rig.tokens()[WATCHER] == token, "it is valid for longer than the one before"
