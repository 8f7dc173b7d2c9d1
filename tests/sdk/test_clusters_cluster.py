"""Provider `cluster` against a hub that answers what no API server should."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from fleetbus.clusters.cluster import ClusterProvider
from fleetbus.kube_config import KubeConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def _hub(items: list[dict[str, Any]]) -> AsyncGenerator[KubeConfig]:
    """A hub that lists the same items whatever it is asked for, and never ends a watch."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.Event().wait()
        listed = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
        return web.json_response({**listed, "items": items})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        yield KubeConfig(
            json.dumps(
                {
                    "current-context": "hub",
                    "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
                    "clusters": [
                        {"name": "hub", "cluster": {"server": f"http://127.0.0.1:{port}"}}
                    ],
                    "users": [{"name": "me", "user": {}}],
                }
            )
        )
    finally:
        await runner.cleanup()


async def test_what_the_provider_cannot_read_ends_it_instead_of_silencing_it():
    nameless = {"metadata": {"resourceVersion": "1"}}
    async with _hub([nameless]) as hub, aclosing(ClusterProvider(hub).cluster_sets()) as sets:
        with pytest.raises(KeyError, match="name"):
            async with asyncio.timeout(5):
                await anext(sets)
