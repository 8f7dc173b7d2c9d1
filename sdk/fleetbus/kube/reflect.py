"""List and watch for ever: layered generators, one concern each.

    list_pages     one consistent list, page by page (fleetbus.listing)
    watch_events   one watch request, parsed; what the server reports as ERROR is raised
    follow         watches one after the other, from a resourceVersion, for ever
    reflect        list, then follow, then list again when the server has forgotten: for ever

Objects stay the bytes that the server sent (`msgspec.Raw`); `reflect` alone builds trees.
kubernetes_asyncio's own watch is not used: it resumes from synthetic events, retries a 410 at
the same version, knows no bookmarks and fails on long lines.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, cast

import aiohttp
import msgspec
import orjson

from fleetbus import errors
from fleetbus.kube.client import CONNECT_TIMEOUT, KubeClient, Object
from fleetbus.kube.connection.backoff import Backoff, BackoffPolicy
from fleetbus.kube.listing import (
    SILENCE,
    UNREADABLE,
    Page,
    RawObject,
    Target,
    list_pages,
    read_map,
    read_text,
    was_cut,
)
from fleetbus.kube.responses import in_doubt
from fleetbus.kube.split import LINE_LIMIT, LineSplitter, cut_object
from fleetbus_proto.versions import is_comparable

__all__ = [
    "Changed",
    "Listed",
    "Observer",
    "Target",
    "WatchEvent",
    "WatchTimes",
    "WatchType",
    "follow",
    "read_deep_metadata",
    "reflect",
    "watch_events",
]

_TOO_SHORT_SECONDS: Final = 1.0
_OVERTIME: Final = 1.1
"""A server may end a watch a little later than it was asked to."""
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A peer that is gone without a word is noticed after 30 s; the system's own default is 2 hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """How long one watch request may take, and how quiet it may be (rule W11)."""

    opens_within: timedelta = SILENCE
    """A server that has not accepted the watch by then does not answer."""
    lasts: timedelta = timedelta(minutes=5)
    """What is asked for as `timeoutSeconds`, by chance up to twice as much, so that the watches of
    a cluster do not end together."""
    silence: timedelta | None = SILENCE
    """Without a byte for so long a watch is opened anew, which is no failure: a resource may be
    quiet, and some servers send bookmarks seldom. None for a caller that asks the server itself."""


_TIMES: Final = WatchTimes()


class WatchType(StrEnum):
    """What a watch event says."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    UNREADABLE = "UNREADABLE"
    """A line of which not even the key can be read (rule W16); it has no object."""


_TYPES: Final = {kind.value: kind for kind in WatchType if kind is not WatchType.UNREADABLE}


