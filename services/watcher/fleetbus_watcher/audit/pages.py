"""The identities of listed objects, and the pages in which they are published (rule W18).

A page says after which object it begins, so that it can be compared by itself. That works only
for ordered lists, as those of API servers are: they come in the order of etcd's keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from fleetbus.kube.list_watch.listing import DECODE_ERRORS
from fleetbus.kube.list_watch.reflect import read_deep_metadata
from fleetbus_proto.keys import object_key
from fleetbus_watcher.errors import AuditAbandoned

ITEMS: Final = 500
_SIZE: Final = 256 * 1024
_FRAME: Final = 16
"""The msgpack framing of an item, at most."""

Item = tuple[str, str, str, str]
"""Namespace, name, uid, resourceVersion."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str
    namespace: str = ""
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one page."""

    number: int
    is_last: bool
    after: tuple[str, str] | None
    items: list[Item]


def read_identity(item: msgspec.Raw) -> Item:
    """Read the identity of a listed object, whatever else is in it.

    Raises:
        AuditAbandoned: its key cannot be read, so the content of the list is unknown (W8).
    """
    try:
        try:
            metadata = _decoder.decode(item).metadata
        except RecursionError:
            metadata = msgspec.convert(_fields(read_deep_metadata(bytes(item))), _Metadata)
    except (*DECODE_ERRORS, KeyError) as e:
        raise AuditAbandoned(f"an item of the list: {e}") from e
    return (metadata.namespace, metadata.name, metadata.uid, metadata.resource_version)


def _fields(metadata: dict[str, msgspec.Raw]) -> dict[str, str]:
    names = ("namespace", "name", "uid", "resourceVersion")
    return {n: msgspec.json.decode(metadata[n], type=str) for n in names if n in metadata}


class Paginator:
    """Splits an ordered list into pages; it holds one page at a time.

    Args:
        max_body: how large the body of a message may be.
    """

    def __init__(self, max_body: int) -> None:
        self._max_item = max_body // 2
        self._limit = min(_SIZE, self._max_item)
        self._items: list[Item] = []
        self._size = 0
        self._number = 0
        self._after: tuple[str, str] | None = None
        self._last_key = b""

    def add(self, items: Iterable[Item]) -> Iterator[Part]:
        """Add items and yield the pages that are full; the items of one call are sorted.

        Raises:
            AuditAbandoned: the list is not in order, or an identity does not fit into a message.
        """
        for key, item in sorted((_order_of(item), item) for item in items):
            if key <= self._last_key:
                raise AuditAbandoned(f"the list is not in the order of its keys: {key!r}")
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in item) + _FRAME
            if size > self._max_item:
                raise AuditAbandoned(f"the identity of an object has {size} bytes")
            if self._items and (len(self._items) >= ITEMS or self._size + size > self._limit):
                yield self._cut(is_last=False)
            self._items.append(item)
            self._size += size
            self._last_key = key

    def end(self) -> Part:
        """Return the last page; it may be empty."""
        return self._cut(is_last=True)

    def _cut(self, *, is_last: bool) -> Part:
        part = Part(self._number, is_last, self._after, self._items)
        if self._items:
            namespace, name, *_ = self._items[-1]
            self._after = (namespace, name)
        self._items, self._size, self._number = [], 0, self._number + 1
        return part


def _order_of(item: Item) -> bytes:
    return object_key(item[0], item[1]).encode("utf-8", "surrogatepass")
