"""A connection to NATS that never gives up, with plain requests, messages and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn, cast

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.bus.addresses import split_addresses
from fleetbus.bus.login import LoginClient, TooOldError, describe_refusal, is_refusal
from fleetbus.bus.patches.advertised_servers import ConfiguredServersClient
from fleetbus.bus.patches.direct_publish import DirectPublishClient
from fleetbus.bus.patches.failed_reconnects import close_failed_attempt
from fleetbus.bus.patches.header_parsing import FastHeadersClient
from fleetbus.bus.patches.ordered_ping import OrderedPingClient
from fleetbus.bus.patches.tcp_transport import TcpTransportClient
from fleetbus.bus.patches.writelines import patch_writelines
from fleetbus.bus.refusals import Refusals
from fleetbus.errors import BusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.cancellation import cancel_and_wait, cancellable, patch_wait_for
from fleetbus.process.log_once import LogOnce

if TYPE_CHECKING:
    from fleetbus.process.health import Health

log = structlog.get_logger()

REQUEST_TIMEOUT: Final = timedelta(seconds=5)
_RECONNECT_WAIT: Final = 0.25
"""Seconds between two attempts to reach a server; a refused connection costs nothing."""


class NoAnswer(BusError):
    """No answer in time: the server may or may not have acted (rule B6)."""


class NoStream(BusError):
    """No responders: the stream or bucket does not exist (yet), or JetStream is down."""


class Bus:
    """A connection to NATS; created by `connected`.

    Attributes:
        nc: the client of nats-py, for subscriptions and pulls.
        disconnects: how often the connection was lost; each time the server may have lost the
            messages that it acknowledged last.
        refusals: ends what waits for a subject that the server refuses.
    """

    def __init__(self, nc: _Client, failure: asyncio.Future[BusError], inboxes: str) -> None:
        self.nc = nc
        self.disconnects = 0
        self.refusals = Refusals(inboxes)
        self._failure = failure
        self._online = asyncio.Event()
        self._trouble = "not connected yet"
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_disconnect: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected, as far as it knows."""
        return self._online.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether something is wrong that does not pass by itself; `failure` raises it."""
        return self._failure.done()

    @property
    def max_payload(self) -> int:
        """The largest message that this server takes, in bytes, headers included (rule B11)."""
        return self.nc.max_payload

    def trouble(self) -> str:
        """Why the client is not connected; empty while it is."""
        return "" if self.is_connected else self._trouble

    async def wait_connected(self) -> None:
        """Wait until the client is connected."""
        await self._online.wait()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each reconnect; the returned function ends that."""
        self._on_reconnect.append(callback)
        return lambda: self._on_reconnect.remove(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the connection is lost; the returned function ends that."""
        self._on_disconnect.append(callback)
        return lambda: self._on_disconnect.remove(callback)

    async def failure(self) -> NoReturn:
        """Wait for a failure that does not pass by itself: a forbidden subject (rule B13).

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
        """Send one request and return the answer.

        Raises:
            NoAnswer: none came in time, or the connection is down.
            NoStream: there are no responders on the subject.
            Refused: we have no right to the subject.
        """
        try:
            async with self.refusals.until_refused(subject):
                with cancellable():
                    return await self.nc.request(
                        subject, payload, timeout=within.total_seconds(), headers=headers
                    )
        except nats.errors.NoRespondersError as e:
            raise NoStream(f"no responders on {subject}") from e
        except nats.errors.Error as e:  # timeouts are errors of nats-py too
            raise NoAnswer(f"no answer on {subject}: {e or type(e).__name__}") from e

    async def publish(self, subject: str, body: bytes = b"", *, reply: str = "") -> None:
        """Send one message without an acknowledgement: a wake-up, or a request to an inbox.

        While the client reconnects the message is kept, and sent afterwards.

        Raises:
            BusError: it will not be sent: the connection is closed, or the buffer is full.
        """
        try:
            with cancellable():
                await self.nc.publish(subject, body, reply)
        except nats.errors.Error as e:
            raise BusError(f"cannot send to {subject}: {e or type(e).__name__}") from e

    def publish_directly(self, subject: str, body: bytes, *, reply: str = "") -> bool:
        """Send one message now, or not at all: it is never kept for a later connection.

        Args:
            subject: one of ours.
            body: at most `max_payload` bytes.
            reply: where answers go.

        Returns:
            Whether it was sent; it may be lost all the same.
        """
        return self.is_connected and self.nc.publish_directly(subject, body, reply)

    async def drained(self, limit: int) -> None:
        """Wait until at most about this many bytes are not sent yet.

        Args:
            limit: bytes; the same each time.
        """
        await self.nc.drained(limit)

    async def ping(self, within: timedelta) -> bool:
        """Ask the server for an answer; returns whether it came in time.

        The server sends in order, so what arrives after the answer was sent after the call.
        """
        return self.is_connected and await self.nc.ping(within.total_seconds())

    def mark_disconnected(self) -> None:
        """Note that the connection is lost, and run the callbacks."""
        self.disconnects += 1
        self._online.clear()
        self._trouble = "disconnected"
        for callback in tuple(self._on_disconnect):
            callback()

    def note_trouble(self, text: str) -> None:
        """Note why an attempt to connect has failed."""
        self._trouble = text

    def mark_connected(self, *, again: bool) -> None:
        """Note that the connection is there; after a reconnect, run the callbacks."""
        self._online.set()
        self.refusals.reset()
        if again:
            for callback in tuple(self._on_reconnect):
                callback()


class _Client(
    FastHeadersClient,
    DirectPublishClient,
    OrderedPingClient,
    ConfiguredServersClient,
    TcpTransportClient,
    LoginClient,
): ...


@asynccontextmanager
async def connected(
    access: NatsAccess | str, *, name: str, health: Health | None = None
) -> AsyncGenerator[Bus]:
    """Connect and check the server's version; wait for ever for a server that is down.

    Files with credentials are read at each attempt. While they are refused or unusable, or the
    server is too old, a service is not ready and tries again, with pauses of up to 5 s; a command,
    without `health`, fails.

    Args:
        access: the address and files to log in with; or only addresses, separated by commas.
        name: who we are, like `watcher.eu1`; also the prefix of our inbox, unless that is set.
        health: becomes not ready while there is no connection.

    Raises:
        BusError: without `health`: the server is too old, or we cannot log in.
    """
    if isinstance(access, str):
        access = NatsAccess(url=access)
    patch_wait_for()
    patch_writelines()
    failure: asyncio.Future[BusError] = asyncio.get_running_loop().create_future()
    nc = _Client()
    nc.access = access
    inboxes = access.inbox_prefix or f"_INBOX.{name}"
    bus = Bus(nc, failure, inboxes)
    address = access.shown
    callbacks = _Callbacks(
        bus, failure, name=name, inboxes=inboxes, access=access, is_patient=health is not None
    )
    if health is not None:
        health.ready_when("nats", bus.trouble)
    opening = asyncio.create_task(callbacks.connect(), name="nats-connect")
    try:
        await asyncio.wait([opening, failure], return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise failure.result()
        try:
            await opening
        except nats.errors.Error as e:
            # Not `from e`: its cause is a ValueError that quotes the address.
            raise BusError(f"NATS at {address}: {e}") from None
        bus.mark_connected(again=False)
        yield bus
    finally:
        try:
            await cancel_and_wait(opening)
        finally:
            await _close(nc)
            failure.cancel()


class _Callbacks:
    """The callbacks of nats-py's client for one connection.

    Args:
        bus: the connection.
        failure: set once for what does not pass by itself.
        name: the name of the connection.
        inboxes: the prefix of our inboxes.
        access: the address and what we log in with.
        is_patient: whether a first login that is refused is tried again.
    """

    def __init__(
        self,
        bus: Bus,
        failure: asyncio.Future[BusError],
        *,
        name: str,
        inboxes: str,
        access: NatsAccess,
        is_patient: bool,
    ) -> None:
        self._bus = bus
        self._failure = failure
        self._name = name
        self._inboxes = inboxes
        self._access = access
        self._address = access.shown
        self._is_patient = is_patient
        # The client retries four times a second, and each attempt is an error.
        self._log_once = LogOnce()

    async def connect(self) -> None:
        """Connect the client, and keep it connected."""
        await self._bus.nc.connect(
            split_addresses(self._access.url),
            name=self._name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_close,
            inbox_prefix=self._inboxes,
            max_reconnect_attempts=-1,  # the default gives up for good after two minutes
            reconnect_time_wait=cast("int", _RECONNECT_WAIT),  # only slept for and added to a time
            ping_interval=10,
        )

    async def _on_error(self, error: Exception) -> None:
        close_failed_attempt(self._bus.nc)
        text = str(error) or type(error).__name__
        if "permissions violation" in text.lower():
            # Otherwise the caller would only ever see timeouts (rule B13).
            refusal = f"refuses {self._name}: {error}"
            self._bus.refusals.note(text, self._error_text(refusal))
            self._fail(refusal)
            return
        if is_refusal(error):
            text = self._describe(error)
            if not self._is_patient and not self._was_connected:
                self._fail(text)
                return
        self._bus.note_trouble(text)
        if self._log_once.should_log(text):
            log.warning("nats_error", url=self._address, error=text)

    def _describe(self, error: Exception) -> str:
        if isinstance(error, TooOldError):
            return str(error)
        return f"refuses {self._name}: {describe_refusal(error, self._access)}"

    async def _on_disconnect(self) -> None:
        self._bus.mark_disconnected()
        if not self._bus.nc.is_closed:
            log.warning("nats_disconnected", url=self._address)

    async def _on_reconnect(self) -> None:
        self._bus.mark_connected(again=True)
        self._log_once.reset()
        log.info("nats_reconnected", url=self._address)

    @property
    def _was_connected(self) -> bool:
        return self._bus.is_connected or self._bus.disconnects > 0

    async def _on_close(self) -> None:
        self._bus.mark_disconnected()
        self._fail(f"closed the connection: {self._bus.nc.last_error or 'no reason'}")

    def _fail(self, text: str) -> None:
        if not self._failure.done():
            self._failure.set_result(BusError(self._error_text(text)))

    def _error_text(self, text: str) -> str:
        return f"NATS at {self._address} {text}"


async def _close(nc: Client) -> None:
    """Close within two seconds; a client without an address raises AssertionError."""
    with suppress(nats.errors.Error, OSError, TimeoutError, AssertionError):
        async with asyncio.timeout(2):
            await nc.close()


@asynccontextmanager
async def subscribed(
    bus: Bus, subject: str, on_message: Callable[[Msg], Awaitable[None]]
) -> AsyncGenerator[None]:
    """Subscribe to a subject for the duration of the block."""
    subscription = await bus.nc.subscribe(subject, cb=on_message)
    try:
        yield
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()
