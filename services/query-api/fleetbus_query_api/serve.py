"""uvicorn as one loop among others: no signal handlers of its own, a clean end when cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from fastapi import FastAPI

from fleetbus.errors import ConfigError
from fleetbus_query_api.gate import is_loopback
from fleetbus_query_api.settings import QueryApiSettings

_BACKLOG: Final = 2048
_FINISH_WITHIN_SECONDS: Final = 3


class _Server(uvicorn.Server):
    """Signals belong to the process, not to the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(settings: QueryApiSettings) -> socket.socket:
    """A listening socket; connections wait in it until `serve` takes them.

    Raises:
        ConfigError: the address is not of this machine alone, or cannot be had.
    """
    if not is_loopback(settings.host):
        raise ConfigError(
            f"setting FLEETBUS_QUERY_API_HOST: {settings.host!r} is not a loopback address. This "
            "version asks nobody who they are, so it listens on loopback only"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (settings.host, settings.port), family=family, backlog=_BACKLOG
        )
    except OSError as e:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {e}") from e
    # asyncio leaves it off on sockets made like this one, and head and body are two writes.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    return listener


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until cancelled; requests under way are finished first."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=_FINISH_WITHIN_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
