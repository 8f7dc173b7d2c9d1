"""The identities in a list, and the pages in which they are published (rule W18).

A page says after which object it begins, so that it can be compared by itself. That only holds
in lists that are in order, as those of API servers are: they come in the order of etcd's keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from fleetbus.kube.listing import DECODE_ERRORS
from fleetbus.kube.reflect import read_deep_metadata
from fleetbus_proto.keys import object_key
from fleetbus_watcher.errors import AuditAbandoned

ITEMS: Final = 500
_SIZE: Final = 256 * 1024
_FRAME: Final = 16
"""What msgpack needs for an item, at most, beside its texts."""

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
    """What one page holds."""

    number: int
    is_last: bool
    after: tuple[str, str] | None
    items: list[Item]


def read_identity(item: msgspec.Raw) -> Item:
    """What a list says of one object, whatever else is in it.

    Raises:
        AuditAbandoned: its key cannot be read, so nobody knows what the list holds (W8).
    """
    try:
        try:
            found = _decoder.decode(item).metadata
        except RecursionError:
            found = msgspec.convert(_texts(read_deep_metadata(bytes(item))), _Metadata)
    except (*DECODE_ERRORS, KeyError) as e:
        raise AuditAbandoned(f"an item of the list: {e}") from e
    return (found.namespace, found.name, found.uid, found.resource_version)


def _texts(metadata: dict[str, msgspec.Raw]) -> dict[str, str]:
    fields = ("namespace", "name", "uid", "resourceVersion")
    return {f: msgspec.json.decode(metadata[f], type=str) for f in fields if f in metadata}


class Paginator:
    """Cuts an ordered list into pages; it holds one page at a time.

    Args:
        room: how large the body of a message may be.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._limit = min(_SIZE, room // 2)
        self._items: list[Item] = []
        self._size = 0
        self._number = 0
        self._after: tuple[str, str] | None = None
        self._last_key = b""

    def add(self, items: Iterable[Item]) -> Iterator[Part]:
        """The pages that are full with these; a short list of a server without order is sorted.

        Raises:
            AuditAbandoned: the list is in no order, or an object is in no message's reach.
        """
        for key, item in sorted((_order_of(item), item) for item in items):
            if key <= self._last_key:
                raise AuditAbandoned(f"the list is not in the order of its keys: {key!r}")
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in item) + _FRAME
            if size > self._room // 2:
                raise AuditAbandoned(f"the identity of an object has {size} bytes")
            if self._items and (len(self._items) >= ITEMS or self._size + size > self._limit):
                yield self._cut(is_last=False)
            self._items.append(item)
            self._size += size
            self._last_key = key

    def end(self) -> Part:
        """The last page; it may be empty."""
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