@dataclass(slots=True)
class WatchEvent:
    """One line of a watch.

    `resource_version` is where a watch resumes after this event; a bookmark has nothing else.
    `object` is None when only its metadata could be read (W16).
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


# --- one watch --------------------------------------------------------------------------------


async def watch_events(
    client: KubeClient,
    target: Target,
    resource_version: str,
    *,
    times: WatchTimes = _TIMES,
    heard: Callable[[], None] = lambda: None,
    opened: Callable[[], None] = lambda: None,
) -> AsyncGenerator[WatchEvent]:
    """One watch request; ends when the server ends it in good order, or has been silent for long.

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start: of a list, a bookmark or an event in order (W1).
        times: how long it may last, and be silent.
        heard: called for each chunk that comes.
        opened: called when the server has accepted the watch.

    Raises:
        Gone: the server no longer has this version.
        KubeError: any other refusal, as an answer or as an ERROR event; or the stream broke.
    """
    seconds = math.ceil(times.lasts.total_seconds() * (1 + random.random()))  # noqa: S311 -- spreads load
    query = {
        **target.query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(seconds),
    }
    response = await _open_watch(client, target, query, times, seconds)
    opened()
    _keep_alive(response)
    splitter = LineSplitter(LINE_LIMIT)
    try:
        async for chunk in response.content.iter_any():
            client.liveness.note()
            heard()
            dropped = splitter.too_long
            for line in splitter.feed(chunk):
                yield _read_line(line)
            for _ in range(splitter.too_long - dropped):
                yield _unreadable()
    except aiohttp.SocketTimeoutError:
        return  # silent for so long: it is opened anew
    except (aiohttp.ClientError, TimeoutError) as e:
        raise was_cut("watch", e, client) from e
    finally:
        response.close()


async def _open_watch(
    client: KubeClient, target: Target, query: dict[str, str], times: WatchTimes, seconds: float
) -> aiohttp.ClientResponse:
    limits = aiohttp.ClientTimeout(
        # A proxy may hold a watch open that has lost its server: that is noticed here.
        total=seconds * _OVERTIME,
        sock_connect=CONNECT_TIMEOUT.total_seconds(),
        sock_read=times.silence.total_seconds() if times.silence else None,
    )
    try:
        async with asyncio.timeout(times.opens_within.total_seconds()):
            return await client.stream(target.path, query=query, limit=limits)
    except TimeoutError as e:
        raise was_cut("watch", e, client) from e


def _read_line(line: bytes) -> WatchEvent:
    try:
        return _parse_line(line, _line_decoder.decode(line))
    except (*UNREADABLE, KeyError):
        return _read_broken_line(line)


def _parse_line(line: bytes, found: _Line) -> WatchEvent:
    if found.type == "ERROR":
        raise _error_of(line)
    return _event_of(found.type, found.object, read_map(found.object["metadata"]))


def _read_broken_line(line: bytes) -> WatchEvent:
    """An object that is nested too deeply, or no JSON somewhere: its key at least (rule W16)."""
    try:
        parts = cut_object(line)
        if read_text(parts["type"]) == "ERROR":
            raise _error_of(line)
        return _event_of(read_text(parts["type"]), None, read_deep_metadata(parts["object"]))
    except (*UNREADABLE, KeyError):
        return _unreadable()


def _event_of(kind: str, found: RawObject | None, metadata: RawObject) -> WatchEvent:
    version = read_text(metadata["resourceVersion"])
    if not is_comparable(version):
        return _unreadable()  # a watch could not resume there, and nobody could order it (P2)
    return WatchEvent(_TYPES[kind], found, metadata, version)


def read_deep_metadata(document: bytes) -> RawObject:
    """The metadata of an object that no decoder reads as a whole.

    Raises:
        KeyError: it has none.
        msgspec.DecodeError: it is no map.
    """
    return read_map(cut_object(document)["metadata"])


def _unreadable() -> WatchEvent:
    return WatchEvent(WatchType.UNREADABLE, None, {}, "")


def _error_of(line: bytes) -> errors.KubeError:
    """An ERROR event: swallowing one would freeze the watch for ever."""
    try:
        status = cast("Object", orjson.loads(line)["object"])
    except orjson.JSONDecodeError:
        status = Object()
    code = status.get("code")
    return errors.from_status(code if isinstance(code, int) else 500, status)


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    transport = connection.transport if connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every system has them all
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- for ever ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observer:
    """Who wants to know how a conversation goes."""

    heard: Callable[[], None] = lambda: None
    """A byte came."""
    failed: Callable[[errors.KubeError], None] = lambda _: None
    """An attempt failed; the next one follows after a pause."""
    opened: Callable[[], None] = lambda: None
    """The server has accepted a watch; a byte may be long in coming."""


async def follow(
    client: KubeClient,
    target: Target,
    resource_version: str,
    *,
    backoff: Backoff,
    times: WatchTimes = _TIMES,
    observer: Observer | None = None,
    before_open: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncGenerator[WatchEvent]:
    """Watch for ever from a resourceVersion, over reconnects, without a gap (rule W1).

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start.
        backoff: the pauses after failures.
        times: of each watch.
        observer: hears how it goes.
        before_open: called with the version before each watch is opened; a KubeError of it counts
            as a failed attempt, anything else ends it all.

    Raises:
        Gone: the server no longer has the version: only a new list helps.
        NotFound: the server does not know the type (any more).
    """
    told = observer or Observer()
    version = resource_version
    loop = asyncio.get_running_loop()
    while True:
        opened = loop.time()
        seen = 0
        try:
            if before_open is not None:
                await before_open(version)
            watch = watch_events(
                client, target, version, times=times, heard=told.heard, opened=told.opened
            )
            async with aclosing(watch):
                async for event in watch:
                    seen += 1
                    version = event.resource_version or version
                    yield event
            if seen or loop.time() - opened >= _TOO_SHORT_SECONDS:
                continue
            # W19: a watch that ends at once, empty, would be asked for in a hot loop.
            error: errors.KubeError = in_doubt("the watch ended at once, without an event")
        except (errors.Gone, errors.NotFound):
            raise
        except errors.KubeError as e:
            error = e
        told.failed(error)
        await backoff.pause(error)


@dataclass(frozen=True, slots=True)
class Listed:
    """Everything there is; it replaces what was known."""

    objects: list[Object]


@dataclass(frozen=True, slots=True)
class Changed:
    """One change since the last list."""

    type: WatchType
    object: Object


async def reflect(
    client: KubeClient,
    target: Target,
    *,
    policy: BackoffPolicy | None = None,
    silence: timedelta = SILENCE,
    observer: Observer | None = None,
) -> AsyncIterator[Listed | Changed]:
    """What there is, then each change, for ever; a new `Listed` whenever the thread was lost.

    Nothing is raised: while the server cannot be asked, or our credentials cannot be loaded,
    nothing is yielded and `observer` hears why. Meant for a few thousand objects: they are all in
    memory at once.
    """
    told = observer or Observer()
    backoff = Backoff(policy)
    while True:
        try:
            objects, version = await _list_objects(client, target, silence)
            told.heard()
            yield Listed(objects)
            times = WatchTimes(opens_within=silence, silence=silence)
            events = follow(client, target, version, backoff=backoff, times=times, observer=told)
            async with aclosing(events):
                async for event in events:
                    if event.type is WatchType.BOOKMARK:
                        continue
                    if event.object is None:
                        raise in_doubt("an event could not be read")
                    yield Changed(event.type, _tree(event.object))
        except (errors.KubeError, errors.ConfigError) as e:
            # Credentials that cannot be loaded may be mended, as a server that is away comes back.
            error = e if isinstance(e, errors.KubeError) else _not_asked(client, e)
            told.failed(error)
            await backoff.pause(error)


def _not_asked(client: KubeClient, error: errors.ConfigError) -> errors.Unreachable:
    not_asked = errors.Unreachable(0, "Unreachable", str(error))
    not_asked.cluster = client.cluster
    return not_asked


async def _list_objects(
    client: KubeClient, target: Target, silence: timedelta
) -> tuple[list[Object], str]:
    objects: list[Object] = []
    version = ""
    async with aclosing(list_pages(client, target, silence=silence)) as pages:
        async for page in pages:
            version = page.resource_version
            objects += [_named(_decoded(item), page) for item in page.items]
    return objects, version


def _named(item: Object, page: Page) -> Object:
    item.setdefault("apiVersion", page.api_version)
    item.setdefault("kind", page.kind)
    return item


def _tree(raw: RawObject) -> Object:
    return {name: _decoded(value) for name, value in raw.items()}


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return _tree_decoder.decode(raw)
    except UNREADABLE as e:
        raise in_doubt(f"an object cannot be read: {e}") from e
