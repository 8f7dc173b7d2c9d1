"""NATS: a connection that never gives up by itself, raw key-value access, owned streams.

Everything is done with plain requests, because a watcher's rights end at its own keys and
subjects (rule S3): the helpers of nats-py ask for stream information first and would fail.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn, cast

import nats.errors
import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.bus.half_made import drop_half_made
from fleetbus.bus.header_lines import QuickClient
from fleetbus.bus.trouble import TroubleLog
from fleetbus.bus.writelines import mend_writelines
from fleetbus.cancellation import cancellable, cure_wait_for, ended
from fleetbus.errors import BusError
from fleetbus.redact import without_secrets
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS

log = structlog.get_logger()

SERVER_FLOOR: Final = (2, 12)
"""Older servers accept newer fields and drop them in silence."""
API_LEVEL_FLOOR: Final = 2
REQUEST_TIMEOUT: Final = timedelta(seconds=5)
WRONG_LAST_SEQUENCE: Final = 10071
_RECONNECT_WAIT: Final = 0.25
"""Seconds between two attempts at a server that is away; a refused connection costs nothing."""
_NO_STREAM: Final = 10059
_OWNERSHIP_DOC: Final = "only its owner creates it, and nobody changes it at start"
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_SECOND_NS: Final = 1_000_000_000


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


async def check_jetstream(bus: Bus) -> None:
    """Check that JetStream is on and new enough; needs the right to `$JS.API.INFO`.

    Raises:
        BusError: it is not.
    """
    try:
        answer = await call_jetstream(bus, "INFO")
    except NoStream as e:
        raise BusError("JetStream is not enabled on this NATS server") from e
    level = int(answer.get("api", {}).get("level", 0))
    if level < API_LEVEL_FLOOR:
        raise BusError(f"the JetStream API level is {level}, {API_LEVEL_FLOOR} is needed")


# --- the key-value bucket ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, and the revision that a compare-and-set needs."""

    value: bytes
    revision: int


class KeyValue:
    """Raw access to a bucket of NATS: direct reads, compare-and-set writes.

    Every method raises NoStream when there is no bucket, NoAnswer when nothing is known.
    """

    def __init__(self, bus: Bus, bucket: str = KV_BUCKET) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def get(self, key: str) -> Entry | None:
        """The value of a key; None if it was never written, or deleted."""
        entry, is_deleted = await self._read(key)
        return None if is_deleted else entry

    async def put(self, key: str, value: bytes, *, ttl: str = "") -> int:
        """Write a key whatever it holds, for a time like `10m` or for ever; the revision."""
        written = await self._write(key, value, {"Nats-TTL": ttl} if ttl else {})
        if written is None:
            raise BusError(f"key {key!r}: an unconditional write was refused")
        return written

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Write a key that must still be at this revision, 0 if it must not exist; else None."""
        expected = "Nats-Expected-Last-Subject-Sequence"
        written = await self._write(key, value, {expected: str(revision)})
        if written is not None or revision:
            return written
        entry, is_deleted = await self._read(key)
        return await self.update(key, value, entry.revision) if entry and is_deleted else None

    async def delete(self, key: str) -> None:
        """Delete a key; it need not exist."""
        await self._write(key, b"", {"KV-Operation": "DEL"})

    @asynccontextmanager
    async def follow(self, prefix: str, wake: Callable[[str, bytes], None]) -> AsyncGenerator[None]:
        """Call `wake(key, value)` at each later write below a prefix, as long as it lasts.

        A token of the prefix may be `*`. A plain subscription: a write may be missed while
        disconnected, so read after a reconnect; it may be heard before the bucket holds it, and
        one that lost its compare-and-set is heard too.
        """

        async def on_message(message: Msg) -> None:
            wake(message.subject.removeprefix(self._prefix), message.data)

        async with subscribed(self._bus, self._prefix + below(prefix), on_message):
            yield

    async def _read(self, key: str) -> tuple[Entry | None, bool]:
        subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{_checked(key)}"
        message = await self._bus.request(subject)
        headers = message.headers or {}
        if headers.get("Status") == "404":
            return None, False
        if "Nats-Sequence" not in headers:
            raise BusError(f"key {key!r}: {headers.get('Description') or headers}")
        is_deleted = headers.get("KV-Operation") in ("DEL", "PURGE")
        return Entry(message.data, int(headers["Nats-Sequence"])), is_deleted

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> int | None:
        message = await self._bus.request(
            self._prefix + _checked(key), value, headers=headers or None
        )
        answer = cast("dict[str, Any]", orjson.loads(message.data))
        if "error" not in answer:
            return int(answer["seq"])
        if answer["error"].get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise BusError(f"key {key!r}: {answer['error'].get('description', answer['error'])}")


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


def below(prefix: str) -> str:
    """The filter for all keys below a prefix, of which a token may be `*`."""
    _checked(prefix.replace("*", "-"))
    return f"{prefix}.>"


def _checked(key: str) -> str:
    # B8: keys hold no object names; whatever else they hold must be readable by every client.
    if not _KEY.fullmatch(key):
        raise BusError(f"{key!r} is not a key of a NATS bucket")
    return key


# --- what its owner creates -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What an operator may choose about the stream of events."""

    max_bytes: int = 2 * 1024**3
    max_age: timedelta = timedelta(hours=24)
    replicas: int = 1


