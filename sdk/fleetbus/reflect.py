"""List and watch for ever: layered generators, one concern each.

    list_pages     one consistent list, page by page
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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, cast

import aiohttp
import msgspec
import orjson

from fleetbus import errors
from fleetbus.backoff import Backoff, BackoffPolicy
from fleetbus.kube import KubeClient, Object, path_of
from fleetbus.split import LINE_LIMIT, ItemSplitter, LineSplitter, cut_object
from fleetbus_proto.resources import Resource

PAGE_SIZE: Final = 500
SILENCE: Final = timedelta(seconds=90)
"""A stream without a byte for so long is dead; servers send a bookmark each minute (W11)."""
_CONNECT_SECONDS: Final = 5
_WATCH_SECONDS: Final = (300, 600)
_TOO_SHORT_SECONDS: Final = 1.0

RawObject = dict[str, msgspec.Raw]
"""The top level of an object; its values are still bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is listed and watched: a resource, perhaps narrowed."""

    resource: Resource
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """The URL path of the collection."""
        return path_of(self.resource, self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """The selectors as query parameters."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: text for name, text in selectors.items() if text}


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list; `resource_version` is that of the whole list, equal on all pages."""

    api_version: str
    kind: str
    """The kind of the items, from the kind of the list; they often carry none."""
    resource_version: str
    items: list[msgspec.Raw]


class WatchType(StrEnum):
    """What a watch event says."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    UNREADABLE = "UNREADABLE"
    """A line of which not even the key can be read (rule W16); it has no object."""


@dataclass(slots=True)
class WatchEvent:
    """One line of a watch.

    `resource_version` is where a watch resumes after this event; a bookmark has nothing else.
    `object` is None when it is nested so deeply that only its metadata could be read (W16).
    """

    type: WatchType
    object: RawObject | None
    metadata: RawObject
    resource_version: str


class _Line(msgspec.Struct):
    type: str
    object: RawObject


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_line_decoder = msgspec.json.Decoder(_Line)
_list_decoder = msgspec.json.Decoder(_List)
_map_decoder = msgspec.json.Decoder(RawObject)
_text_decoder = msgspec.json.Decoder(str)
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def read_map(raw: msgspec.Raw | bytes) -> RawObject:
    """One level of a JSON map.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return _map_decoder.decode(raw)


def read_text(raw: msgspec.Raw | bytes) -> str:
    """A JSON string.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return _text_decoder.decode(raw)


# --- one list ---------------------------------------------------------------------------------


async def list_pages(
    client: KubeClient,
    target: Target,
    *,
    limit: int = PAGE_SIZE,
    silence: timedelta = SILENCE,
) -> AsyncGenerator[Page]:
    """One consistent list from etcd or an equally fresh cache (rule W2); `limit` 0 means unpaged.

    Raises:
        Gone: a later page is no longer served; what was yielded is not a complete list.
        KubeError: any other doubt; likewise.
    """
    if not limit:
        async with aclosing(_unpaged(client, target, silence)) as pages:
            async for page in pages:
                yield page
        return
    query = {**target.query, "limit": str(limit)}
    version = ""
    while True:
        found = _read_list(await _read_body(client, target.path, query, silence))
        # RV="" on the first request: never 0, which any stale cache may answer.
        version = version or found.metadata.resource_version
        yield _page(found, version)
        if not found.metadata.token:
            return
        query = {**query, "continue": found.metadata.token}


async def _read_body(
    client: KubeClient, path: str, query: dict[str, str], silence: timedelta
) -> bytes:
    response = await client.stream("GET", path, query=query, limit=_limits(silence))
    try:
        return await response.read()
    except (aiohttp.ClientError, TimeoutError) as e:
        raise _cut("list", e) from e
    finally:
        response.release()


def _read_list(body: bytes) -> _List:
    try:
        found = _list_decoder.decode(body)
    except RecursionError:
        found = _read_list_by_items(body)
    except _UNREADABLE as e:
        raise _doubt(f"the answer is not a list: {e}") from e
    return _checked(found)


def _read_list_by_items(body: bytes) -> _List:
    """One item is nested too deeply for the decoder: cut the list without parsing (rule W16)."""
    splitter = ItemSplitter()
    items = [msgspec.Raw(item) for item in splitter.feed(body)]
    if not splitter.is_complete:
        raise _doubt("the answer is not a complete list")
    found = _read_head(splitter.head)
    return msgspec.structs.replace(found, items=items)


def _read_head(head: bytes) -> _List:
    try:
        return _list_decoder.decode(head + b"]}")
    except _UNREADABLE as e:
        raise _doubt(f"the answer is not a list: {e}") from e


def _checked(found: _List) -> _List:
    if not found.kind.endswith("List") or not found.metadata.resource_version:
        raise _doubt(f"the answer is a {found.kind!r} without a list's resourceVersion")
    return found


def _page(found: _List, version: str) -> Page:
    return Page(
        api_version=found.api_version,
        kind=found.kind.removesuffix("List"),
        resource_version=version,
        items=found.items or [],
    )


