"""A client that acts as somebody else."""

from __future__ import annotations

from aiohttp import web

from fleetbus.kube.acting import ActingClient
from fleetbus.kube.client import KubeClient
from fleetbus.kube.config import KubeConfig


async def test_only_the_acting_client_asks_in_the_name_of_the_user() -> None:
    users: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        users.append(request.headers.get("Impersonate-User"))
        return web.json_response({"kind": "ConfigMap", "metadata": {"name": "x"}})

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
            acting = ActingClient(client, "jane")
            await acting.get("v1/configmaps", "default", "x")
            await client.get("v1/configmaps", "default", "x")
    finally:
        await runner.cleanup()
    assert users == ["jane", None]
