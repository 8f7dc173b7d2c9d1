"""uvicorn as one loop among others: no signal handlers of its own, a clean end when cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from fleetbus.errors import ConfigError
from fleetbus_query_api.limits.gate import is_loopback
from fleetbus_query_api.limits.large_answers import ImpatientProtocol
from fleetbus_query_api.settings import QueryApiSettings

log = structlog.get_logger()

_BACKLOG: Final = 2048
_FINISH_WITHIN_SECONDS: Final = 3
_TICK_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.01


class _Server(uvicorn.Server):
    """Signals belong to the process; a stop takes as long as what is under way, no longer.

    uvicorn's own loop looks ten times a second whether it is to end, and its shutdown sleeps a
    tenth of a second for whatever there is: a fifth of a second at each stop, and an idle server
    that wakes ten times as often as it has something to do.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have `serve` end."""
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self.on_tick(0)  # the date of the answers' header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for closing in (*self.servers, *(sockets or ())):
            closing.close()
        state = self.server_state
        try:
            async with asyncio.timeout(_FINISH_WITHIN_SECONDS):
                while state.connections or state.tasks:
                    for connection in list(state.connections):
                        connection.shutdown()  # at once when it is idle, else after its answer
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            log.warning("requests_cut_off", requests=len(state.tasks))
            for task in state.tasks:
                task.cancel()


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
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.stop()
        await serving
        raise
