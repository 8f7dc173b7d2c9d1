"""NATS: a connection that never gives up by itself, and plain requests and subscriptions on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, NoReturn, cast

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.bus.error_log import TroubleLog
from fleetbus.bus.patches.header_parsing import QuickClient
from fleetbus.bus.patches.reconnect_tasks import drop_half_made
from fleetbus.bus.patches.writelines import mend_writelines
from fleetbus.errors import BusError
from fleetbus.process.cancellation import cancellable, cure_wait_for, ended
from fleetbus.process.redact import without_secrets

log = structlog.get_logger()

SERVER_FLOOR: Final = (2, 12)
"""Older servers accept newer fields and drop them in silence."""
REQUEST_TIMEOUT: Final = timedelta(seconds=5)
_RECONNECT_WAIT: Final = 0.25
"""Seconds between two attempts at a server that is away; a refused connection costs nothing."""


class NoAnswer(BusError):
    """No answer in time: nothing is known about what the server did (rule B6)."""


class NoStream(BusError):
    """Nobody listens there: the stream or bucket does not exist (yet), or JetStream is down."""


class Bus:
    """A connection to NATS; make it with `connected`.

    Attributes:
        nc: the client of nats-py, for subscriptions and pulls.
        disconnects: how often the connection was lost; each time the server may have lost
            what it acknowledged last.
    """

    def __init__(self, nc: Client, failure: asyncio.Future[BusError]) -> None:
        self.nc = nc
        self.disconnects = 0
        self._failure = failure
        self._online = asyncio.Event()
        self._on_reconnect: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        """Whether the server can be reached, as far as we know."""
        return self._online.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether something is wrong that waiting does not cure; `failure` says what."""
        return self._failure.done()

    @property
    def max_payload(self) -> int:
        """The largest message of this server in bytes, headers included (rule B11)."""
        return self.nc.max_payload

    async def wait_connected(self) -> None:
        """Wait until the server can be reached."""
        await self._online.wait()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this after each reconnect, until the answer is called."""
        self._on_reconnect.append(callback)
        return lambda: self._on_reconnect.remove(callback)

    async def failure(self) -> NoReturn:
        """Wait for what waiting does not cure: refused credentials, a forbidden subject (B13).

        Raises:
            BusError: always, at the end.
        """
        raise await asyncio.shield(self._failure)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        within: timedelta = REQUEST_TIMEOUT,
    ) -> Msg:
        """Ask once.

        Raises:
            NoAnswer: not in time, or the connection is down.
            NoStream: nobody listens on the subject.
        """
        try:
            with cancellable():
                return await self.nc.request(
                    subject, payload, timeout=within.total_seconds(), headers=headers
                )
        except nats.errors.NoRespondersError as e:
            raise NoStream(f"nobody answers on {subject}") from e
        except nats.errors.Error as e:  # timeouts are errors of nats-py too
            raise NoAnswer(f"no answer on {subject}: {e or type(e).__name__}") from e

    def went_offline(self) -> None:
        """The connection is lost; for the callbacks of `connected`."""
        self.disconnects += 1
        self._online.clear()

    def came_online(self, *, again: bool) -> None:
        """The connection is there; for the callbacks of `connected`."""
        self._online.set()
        if again:
            for callback in tuple(self._on_reconnect):
                callback()


@asynccontextmanager
async def connected(url: str, *, name: str) -> AsyncGenerator[Bus]:
    """Connect, and check the server's version; waits for ever for a server that is down.

    Args:
        url: one address, or several separated by commas.
        name: who we are, like `watcher.eu1`; also the prefix of our inbox.

    Raises:
        BusError: the server is too old, or refuses our credentials.
    """
    cure_wait_for()
    mend_writelines()
    failure: asyncio.Future[BusError] = asyncio.get_running_loop().create_future()
    nc = QuickClient()
    bus = Bus(nc, failure)
    shown = without_secrets(url)
    opening = asyncio.create_task(_open(bus, url, name, failure), name="nats-connect")
    try:
        await asyncio.wait([opening, failure], return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise failure.result()
        try:
            await opening
        except nats.errors.Error as e:
            # Not `from e`: behind it is a ValueError that quotes the address.
            raise BusError(f"NATS at {shown}: {e}") from None
        _check_server(nc)
        bus.came_online(again=False)
        yield bus
    finally:
        try:
            await ended(opening)
        finally:
            await _close(nc)
            failure.cancel()


async def _open(bus: Bus, url: str, name: str, failure: asyncio.Future[BusError]) -> None:
    trouble = TroubleLog(shown := without_secrets(url))

    def fail(error: BusError) -> None:
        if not failure.done():
            failure.set_result(error)

    async def on_error(error: Exception) -> None:
        drop_half_made(bus.nc)
        text = str(error).lower()
        if "permissions violation" in text or "authorization" in text:
            # The caller would only ever see timeouts (B13).
            fail(BusError(f"NATS at {shown} refuses {name}: {error}"))
        else:
            trouble.tell(error)

    async def on_disconnect() -> None:
        bus.went_offline()
        if not bus.nc.is_closed:
            log.warning("nats_disconnected", url=shown)

    async def on_reconnect() -> None:
        bus.came_online(again=True)
        trouble.is_over()
        log.info("nats_reconnected", url=shown)

    async def on_close() -> None:
        bus.went_offline()
        fail(BusError(f"NATS at {shown} closed the connection: {bus.nc.last_error or 'no reason'}"))

    await bus.nc.connect(
        url.split(","),
        name=name,
        error_cb=on_error,
        disconnected_cb=on_disconnect,
        reconnected_cb=on_reconnect,
        closed_cb=on_close,
        inbox_prefix=f"_INBOX.{name}",
        max_reconnect_attempts=-1,  # the default gives up after two minutes, for ever
        reconnect_time_wait=cast("int", _RECONNECT_WAIT),  # it is slept for and added to a time
        ping_interval=10,
    )


async def _close(nc: Client) -> None:
    """Close within a bounded time, also a client that never got an address (AssertionError)."""
    with suppress(nats.errors.Error, OSError, TimeoutError, AssertionError):
        async with asyncio.timeout(2):
            await nc.close()


def _check_server(nc: Client) -> None:
    version = nc.connected_server_version
    if (version.major, version.minor) < SERVER_FLOOR:
        floor = ".".join(map(str, SERVER_FLOOR))
        raise BusError(
            f"nats-server {version.major}.{version.minor} is too old, {floor} is needed:"
            " it would ignore settings in silence"
        )


@asynccontextmanager
async def subscribed(
    bus: Bus, subject: str, on_message: Callable[[Msg], Awaitable[None]]
) -> AsyncGenerator[None]:
    """Hear a subject as long as the block lasts."""
    subscription = await bus.nc.subscribe(subject, cb=on_message)
    try:
        yield
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()
