"""An API server with config maps of any bytes: a list that is given, and lines as they are said."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from fleetbus.kube.connection.config import KubeConfig

_RESOURCE: dict[str, Any] = {
    "name": "configmaps",
    "kind": "ConfigMap",
    "namespaced": True,
    "verbs": ["get", "list", "watch"],
}
_DOCUMENTS: dict[str, Any] = {
    "/version": {"gitVersion": "v1.34.0"},
    "/api/v1/namespaces/kube-system": {"metadata": {"name": "kube-system", "uid": "u"}},
    "/apis": {"groups": []},
    "/api/v1": {"resources": [_RESOURCE]},
}


class HostileServer:
    """An API server whose answers can be changed while it runs.

    Attributes:
        items: the objects of its list.
        version: the resourceVersion of its list.
        lists: how often the whole list was asked for.
        is_custom: write the list as custom resources are listed, with the version at its end.
    """

    def __init__(self, items: Sequence[bytes] = (), *, version: str = "100000") -> None:
        self.items = list(items)
        self.version = version
        self.lists = 0
        self.is_custom = False
        self._said: list[bytes] = []
        self._sent = 0
        """Number of events that a watch was sent; the next watch begins behind them."""
        self._more = asyncio.Event()
        self._is_over = False
        self._port = 0

    @property
    def config(self) -> KubeConfig:
        """Access to it."""
        url = f"http://127.0.0.1:{self._port}"
        document: dict[str, Any] = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": url}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": {"token": "canary-token"}}],
        }
        return KubeConfig(json.dumps(document))

    def say(self, *lines: bytes) -> None:
        """Send lines to every watch that is open, or to the next one.

        What is said into a connection that was just closed is lost; have it in `items` too, or say
        it until it is received. `version` should be past all that is said (W12).
        """
        self._said += lines
        self._wake()

    def _wake(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[HostileServer]:
        """Run it."""
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        try:
            yield self
        finally:
            self._is_over = True
            self._wake()
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/api/v1/configmaps":
            return web.json_response(_DOCUMENTS[request.path])
        if "watch" in request.query:
            return await self._watch(request)
        if request.query.get("limit") == "1":  # W12's probe
            return web.Response(body=self._list([]), content_type="application/json")
        self.lists += 1
        return web.Response(body=self._list(self.items), content_type="application/json")

    def _list(self, items: Sequence[bytes]) -> bytes:
        kind = b'"kind":"ConfigMapList","apiVersion":"v1"'
        metadata = f'"metadata":{{"resourceVersion":"{self.version}"}}'.encode()
        joined = b'"items":[' + b",".join(items) + b"]"
        parts = (joined, kind, metadata) if self.is_custom else (kind, metadata, joined)
        return b"{" + b",".join(parts) + b"}"

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        sent = self._sent
        with contextlib.suppress(ConnectionError):
            while not self._is_over:
                while sent < len(self._said):
                    await response.write(self._said[sent] + b"\n")
                    sent += 1
                    self._sent = max(self._sent, sent)
                await self._more.wait()
        return response
