"""List and watch for ever: layered generators, one concern each.

    list_pages     one consistent list, page by page (fleetbus.kube.list_watch.listing)
    watch_events   one watch request, parsed; an ERROR event is raised
    follow         watches one after the other, from a resourceVersion, for ever
    reflect        list, then follow, then list again once the version has expired: for ever

Objects stay the bytes that the server sent (`msgspec.Raw`); `reflect` alone builds trees.
kubernetes_asyncio's own watch is not used: it resumes from synthetic events, retries a 410 at
the same version, knows no bookmarks and fails on long lines.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
import orjson

from fleetbus import errors
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.backoff import ApiBackoff, BackoffPolicy
from fleetbus.kube.connection.response import BrokenOff, Idle, Limits, Response
from fleetbus.kube.list_watch.listing import (
    DECODE_ERRORS,
    IDLE_TIMEOUT,
    ListPage,
    RawObject,
    WatchTarget,
    cut_off_error,
    list_pages,
    read_map,
    read_text,
)
from fleetbus.kube.list_watch.split import LINE_LIMIT, LineSplitter, cut_object
from fleetbus.kube.responses import invalid_response
from fleetbus_proto.versions import is_comparable

__all__ = [
    "ObjectChange",
    "ObjectList",
    "Observer",
    "WatchEvent",
    "WatchTarget",
    "WatchTimeouts",
    "WatchType",
    "follow",
    "read_deep_metadata",
    "reflect",
    "watch_events",
]

TOO_SHORT_SECONDS: Final = 1.0
"""A watch that ends sooner, without an event, has failed."""
_OVERTIME: Final = 1.1
"""A server may end a watch a little later than requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimeouts:
    """Time limits of a watch: its duration, and how long it may be idle (rule W11)."""

    open_timeout: timedelta = IDLE_TIMEOUT
    """For the server to accept the watch."""
    duration: timedelta = timedelta(minutes=5)
    """Sent as `timeoutSeconds`, with jitter up to twice as much, so that the watches of a cluster
    do not end together."""
    idle_timeout: timedelta | None = IDLE_TIMEOUT
    """After this long without data a new watch is opened. That is not a failure: a resource may be
    quiet, and some servers rarely send bookmarks. None if the caller checks the server itself."""


_TIMEOUTS: Final = WatchTimeouts()


