"""Stops the work for an answer that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from fleetbus_query_api.responses.render import json_response

_CLIENT_CLOSED: Final = 499
"""Nobody receives it; the log has it."""


async def while_connected(
    request: Request, work: Coroutine[Any, Any, bytes | Sequence[bytes]]
) -> Response:
    """Answer with the JSON that the work returns; it is cancelled if the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return json_response(working.result())
        return Response(status_code=_CLIENT_CLOSED)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