async def _unpaged(client: KubeClient, target: Target, silence: timedelta) -> AsyncGenerator[Page]:
    """The whole list in one answer, cut while it is read, so that memory stays bounded (W2)."""
    response = await client.stream("GET", target.path, query=target.query, limit=_limits(silence))
    splitter = ItemSplitter()
    head: _List | None = None
    try:
        async for chunk in response.content.iter_any():
            items = [msgspec.Raw(item) for item in splitter.feed(chunk)]
            if head is None and splitter.head:
                head = _checked(_read_head(splitter.head))
            if head is not None and items:
                yield _page(
                    msgspec.structs.replace(head, items=items), head.metadata.resource_version
                )
    except (aiohttp.ClientError, TimeoutError) as e:
        raise _cut("list", e) from e
    finally:
        response.close()
    if head is None or not splitter.is_complete:
        raise _doubt("the answer is not a complete list")
    yield _page(head, head.metadata.resource_version)


# --- one watch --------------------------------------------------------------------------------


async def watch_events(
    client: KubeClient,
    target: Target,
    resource_version: str,
    *,
    silence: timedelta = SILENCE,
    heard: Callable[[], None] = lambda: None,
) -> AsyncGenerator[WatchEvent]:
    """One watch request; ends when the server ends it in good order.

    Args:
        client: the API server.
        target: what to watch.
        resource_version: where to start: of a list, a bookmark or an event in order (W1).
        silence: without a byte for so long the stream counts as dead.
        heard: called for each chunk that comes.

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
    response = await client.stream("GET", target.path, query=query, limit=_limits(silence))
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
        raise _cut("watch", e) from e
    finally:
        response.close()


def _read_line(line: bytes) -> WatchEvent:
    try:
        return _parse_line(line, _line_decoder.decode(line))
    except RecursionError:
        return _read_deep_line(line)
    except (*_UNREADABLE, KeyError, ValueError):
        return _unreadable()


def _parse_line(line: bytes, found: _Line) -> WatchEvent:
    if found.type == "ERROR":
        raise _error_of(line)
    metadata = read_map(found.object["metadata"])
    version = read_text(metadata["resourceVersion"])
    return WatchEvent(WatchType(found.type), found.object, metadata, version)


def _read_deep_line(line: bytes) -> WatchEvent:
    """An object nested too deeply for the decoder: its key at least (rule W16)."""
    try:
        parts = cut_object(line)
        metadata = read_deep_metadata(parts["object"])
        version = read_text(metadata["resourceVersion"])
        return WatchEvent(WatchType(read_text(parts["type"])), None, metadata, version)
    except (*_UNREADABLE, KeyError, ValueError):
        return _unreadable()


def read_deep_metadata(document: bytes) -> RawObject:
    """The metadata of an object that no decoder reads.

    Raises:
        KeyError: it has none.
        msgspec.DecodeError: it is no map.
    """
    return read_map(cut_object(document)["metadata"])


def _unreadable() -> WatchEvent:
    return WatchEvent(WatchType.UNREADABLE, None, {}, "")


def _error_of(line: bytes) -> errors.KubeError:
    """An ERROR event: swallowing one would freeze the watch for ever."""
    status = cast("Object", orjson.loads(line)["object"])
    code = status.get("code")
    return errors.from_status(code if isinstance(code, int) else 500, status)


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    transport = connection.transport if connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _limits(silence: timedelta) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence.total_seconds()
    )


def _cut(what: str, error: Exception) -> errors.Unreachable:
    text = str(error) or type(error).__name__
    return errors.Unreachable(0, "Unreachable", f"the {what} was cut: {text}")


def _doubt(message: str) -> errors.ServerError:
    return errors.ServerError(200, "Unreadable", message)


# --- for ever ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observer:
    """Who wants to know how a conversation goes."""

    heard: Callable[[], None] = lambda: None
    """A byte came."""
    failed: Callable[[errors.KubeError], None] = lambda _: None
    """An attempt failed; the next one follows after a pause."""


async def follow(
    client: KubeClient,
    target: Target,
    resource_version: str,
    *,
    backoff: Backoff,
    silence: timedelta = SILENCE,
    observer: Observer | None = None,
) -> AsyncGenerator[WatchEvent]:
    """Watch for ever from a resourceVersion, over reconnects, without a gap (rule W1).

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
            watch = watch_events(client, target, version, silence=silence, heard=told.heard)
            async with aclosing(watch):
                async for event in watch:
                    seen += 1
                    version = event.resource_version or version
                    yield event
            if seen or loop.time() - opened >= _TOO_SHORT_SECONDS:
                continue
            # W19: a watch that ends at once, empty, would be asked for in a hot loop.
            error: errors.KubeError = _doubt("the watch ended at once, without an event")
        except (errors.Gone, errors.NotFound):
            raise
        except errors.KubeError as e:
            error = e
        told.failed(error)
        await asyncio.sleep(backoff.delay(error).total_seconds())


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

    Nothing is raised: while the server cannot be asked, nothing is yielded and `observer` hears
    why. Meant for a few thousand objects: they are all in memory at once.
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
                        raise _doubt("an event could not be read")
                    yield Changed(event.type, _tree(event.object))
        except errors.KubeError as e:
            told.failed(e)
            await asyncio.sleep(backoff.delay(e).total_seconds())


async def _list_objects(
    client: KubeClient, target: Target, silence: timedelta
) -> tuple[list[Object], str]:
    objects: list[Object] = []
    version = ""
    async with aclosing(list_pages(client, target, silence=silence)) as pages:
        async for page in pages:
            version = page.resource_version
            objects += [_named(cast("Object", orjson.loads(item)), page) for item in page.items]
    return objects, version


def _named(item: Object, page: Page) -> Object:
    item.setdefault("apiVersion", page.api_version)
    item.setdefault("kind", page.kind)
    return item


def _tree(raw: RawObject) -> Object:
    return {name: orjson.loads(value) for name, value in raw.items()}
