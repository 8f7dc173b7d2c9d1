"""Pages of other sites change nothing, and without users the hub's kubeconfig counts (rule A7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetbus.errors import ConfigError, Unauthorized
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_query_api.membership.caller import as_caller
from support.rigs.membership import CLUSTERS, MembershipRig, kubeconfig, membership_rig
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis


@pytest.fixture
async def open_rig(
    redis: Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[MembershipRig]:
    """Nobody authenticates: the API uses the hub's kubeconfig, here an administrator's."""
    monkeypatch.setenv("FLEETBUS_ALLOW_LOOPBACK", "1")
    async with membership_rig(redis, valkey_url, tmp_path) as rig:
        token = "token-of-root"
        rig.api.hub.credentials.add_token(token, User("root", ("system:masters",)))
        rig.api.servers.write_kubeconfig(tmp_path / "kubeconfig", token)
        await rig.api.start(authentication="none")
        yield rig


async def test_t20_without_users_a_cluster_joins_and_leaves(open_rig: MembershipRig):
    joined = await open_rig.join("", "c3", open_rig.kubeconfig("eu1"))
    assert (joined.status_code, joined.json()) == (200, {"res": "join cluster successful"})
    assert open_rig.api.hub.get(CLUSTERS, None, "c3") is not None
    assert (await open_rig.join("", "c3", open_rig.kubeconfig("eu1"))).status_code == 409
    left = await open_rig.unjoin("", "c3")
    assert (left.status_code, left.json()) == (200, {"res": "unjoin cluster successful"})
    assert (await open_rig.unjoin("", "c3")).status_code == 404


@each_row(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
    ],
)
async def test_a7_a_page_of_another_site_changes_nothing(
    open_rig: MembershipRig, headers: dict[str, str], status: int
):
    await open_rig.join("", "c3", open_rig.kubeconfig("eu1"))
    before = open_rig.written()
    joined = await open_rig.join("", "c4", open_rig.kubeconfig("us1"), headers=headers)
    left = await open_rig.unjoin("", "c3", headers=headers)
    assert [joined.status_code, left.status_code] == [status, status]
    assert open_rig.written() == before


async def test_a7_a_page_of_the_api_itself_may(open_rig: MembershipRig):
    headers = {"Origin": open_rig.api.url, "Sec-Fetch-Site": "same-origin"}
    assert (await open_rig.join("", "c3", open_rig.kubeconfig("eu1"), headers=headers)).is_success
    assert (await open_rig.unjoin("", "c3", headers=headers)).is_success


async def test_a7_only_these_two_requests_write(open_rig: MembershipRig):
    for path, allowed in (("/v1/join", "POST"), ("/v1/unjoin", "DELETE")):
        for verb in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} - {allowed}:
            answer = await open_rig.api.client.request(verb, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed), (verb, path)
    for path in ("/v1/join/", "/v1//join", "/v1/joins", "/fleet/v1/join"):
        assert (await open_rig.api.client.post(path)).status_code == 405, path
    # The path is compared as it is routed.
    encoded = await open_rig.api.client.post("/v1/%6aoin")
    assert encoded.status_code == 400
    assert open_rig.written() == []


async def test_a7_the_certificate_of_our_kubeconfig_never_comes_with_the_token_of_a_caller(
    tmp_path: Path,
):
    """An API server believes a certificate first: the caller would be us."""
    hub = Cluster("hub", authorize="rbac", tokens={"good": "ann"})
    async with serve([hub], tls=True) as servers:
        path = tmp_path / "kubeconfig"
        servers.write_kubeconfig(path, user=User("root", ("system:masters",)))
        own_config = read_kube_config(path)
        async with KubeClient(own_config) as client:
            assert await client.list("v1/secrets") is not None
        async with KubeClient(as_caller(own_config, "bad")) as client:
            for _ in range(2):  # also after the 401 has made it look for other credentials
                with pytest.raises(Unauthorized):
                    await client.list("v1/secrets")
    assert {each.status for each in hub.requests if each.path.endswith("/secrets")} == {200, 401}


def test_a7_the_token_of_a_caller_is_not_sent_where_others_could_read_it():
    plain = KubeConfig(kubeconfig("http://hub.example", token="t"), own=True, http=True)
    with pytest.raises(ConfigError, match="verified TLS"):
        as_caller(plain, "token")
    text = kubeconfig("https://hub.example", token="t").replace(
        '"server"', '"insecure-skip-tls-verify": true, "server"'
    )
    with pytest.raises(ConfigError, match="verified TLS"):
        as_caller(KubeConfig(text, own=True), "token")


def test_a7_in_a_pod_the_hub_is_that_of_the_pod(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    caller = as_caller(None, "token")
    assert '"server": "https://[fd00::1]:443"' in caller.document
    assert "serviceaccount/ca.crt" in caller.document
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ConfigError, match="no pod"):
        as_caller(None, "token")