async def ensure_stream(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create the stream of events, or check that it is as it must be; answers its info (B12).

    Raises:
        BusError: it exists with another configuration; nothing is changed.
    """
    chosen = limits or StreamLimits()
    return await _ensure(
        bus,
        {
            "name": STREAM,
            "subjects": list(STREAM_SUBJECTS),
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": round(chosen.max_age.total_seconds() * _SECOND_NS),
            "max_bytes": chosen.max_bytes,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_consumers": -1,
            "duplicate_window": 120 * _SECOND_NS,
            "num_replicas": chosen.replicas,
            "deny_delete": True,
            "deny_purge": True,
            "allow_direct": True,
            "allow_msg_ttl": True,
        },
        allow_atomic=True,  # a stream that was made without does too (`fleetbus.bus.batch`)
    )


async def ensure_bucket(bus: Bus, *, replicas: int = 1) -> dict[str, Any]:
    """Create the key-value bucket, or check that it is as it must be (B12).

    Raises:
        BusError: it exists with another configuration; nothing is changed.
    """
    return await _ensure(
        bus,
        {
            "name": f"KV_{KV_BUCKET}",
            "subjects": [f"$KV.{KV_BUCKET}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_age": 0,
            "max_bytes": -1,
            "max_msgs": -1,
            "max_msgs_per_subject": 1,
            "max_consumers": -1,
            "duplicate_window": 120 * _SECOND_NS,
            "num_replicas": replicas,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": True,  # without it a direct read is answered "no responders"
            "allow_msg_ttl": True,
        },
    )


async def stream_info(bus: Bus, name: str = STREAM) -> dict[str, Any] | None:
    """What the server says about a stream; None if there is none."""
    try:
        return await call_jetstream(bus, f"STREAM.INFO.{name}")
    except ApiError as e:
        if e.code == _NO_STREAM:
            return None
        raise


class ApiError(BusError):
    """JetStream refused; `code` is its own error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


async def _ensure(bus: Bus, wanted: Mapping[str, Any], **at_creation: bool) -> dict[str, Any]:
    await check_jetstream(bus)
    name = str(wanted["name"])
    info = await stream_info(bus, name)
    if info is None:
        info = await call_jetstream(bus, f"STREAM.CREATE.{name}", {**wanted, **at_creation})
        log.info("stream_created", stream=name)
    check_echo(f"stream {name}", wanted, cast("dict[str, Any]", info["config"]))
    return info


def check_echo(what: str, wanted: Mapping[str, Any], echoed: Mapping[str, Any]) -> None:
    """Compare every field we asked for with what the server says it has.

    An old server drops fields that it does not know, and a stream that exists may be another.

    Raises:
        BusError: one differs; both values are in the message.
    """
    for field, value in wanted.items():
        # The server leaves out what is false, zero or empty.
        found = echoed.get(field, type(value)())
        if found != value:
            raise BusError(
                f"{what}: field {field} is {found!r}, and {value!r} is needed; {_OWNERSHIP_DOC}"
            )


async def call_jetstream(
    bus: Bus, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Call one method of the JetStream API, like `STREAM.INFO.<name>`.

    Raises:
        ApiError: the server refused.
    """
    payload = orjson.dumps(body) if body is not None else b""
    message = await bus.request(f"$JS.API.{path}", payload)
    answer = cast("dict[str, Any]", orjson.loads(message.data))
    if error := answer.get("error"):
        raise ApiError(
            f"JetStream refused {path}: {error.get('description', error)}",
            int(error.get("err_code", 0)),
        )
    return answer
