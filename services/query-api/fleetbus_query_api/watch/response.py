"""Sends a watch to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetbus_query_api.limits.user_limits import release_capacity
from fleetbus_query_api.responses.render import FIXED_HEADERS
from fleetbus_query_api.watch.stream import OpenWatch

_DISCONNECT: Final = "http.disconnect"


class WatchResponse(Response):
    """A response that lasts as long as a watch; chunks wait while the connection is full.

    Args:
        watch: what to send.
        media_type: of the stream.
        headers: more of them.
    """

    def __init__(
        self, watch: OpenWatch, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(None, 200, {**FIXED_HEADERS, **(headers or {})}, media_type)
        del self.headers["content-length"]
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it until it ends, or the client has gone."""
        release_capacity(scope)
        leaving = asyncio.create_task(self._wait_for_leave(receive), name="watch-client")
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for chunk in self._watch:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._watch.finish()
            leaving.cancel()
            await asyncio.wait([leaving])

    async def _wait_for_leave(self, receive: Receive) -> None:
        while (await receive())["type"] != _DISCONNECT:
            pass
        self._watch.close()
