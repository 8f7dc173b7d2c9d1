"""One consistent list of an API server, page by page, as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from fleetbus import errors
from fleetbus.kube.client import PAGE_SIZE, KubeClient
from fleetbus.kube.connection.response import BrokenOff, Limits, Response
from fleetbus.kube.list_watch.split import LINE_LIMIT, ItemSplitter
from fleetbus.kube.requests import path_of, selector_query
from fleetbus.kube.responses import (
    MIB,
    check_continuation,
    failure_text,
    invalid_response,
    too_large_error,
)
from fleetbus_proto.resources import Resource

IDLE_TIMEOUT: Final = timedelta(seconds=90)
"""A response is given up after this long without data."""
WHOLE_LIMIT: Final = 32 * MIB
"""A page up to this size is decoded as a whole, which is ten times as fast as cutting it."""
_TURN_BYTES: Final = 64 * 1024
"""Bytes to cut into items before other tasks get a turn: 25 ms for a hostile text (S7)."""
WAITING_LIMIT: Final = 128 * MIB
"""The most that is held of a list whose version is not known yet."""

JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
"""Metadata only, where the server supports it; some aggregated ones do not."""

RawObject = dict[str, msgspec.Raw]
"""The top level of an object; the values are undecoded."""

DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Raised by decoding the bytes of a server."""


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """A resource to list and watch, optionally in one namespace and with selectors."""

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
        return selector_query(self.label_selector, self.field_selector)


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a list; `resource_version` is that of the whole list, the same on all pages."""

    api_version: str
    kind: str
    """The kind of the items, from the kind of a built-in list, whose items have none."""
    resource_version: str
    items: list[msgspec.Raw]
    remaining: int | None = None
    """Number of items after this page; None if the server does not say."""


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    remaining: int | None = msgspec.field(default=None, name="remainingItemCount")
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    metadata: _ListMeta
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


_list_decoder = msgspec.json.Decoder(_List)
_map_decoder = msgspec.json.Decoder(RawObject)
_text_decoder = msgspec.json.Decoder(str)


def read_map(raw: msgspec.Raw | bytes) -> RawObject:
    """Decode one level of a JSON object.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return _map_decoder.decode(raw)


