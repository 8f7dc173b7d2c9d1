"""A client that acts as somebody else."""

from __future__ import annotations

import pytest
from aiohttp import web

from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.kube.impersonation import ActingClient, ServiceAccount
from support.rows import each_row


async def test_d16_only_the_acting_client_asks_in_the_name_of_the_user() -> None:
    users: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        users.append((name, request.headers.get("Impersonate-User")))
        return web.json_response({"kind": "ConfigMap", "metadata": {"name": name, "uid": "u"}})

    class Accepted:
        async def uid(self, name: str) -> str:
            assert name == "x"
            return "u"

        async def aliases(self, name: str) -> tuple[str, ...]:
            raise AssertionError(name)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        document = f"""{{
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{{"name": "x", "context": {{"cluster": "x", "user": "x"}}}}],
            "clusters": [{{"name": "x", "cluster": {{"server": "http://{host}:{port}"}}}}],
            "users": [{{"name": "x", "user": {{}}}}]
        }}"""
        async with KubeClient(KubeConfig(document)) as client:
            client.verify_identity(
                IdentityCheck("x", accepted=Accepted(), read=client.kube_system_uid)
            )
            acting = ActingClient(client, "jane")
            await acting.get("v1/configmaps", "default", "x")
            await client.get("v1/configmaps", "default", "x")
            assert await acting.discover("example.com/v1", "ConfigMap") is None
    finally:
        await runner.cleanup()
    # Whoever is acted for need not have the right to read which cluster it is (W13).
    looks = [(name, user) for name, user in users if name == "kube-system"]
    assert looks
    assert set(looks) == {("kube-system", None)}
    assert [user for name, user in users if name == "x"] == ["jane", None]
    # What discovery finds is shared by all users, so it is none of them that asks.
    assert {user for name, user in users if name == "v1"} == {None}


@each_row("text", ["", "a", "a/", "/a", "a/b/c", "A/b", "a/b\n", "a/../b", "a.b/c"])
def test_an_account_is_named_with_its_namespace(text: str) -> None:
    with pytest.raises(ConfigError, match="NAMESPACE/NAME"):
        ServiceAccount.parse(text)
    account = ServiceAccount.parse("shop/deployer.v1")
    assert (account.user, str(account)) == (
        "system:serviceaccount:shop:deployer.v1",
        "shop/deployer.v1",
    )
