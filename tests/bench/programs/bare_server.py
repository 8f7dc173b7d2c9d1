"""Constant answers by aiohttp's low-level server: what the transport costs by itself."""

from __future__ import annotations

import asyncio

import uvloop
from aiohttp import web

_HOST = "127.0.0.1"


class Bare:
    """Constant bytes: `/bytes/N` answers N of them, `/event/N` sends N to everyone at `/watch`."""

    def __init__(self) -> None:
        self._watches: set[web.StreamResponse] = set()
        self._constants: dict[int, bytes] = {}

    async def run(self) -> None:
        runner = web.ServerRunner(
            web.Server(self._answer, handler_cancellation=True, access_log=None)
        )
        await runner.setup()
        await web.TCPSite(runner, _HOST, 0, backlog=1024).start()
        print(f"http://{_HOST}:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        kind, _, size = http.path.strip("/").partition("/")
        await http.read()
        if kind == "watch":
            return await self._watch(http)
        constant = self._constants.setdefault(int(size), b"x" * (int(size) - 2) + b"}\n")
        if kind == "event":
            await asyncio.gather(*(watch.write(constant) for watch in self._watches))
            constant = constant[-2:]
        return web.Response(body=constant, headers={"Content-Type": "application/json"})

    async def _watch(self, http: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        self._watches.add(response)
        try:
            await asyncio.Event().wait()
        finally:
            self._watches.discard(response)
        return response


if __name__ == "__main__":
    uvloop.run(Bare().run())