class WatchType(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    UNREADABLE = "UNREADABLE"
    """A line of which not even the object's key can be read (rule W16); it has no object."""


_TYPES: Final = {kind.value: kind for kind in WatchType if kind is not WatchType.UNREADABLE}


@dataclass(slots=True)
class WatchEvent:
    """One line of a watch.

    `resource_version` is where a watch resumes after this event; a bookmark has nothing else.
    `object` is None if only its metadata could be read (rule W16).
    """

    type: WatchType
    object: RawObject | None
    metadata: RawObject
    resource_version: str


class _Line(msgspec.Struct):
    type: str
    object: RawObject


_line_decoder = msgspec.json.Decoder(_Line)
_tree_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks that report how a list-and-watch goes."""

    on_data: Callable[[], None] = lambda: None
    """Data was received."""
    on_failure: Callable[[errors.KubeError], None] = lambda _: None
    """An attempt failed; the next one follows after a pause."""
    on_open: Callable[[], None] = lambda: None
    """The server has accepted a watch; its first event may be long in coming."""


_UNOBSERVED: Final = Observer()


# --- one watch --------------------------------------------------------------------------------


async def watch_events(
    client: KubeClient,
    target: WatchTarget,
    resource_version: str,
    *,
    timeouts: WatchTimeouts = _TIMEOUTS,
    observer: Observer = _UNOBSERVED,
) -> AsyncGenerator[WatchEvent]:
    """Send one watch request; ends when the server ends it in order, or after a long silence.

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start: the version of a list, a bookmark or an event (rule W1).
        timeouts: how long the watch may last, and be idle.
        observer: called when the watch is open, and for each chunk received.

    Raises:
        Gone: the server no longer has this version.
        KubeError: any other refusal, as a response or as an ERROR event; or the stream broke.
    """
    splitter = LineSplitter(LINE_LIMIT)
    async with _open_watch(client, target, resource_version, timeouts) as response:
        observer.on_open()
        async for chunk in response.chunks():
            client.liveness.note()
            observer.on_data()
            for event in _read_events(splitter, chunk):
                yield event


@asynccontextmanager
async def _open_watch(
    client: KubeClient, target: WatchTarget, resource_version: str, timeouts: WatchTimeouts
) -> AsyncGenerator[Response]:
    """A watch that the server has accepted; the block ends quietly when it is idle for long."""
    response = await _request_watch(client, target, resource_version, timeouts)
    try:
        response.keep_alive()
        yield response
    except Idle:
        pass
    except BrokenOff as e:
        raise cut_off_error("watch", e, client) from e
    finally:
        response.close()


async def _request_watch(
    client: KubeClient, target: WatchTarget, resource_version: str, timeouts: WatchTimeouts
) -> Response:
    spread = 1 + random.random()  # noqa: S311 -- spreads load
    seconds = math.ceil(timeouts.duration.total_seconds() * spread)
    query = {
        **target.query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(seconds),
    }
    limits = Limits(
        # A proxy may hold a watch open although it has lost the server.
        total=timedelta(seconds=seconds * _OVERTIME),
        idle=timeouts.idle_timeout,
    )
    try:
        async with asyncio.timeout(timeouts.open_timeout.total_seconds()):
            return await client.stream(target.path, query=query, limits=limits)
    except TimeoutError as e:
        raise cut_off_error("watch", e, client) from e


def _read_events(splitter: LineSplitter, chunk: bytes) -> Iterator[WatchEvent]:
    """Yield the events that a chunk completes; an ERROR event is raised when it is reached."""
    dropped = splitter.too_long
    for line in splitter.feed(chunk):
        yield _read_line(line)
    for _ in range(splitter.too_long - dropped):
        yield _unreadable()


def _read_line(line: bytes) -> WatchEvent:
    try:
        return _parse_line(line, _line_decoder.decode(line))
    except (*DECODE_ERRORS, KeyError):
        return _read_broken_line(line)


def _parse_line(line: bytes, parsed: _Line) -> WatchEvent:
    if parsed.type == "ERROR":
        raise _error_of(line)
    return _event_of(parsed.type, parsed.object, read_map(parsed.object["metadata"]))


def _read_broken_line(line: bytes) -> WatchEvent:
    """Read at least the key of an object that is nested too deeply or invalid JSON (rule W16)."""
    try:
        parts = cut_object(line)
        if read_text(parts["type"]) == "ERROR":
            raise _error_of(line)
        return _event_of(read_text(parts["type"]), None, read_deep_metadata(parts["object"]))
    except (*DECODE_ERRORS, KeyError):
        return _unreadable()


def _event_of(kind: str, obj: RawObject | None, metadata: RawObject) -> WatchEvent:
    version = read_text(metadata["resourceVersion"])
    if not is_comparable(version):
        return _unreadable()  # a watch cannot resume there, and the event cannot be ordered (P2)
    return WatchEvent(_TYPES[kind], obj, metadata, version)


def read_deep_metadata(document: bytes) -> RawObject:
    """Read the metadata of an object that cannot be decoded as a whole.

    Raises:
        KeyError: it has none.
        msgspec.DecodeError: it is not a map.
    """
    return read_map(cut_object(document)["metadata"])


def _unreadable() -> WatchEvent:
    return WatchEvent(WatchType.UNREADABLE, None, {}, "")


def _error_of(line: bytes) -> errors.KubeError:
    """The error of an ERROR event; ignoring one would freeze the watch for ever."""
    try:
        status = cast("Object", orjson.loads(line)["object"])
    except orjson.JSONDecodeError:
        status = Object()
    code = status.get("code")
    return errors.from_status(code if isinstance(code, int) else 500, status)


# --- for ever ---------------------------------------------------------------------------------


async def follow(
    client: KubeClient,
    target: WatchTarget,
    resource_version: str,
    *,
    backoff: ApiBackoff,
    timeouts: WatchTimeouts = _TIMEOUTS,
    observer: Observer = _UNOBSERVED,
    before_open: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncGenerator[WatchEvent]:
    """Watch for ever from a resourceVersion, across reconnects, without a gap (rule W1).

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start.
        backoff: the delays after failures.
        timeouts: of each watch.
        observer: called for progress and failures.
        before_open: called with the version before each watch is opened; a KubeError counts as a
            failed attempt, any other exception ends the whole.

    Raises:
        Gone: the server no longer has the version: only a new list helps.
        NotFound: the server does not serve the type (any more).
    """
    version = resource_version
    while True:
        watch = watch_events(client, target, version, timeouts=timeouts, observer=observer)
        async with (
            _retrying(backoff, observer, fatal=(errors.Gone, errors.NotFound)),
            _attempt(version, before_open) as attempt,
            aclosing(watch),
        ):
            async for event in watch:
                attempt.has_event = True
                version = event.resource_version or version
                yield event


@asynccontextmanager
async def _retrying(
    backoff: ApiBackoff, observer: Observer, fatal: tuple[type[errors.KubeError], ...] = ()
) -> AsyncGenerator[None]:
    """Report a failure of the block and pause after it, for a loop around it."""
    try:
        yield
    except fatal:
        raise
    except errors.KubeError as e:
        observer.on_failure(e)
        await backoff.pause(e)


@dataclass(slots=True)
class _Attempt:
    has_event: bool = False


@asynccontextmanager
async def _attempt(
    version: str, before_open: Callable[[str], Awaitable[None]] | None
) -> AsyncGenerator[_Attempt]:
    """Refuse a watch that ends at once and empty: it would be requested in a hot loop (W19)."""
    loop = asyncio.get_running_loop()
    began, attempt = loop.time(), _Attempt()
    if before_open is not None:
        await before_open(version)
    yield attempt
    if not attempt.has_event and loop.time() - began < TOO_SHORT_SECONDS:
        raise invalid_response("the watch ended at once, without an event")


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects; it replaces what was known."""

    objects: list[Object]


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One change since the last list."""

    type: WatchType
    object: Object


async def reflect(
    client: KubeClient,
    target: WatchTarget,
    *,
    policy: BackoffPolicy | None = None,
    idle_timeout: timedelta = IDLE_TIMEOUT,
    observer: Observer = _UNOBSERVED,
) -> AsyncIterator[ObjectList | ObjectChange]:
    """List, then yield each change, for ever; a new `ObjectList` whenever the watch lost its place.

    Nothing is raised: while the server does not answer, or our credentials cannot be loaded,
    nothing is yielded and `observer` is called. Meant for a few thousand objects: a list is in
    memory as a whole.
    """
    backoff = ApiBackoff(policy)
    while True:
        changes = _reflect_once(client, target, backoff, idle_timeout, observer)
        async with _retrying(backoff, observer), _credentials(client), aclosing(changes):
            async for change in changes:
                yield change


@asynccontextmanager
async def _credentials(client: KubeClient) -> AsyncGenerator[None]:
    """Credentials that cannot be loaded may be repaired, as a server may come back."""
    try:
        yield
    except errors.ConfigError as e:
        unreachable = errors.Unreachable(0, "Unreachable", str(e))
        unreachable.cluster = client.cluster
        raise unreachable from e


async def _reflect_once(
    client: KubeClient,
    target: WatchTarget,
    backoff: ApiBackoff,
    idle_timeout: timedelta,
    observer: Observer,
) -> AsyncGenerator[ObjectList | ObjectChange]:
    objects, version = await _list_objects(client, target, idle_timeout)
    observer.on_data()
    yield ObjectList(objects)
    timeouts = WatchTimeouts(open_timeout=idle_timeout, idle_timeout=idle_timeout)
    events = follow(client, target, version, backoff=backoff, timeouts=timeouts, observer=observer)
    async with aclosing(events):
        async for event in events:
            if event.type is WatchType.BOOKMARK:
                continue
            if event.object is None:
                raise invalid_response("an event could not be read")
            yield ObjectChange(event.type, _tree(event.object))


async def _list_objects(
    client: KubeClient, target: WatchTarget, idle_timeout: timedelta
) -> tuple[list[Object], str]:
    objects: list[Object] = []
    version = ""
    async with aclosing(list_pages(client, target, idle_timeout=idle_timeout)) as pages:
        async for page in pages:
            version = page.resource_version
            objects += [_with_kind(_decoded(item), page) for item in page.items]
    return objects, version


def _with_kind(item: Object, page: ListPage) -> Object:
    item.setdefault("apiVersion", page.api_version)
    item.setdefault("kind", page.kind)
    return item


def _tree(raw: RawObject) -> Object:
    return {name: _decoded(value) for name, value in raw.items()}


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return _tree_decoder.decode(raw)
    except DECODE_ERRORS as e:
        raise invalid_response(f"an object cannot be read: {e}") from e
