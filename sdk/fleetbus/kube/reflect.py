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
from fleetbus.kube.backoff import Backoff, BackoffPolicy
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.listing import (
    SILENCE,
    UNREADABLE,
    Page,
    RawObject,
    Target,
    in_doubt,
    list_pages,
    read_map,
    read_text,
    stream_limits,
    was_cut,
)
from fleetbus.kube.split import LINE_LIMIT, LineSplitter, cut_object
from fleetbus_proto.versions import is_comparable

__all__ = [
    "Changed",
    "Listed",
    "Observer",
    "Target",
    "WatchEvent",
    "WatchType",
    "follow",
    "read_deep_metadata",
    "reflect",
    "watch_events",
]

_WATCH_SECONDS: Final = (300, 600)
_TOO_SHORT_SECONDS: Final = 1.0


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
    silence: timedelta = SILENCE,
    heard: Callable[[], None] = lambda: None,
    opened: Callable[[], None] = lambda: None,
) -> AsyncGenerator[WatchEvent]:
    """One watch request; ends when the server ends it in good order.

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start: of a list, a bookmark or an event in order (W1).
        silence: without a byte for so long the stream counts as dead.
        heard: called for each chunk that comes.
        opened: called when the server has accepted the watch.

    Raises:
        Gone: the server no longer has this version.
        KubeError: any other refusal, as an answer or as an ERROR event; or the stream broke.
    """
    query = {
        **target.query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311 -- spreads load
    }
    response = await client.stream(target.path, query=query, limit=stream_limits(silence))
    opened()
    _keep_alive(response)
    splitter = LineSplitter(LINE_LIMIT)
    try:
        async for chunk in response.content.iter_any():
            heard()
            dropped = splitter.too_long
            for line in splitter.feed(chunk):
                yield _read_line(line)
            for _ in range(splitter.too_long - dropped):
                yield _unreadable()
    except (aiohttp.ClientError, TimeoutError) as e:
        raise was_cut("watch", e, client) from e
    finally:
        response.close()


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
    silence: timedelta = SILENCE,
    observer: Observer | None = None,
    before_open: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncGenerator[WatchEvent]:
    """Watch for ever from a resourceVersion, over reconnects, without a gap (rule W1).

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start.
        backoff: the pauses after failures.
        silence: without a byte for so long a stream counts as dead.
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
                client, target, version, silence=silence, heard=told.heard, opened=told.opened
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
            events = follow(
                client, target, version, backoff=backoff, silence=silence, observer=told
            )
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
