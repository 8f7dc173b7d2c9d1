"""The server: its port, who may ask, and how refusals look."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from fleetbus_emulator.apiserver.admin.documents import encode
from fleetbus_emulator.apiserver.admin.routes import Refusal, routes_of
from fleetbus_emulator.apiserver.faults import FieldError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from fleetbus_emulator.apiserver.http.server import ApiServers

LOOPBACK = "127.0.0.1"
SECONDS_TO_END = 0.05  # a request that follows the ground truth never ends; 0 would wait for it
LOOPBACK_NAMES = frozenset({LOOPBACK, "localhost", "[::1]"})

log = structlog.get_logger()


@asynccontextmanager
async def serve_admin(
    servers: ApiServers, *, port: int = 0, more: Iterable[web.RouteDef] = ()
) -> AsyncGenerator[str]:
    """Serve the admin endpoint of some clusters while the context lasts.

    Args:
        servers: Their listeners.
        port: The port; 0 takes a free one. Only this machine can connect.
        more: Further routes; they may raise Refusal and FieldError.

    Yields:
        The base URL.
    """
    app = web.Application(middlewares=[_answer_errors, _admit])
    app.add_routes([*routes_of(servers), *more])
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=SECONDS_TO_END
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, port, reuse_address=True).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@web.middleware
async def _admit(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a page in a browser sends; a program on this machine may do everything."""
    host = request.host.rpartition(":")[0] or request.host
    if host not in LOOPBACK_NAMES or "Origin" in request.headers:
        raise Refusal(HTTPStatus.FORBIDDEN, "only programs on this machine may ask")
    return await handler(request)


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except FieldError as error:
        document = {"error": str(error), "field": error.field}
        return web.json_response(document, status=HTTPStatus.BAD_REQUEST)
    except Refusal as refusal:
        document = {"error": str(refusal), **refusal.more}
        return web.json_response(body=encode(document), status=refusal.status)
    except web.HTTPException as error:
        return web.json_response({"error": f"{error.status} {error.reason}"}, status=error.status)
    except ConnectionError:
        raise
    except Exception:
        # The endpoint of a test tool must not hide a bug of its own, nor show its inside.
        log.exception("admin_request_failed", method=request.method, path=request.path)
        document = {"error": "a bug of the admin endpoint; its log has more"}
        return web.json_response(document, status=HTTPStatus.INTERNAL_SERVER_ERROR)