def read_text(raw: msgspec.Raw | bytes) -> str:
    """Decode a JSON string.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return _text_decoder.decode(raw)


async def list_pages(
    client: KubeClient,
    target: WatchTarget,
    *,
    limit: int = PAGE_SIZE,
    idle_timeout: timedelta = IDLE_TIMEOUT,
    accept: str = JSON,
) -> AsyncGenerator[ListPage]:
    """Read one consistent list, from etcd or an equally fresh cache (rule W2); limit 0 is unpaged.

    Args:
        client: the API server.
        target: what to list.
        limit: objects per page.
        idle_timeout: after this long without data a response counts as cut off.
        accept: `JSON`, or `METADATA` for items that may have nothing else.

    Raises:
        Gone: a later page is no longer served; what was yielded is not a complete list.
        KubeError: anything else that casts doubt on the list; likewise.
    """
    query = {**target.query, **({"limit": str(limit)} if limit else {})}
    version = ""
    while True:
        token, count = "", 0
        parts = _read_page(client, target.path, query, idle_timeout, accept)
        async with aclosing(parts):
            async for portion, is_last in parts:
                # No resourceVersion on the first request: 0 could be served by a stale cache.
                version = version or portion.metadata.resource_version
                token = portion.metadata.token if is_last else ""
                remaining = portion.metadata.remaining if token or not limit else 0
                count += len(portion.items or [])
                yield _page(portion, version, remaining if is_last else None)
        check_continuation(query, count, token)
        if not token:
            return
        query = {**query, "continue": token}


async def _read_list(body: bytes) -> _List:
    try:
        listed = _list_decoder.decode(body)
    except DECODE_ERRORS as e:
        listed = await _read_list_by_items(body, e)
    return _checked(listed)


async def _read_list_by_items(body: bytes, error: Exception) -> _List:
    """Cut the list without parsing it: one item is unreadable or nested too deeply (rule W16)."""
    splitter = ItemSplitter()
    items = [
        msgspec.Raw(item) async for chunk in yielding_chunks(body) for item in splitter.feed(chunk)
    ]
    if not splitter.is_complete:
        raise invalid_response(f"the response is not a list: {error}") from error
    return msgspec.structs.replace(_read_skeleton(splitter), items=items)


def _read_skeleton(splitter: ItemSplitter) -> _List:
    try:
        return _list_decoder.decode(splitter.skeleton)
    except DECODE_ERRORS as e:
        raise invalid_response(f"the response is not a list: {e}") from e


def _read_head(head: bytes) -> _List | None:
    """The fields of a list before its items; None if others follow the items."""
    try:
        return _checked(_list_decoder.decode(head + b"]}"))
    except DECODE_ERRORS:
        return None


def _checked(listed: _List) -> _List:
    # A custom list may have any kind: as for client-go, it is its items that make it one.
    if listed.items is msgspec.UNSET or not listed.metadata.resource_version:
        raise invalid_response(f"the response, a {listed.kind!r}, is no list with a version")
    return listed


def _page(listed: _List, version: str, remaining: int | None = None) -> ListPage:
    return ListPage(
        api_version=listed.api_version,
        kind=listed.kind.removesuffix("List"),
        resource_version=version,
        items=listed.items or [],
        remaining=remaining,
    )


async def _read_page(
    client: KubeClient, path: str, query: dict[str, str], idle_timeout: timedelta, accept: str
) -> AsyncGenerator[tuple[_List, bool]]:
    """Read one response as successive lists, each with whether it is the last.

    An ordinary page is decoded as a whole. A larger one, or one without a limit, is cut into items
    while it is received, so that memory stays bounded (rules W2, S7).
    """
    limits = Limits(idle=idle_timeout)  # a response may take as long as data keeps coming
    response = await client.stream(path, query=query, accept=accept, limits=limits)
    async with _reading(client, response):
        chunks = response.chunks()
        limit = WHOLE_LIMIT if "limit" in query else 0
        begun, is_whole = await _read_up_to(limit, chunks, client)
        if is_whole:
            yield await _read_list(begun), True
            return
        async with aclosing(_cut_items(begun, chunks)) as lists:
            async for listed in lists:
                yield listed


@asynccontextmanager
async def _reading(client: KubeClient, response: Response) -> AsyncGenerator[None]:
    try:
        yield
    except BrokenOff as e:
        raise cut_off_error("list", e, client) from e
    finally:
        response.release()


async def _read_up_to(
    limit: int, chunks: AsyncIterator[bytes], client: KubeClient
) -> tuple[bytes, bool]:
    """Read until more than `limit` bytes have come; also return whether that is everything."""
    begun: list[bytes] = []
    size = 0
    async for chunk in chunks:
        client.liveness.note()
        begun.append(chunk)
        size += len(chunk)
        if size > limit:
            return b"".join(begun), False
    return b"".join(begun), True


async def _cut_items(
    begun: bytes, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[tuple[_List, bool]]:
    splitter = ItemSplitter()
    head: _List | None = None
    waiting: list[msgspec.Raw] = []
    waiting_bytes = 0
    chunk: bytes | None = begun
    while chunk is not None:
        begins = not splitter.head
        async for piece in yielding_chunks(chunk):
            for item in splitter.feed(piece):
                waiting.append(msgspec.Raw(item))
                waiting_bytes += len(item)
            if splitter.pending > LINE_LIMIT:
                raise too_large_error(LINE_LIMIT, "an object of the list")
        if begins and splitter.head:
            head = _read_head(splitter.head)
        # Lists of custom resources have the version at the end, so all items have to wait for it.
        if head is not None and waiting:
            yield msgspec.structs.replace(head, items=waiting), False
            waiting, waiting_bytes = [], 0
        if waiting_bytes > WAITING_LIMIT:
            raise too_large_error(WAITING_LIMIT, "the list, whose version comes last,")
        chunk = await anext(chunks, None)
    if not splitter.is_complete:
        raise invalid_response("the response is not a complete list")
    yield msgspec.structs.replace(_checked(_read_skeleton(splitter)), items=waiting), True


async def yielding_chunks(data: bytes) -> AsyncGenerator[bytes]:
    """Yield parts that take a few milliseconds to process; other tasks run in between."""
    yield data[:_TURN_BYTES]
    for at in range(_TURN_BYTES, len(data), _TURN_BYTES):
        await asyncio.sleep(0)
        yield data[at : at + _TURN_BYTES]


def cut_off_error(subject: str, error: Exception, client: KubeClient) -> errors.Unreachable:
    """The error for a response that broke off."""
    text = failure_text(error)
    cut = errors.Unreachable(0, "Unreachable", f"the {subject} was cut: {text}")
    cut.cluster = client.cluster
    return cut
