"""Runs uvicorn as one loop among others: without signal handlers, with a clean end on cancel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.process.loopback import is_loopback
from fleetbus.process.waiting import wait_until_usable
from fleetbus_query_api.limits.request_heads import GuardedProtocol
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.tls import ServerTls

log = structlog.get_logger()

_BACKLOG: Final = 2048
_FINISH_WITHIN: Final = timedelta(seconds=3)
_TICK_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01


class _Server(uvicorn.Server):
    """Leaves signals to the process, and stops as soon as pending requests are answered.

    The loop of uvicorn polls ten times a second whether it is to stop, and its shutdown sleeps for
    a tenth of a second each time: that costs a fifth of a second at each stop, and an idle server
    wakes ten times as often as it has something to do.
    """

    def __init__(self, config: uvicorn.Config, finish_within: timedelta) -> None:
        super().__init__(config)
        self._finish_within = finish_within.total_seconds()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Make `serve` end."""
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self.on_tick(0)  # updates the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for closing in (*self.servers, *(sockets or ())):
            closing.close()
        try:
            async with asyncio.timeout(self._finish_within):
                await self._finish_requests()
        except TimeoutError:
            tasks = self.server_state.tasks
            log.warning("requests_cancelled", requests=len(tasks))
            for task in tasks:
                task.cancel()

    async def _finish_requests(self) -> None:
        state = self.server_state
        while state.connections or state.tasks:
            for connection in list(state.connections):
                connection.shutdown()  # at once if it is idle, else after its answer
            await asyncio.sleep(_POLL_SECONDS)


def listen(settings: QueryApiSettings) -> socket.socket:
    """Open a listening socket, which queues connections until `serve` accepts them.

    Raises:
        ConfigError: the settings do not protect the address, or it cannot be bound.
    """
    _check_protection(settings)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (settings.host, settings.port), family=family, backlog=_BACKLOG
        )
    except OSError as e:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {e}") from e
    # asyncio does not set it on such sockets, and head and body are two writes.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    return listener


def _check_protection(settings: QueryApiSettings) -> None:
    """Refuse to show the fleet, or tokens, to whoever is on the network.

    Raises:
        ConfigError: a setting is missing, or contradicts another one.
    """
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise ConfigError(
            "settings FLEETBUS_QUERY_API_TLS_CERT_FILE and FLEETBUS_QUERY_API_TLS_KEY_FILE: "
            "one of them is set; set both or none"
        )
    if settings.tls_cert_file is not None and settings.tls_terminated:
        raise ConfigError(
            "setting FLEETBUS_QUERY_API_TLS_TERMINATED: a proxy speaks TLS, but "
            "FLEETBUS_QUERY_API_TLS_CERT_FILE is set, too; set one of them"
        )
    if is_loopback(settings.host):
        return
    where = f"setting FLEETBUS_QUERY_API_HOST: {settings.host!r} is not a loopback address"
    if settings.authentication == "none":
        raise ConfigError(
            f"{where}; with FLEETBUS_QUERY_API_AUTHENTICATION=none anybody could read the fleet: "
            "set it to token"
        )
    if settings.tls_cert_file is None and not settings.tls_terminated:
        raise ConfigError(
            f"{where}; tokens would be sent in clear text: set FLEETBUS_QUERY_API_TLS_CERT_FILE and"
            " FLEETBUS_QUERY_API_TLS_KEY_FILE, or FLEETBUS_QUERY_API_TLS_TERMINATED=true behind a"
            " proxy that speaks TLS"
        )


async def wait_for_tls(settings: QueryApiSettings, health: Health) -> ServerTls | None:
    """Load the certificate, and try again until it can be used; None to serve plain HTTP."""
    cert_file, key_file = settings.tls_cert_file, settings.tls_key_file
    if cert_file is None or key_file is None:
        return None

    async def attempt() -> ServerTls:
        return ServerTls(cert_file, key_file)

    return await wait_until_usable("tls", attempt, health=health, failures=ConfigError)


async def serve(
    app: FastAPI,
    listener: socket.socket,
    tls: ServerTls | None = None,
    *,
    on_stop: Callable[[], None],
    finish_within: timedelta = _FINISH_WITHIN,
) -> None:
    """Serve until cancelled; pending requests are answered first.

    Args:
        app: what to serve.
        listener: where.
        tls: None to serve plain HTTP.
        on_stop: is called when it is cancelled, to end answers that would last.
        finish_within: how long pending requests may take then.
    """
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client could invent its address, and have no limit
        log_config=None,
    )
    config.load()
    config.ssl = tls.context if tls is not None else None
    server = _Server(config, finish_within)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        on_stop()
        server.stop()
        await serving
        raise
