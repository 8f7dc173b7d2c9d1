"""One consistent list of an API server, page by page, as bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import aiohttp
import msgspec

from fleetbus import errors
from fleetbus.kube.client import PAGE_SIZE, KubeClient, path_of
from fleetbus.kube.split import ItemSplitter
from fleetbus_proto.resources import Resource

SILENCE: Final = timedelta(seconds=90)
"""A stream without a byte for so long is dead; servers send a bookmark each minute (W11)."""
_CONNECT_SECONDS: Final = 5

JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
"""Only metadata, where the server can leave out the rest; some aggregated ones cannot."""

RawObject = dict[str, msgspec.Raw]
"""The top level of an object; its values are still bytes."""

UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What a decoder raises for bytes of a server that it cannot read."""


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
    remaining: int | None = None
    """How many come after this page; None if the server does not say."""


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    remaining: int | None = msgspec.field(default=None, name="remainingItemCount")
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_List)
_map_decoder = msgspec.json.Decoder(RawObject)
_text_decoder = msgspec.json.Decoder(str)


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


async def list_pages(
    client: KubeClient,
    target: Target,
    *,
    limit: int = PAGE_SIZE,
    silence: timedelta = SILENCE,
    accept: str = JSON,
) -> AsyncGenerator[Page]:
    """One consistent list from etcd or an equally fresh cache (rule W2); `limit` 0 means unpaged.

    Args:
        client: the API server.
        target: what to list.
        limit: objects per page.
        silence: without a byte for so long an answer counts as cut.
        accept: `JSON`, or `METADATA` for items that may have nothing else.

    Raises:
        Gone: a later page is no longer served; what was yielded is not a complete list.
        KubeError: any other doubt; likewise.
    """
    if not limit:
        async with aclosing(_unpaged(client, target, silence, accept)) as pages:
            async for page in pages:
                yield page
        return
    query = {**target.query, "limit": str(limit)}
    version = ""
    while True:
        found = _read_list(await _read_body(client, target.path, query, silence, accept))
        # RV="" on the first request: never 0, which any stale cache may answer.
        version = version or found.metadata.resource_version
        yield _page(found, version, found.metadata.remaining if found.metadata.token else 0)
        if not found.metadata.token:
            return
        query = {**query, "continue": found.metadata.token}


async def _read_body(
    client: KubeClient, path: str, query: dict[str, str], silence: timedelta, accept: str
) -> bytes:
    limits = stream_limits(silence)
    response = await client.stream(path, query=query, accept=accept, limit=limits)
    try:
        return await response.read()
    except (aiohttp.ClientError, TimeoutError) as e:
        raise was_cut("list", e, client) from e
    finally:
        response.release()


def _read_list(body: bytes) -> _List:
    try:
        found = _list_decoder.decode(body)
    except UNREADABLE as e:
        found = _read_list_by_items(body, e)
    return _checked(found)


def _read_list_by_items(body: bytes, error: Exception) -> _List:
    """One item cannot be read, or is nested too deeply: cut the list without parsing (rule W16)."""
    splitter = ItemSplitter()
    items = [msgspec.Raw(item) for item in splitter.feed(body)]
    if not splitter.is_complete:
        raise in_doubt(f"the answer is not a list: {error}") from error
    return msgspec.structs.replace(_read_skeleton(splitter), items=items)


def _read_skeleton(splitter: ItemSplitter) -> _List:
    try:
        return _list_decoder.decode(splitter.skeleton)
    except UNREADABLE as e:
        raise in_doubt(f"the answer is not a list: {e}") from e


def _read_head(head: bytes) -> _List | None:
    """What a list says before its items; None if it says more after them."""
    try:
        return _checked(_list_decoder.decode(head + b"]}"))
    except UNREADABLE:
        return None


def _checked(found: _List) -> _List:
    if not found.kind.endswith("List") or not found.metadata.resource_version:
        raise in_doubt(f"the answer is a {found.kind!r} without a list's resourceVersion")
    return found


def _page(found: _List, version: str, remaining: int | None = None) -> Page:
    return Page(
        api_version=found.api_version,
        kind=found.kind.removesuffix("List"),
        resource_version=version,
        items=found.items or [],
        remaining=remaining,
    )


async def _unpaged(
    client: KubeClient, target: Target, silence: timedelta, accept: str
) -> AsyncGenerator[Page]:
    """The whole list in one answer, cut while it is read, so that memory stays bounded (W2)."""
    response = await client.stream(
        target.path, query=target.query, accept=accept, limit=stream_limits(silence)
    )
    splitter = ItemSplitter()
    head: _List | None = None
    waiting: list[msgspec.Raw] = []
    try:
        async for chunk in response.content.iter_any():
            begins = not splitter.head
            waiting += [msgspec.Raw(item) for item in splitter.feed(chunk)]
            if begins and splitter.head:
                head = _read_head(splitter.head)
            # Custom resources tell the version last; then all of them have to wait for it.
            if head is not None and waiting:
                yield _page(
                    msgspec.structs.replace(head, items=waiting), head.metadata.resource_version
                )
                waiting = []
    except (aiohttp.ClientError, TimeoutError) as e:
        raise was_cut("list", e, client) from e
    finally:
        response.close()
    if not splitter.is_complete:
        raise in_doubt("the answer is not a complete list")
    found = _checked(_read_skeleton(splitter))
    yield _page(msgspec.structs.replace(found, items=waiting), found.metadata.resource_version)


def stream_limits(silence: timedelta) -> aiohttp.ClientTimeout:
    """As long as bytes keep coming, an answer may last."""
    return aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence.total_seconds()
    )


def was_cut(what: str, error: Exception, client: KubeClient) -> errors.Unreachable:
    """The error for an answer that broke off."""
    text = str(error) or type(error).__name__
    cut = errors.Unreachable(0, "Unreachable", f"the {what} was cut: {text}")
    cut.cluster = client.cluster
    return cut


def in_doubt(message: str) -> errors.ServerError:
    """The error for an answer that may not be believed (W8)."""
    return errors.ServerError(200, "Unreadable", message)
