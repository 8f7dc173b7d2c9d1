"""Objects as bytes: plain, as a Table, or as metadata only; what Accept asked for.

The plain form of an object is its stored encoding behind a head with kind and apiVersion, so that
all versions, lists and watchers share one encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

from fleetbus_emulator.apiserver.columns import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from fleetbus_emulator.apiserver.storage.store import Stored
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]


class Renderer(Protocol):
    """Encodes objects of one type for one client."""

    def identity(self) -> object:
        """Watchers whose renderers have equal identities may share encoded events."""
        ...

    def one(self, stored: Stored) -> bytes:
        """A single object, also the object of a watch event."""
        ...

    def many(self, items: Sequence[Stored], metadata: JsonObject) -> bytes:
        """A list."""
        ...

    def bookmark(self, rv: int, *, initial_end: bool) -> bytes:
        """The object of a BOOKMARK event."""
        ...


def _bookmark(kind: str, api_version: str, rv: int, *, initial_end: bool) -> bytes:
    metadata: JsonObject = {"resourceVersion": str(rv)}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    # Sorted, because most bookmarks are read in custom resources' streams, which are.
    document = {"kind": kind, "apiVersion": api_version, "metadata": metadata}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _joined(head: bytes, items: list[bytes], tail: bytes) -> bytes:
    """A list; what may be megabytes is copied once."""
    if not items:
        return head + tail
    items[0] = head + items[0]
    items[-1] += tail
    return b",".join(items)


class PlainRenderer:
    """The objects themselves in one served version."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._conversion = served.version.conversion
        kind = b'"kind":' + orjson.dumps(served.rtype.kind)
        version = b'"apiVersion":' + orjson.dumps(served.api_version)
        pair = (version, kind) if served.rtype.custom else (kind, version)
        self._head = b"{" + b",".join(pair) + b","

    def identity(self) -> object:
        """All plain watchers of a version share."""
        return self._head

    def _body(self, stored: Stored) -> bytes:
        if self._conversion is None:
            return stored.body
        fields = {k: v for k, v in stored.obj.items() if k not in ("kind", "apiVersion")}
        return orjson.dumps(self._conversion.to_served(fields))

    def one(self, stored: Stored) -> bytes:
        """The object with kind and apiVersion in front."""
        return self._head + self._body(stored)[1:]

    def many(self, items: Sequence[Stored], metadata: JsonObject) -> bytes:
        """Items of built-in types carry no kind and apiVersion, those of custom resources do."""
        kind = orjson.dumps(self._served.rtype.list_kind)
        version = orjson.dumps(self._served.api_version)
        meta = orjson.dumps(metadata)
        if self._served.rtype.custom:
            listed = [self.one(stored) for stored in items]
            tail = b'],"kind":%b,"metadata":%b}' % (kind, meta)
            return _joined(b'{"apiVersion":%b,"items":[' % version, listed, tail)
        listed = [self._body(stored) for stored in items]
        head = b'{"kind":%b,"apiVersion":%b,"metadata":%b,"items":[' % (kind, version, meta)
        return _joined(head, listed, b"]}")

    def bookmark(self, rv: int, *, initial_end: bool) -> bytes:
        """Bookmark of the type itself."""
        served = self._served
        return _bookmark(served.rtype.kind, served.api_version, rv, initial_end=initial_end)


class MetadataRenderer:
    """PartialObjectMetadata, in a version of meta.k8s.io."""

    def __init__(self, version: str) -> None:
        self._version = version

    def identity(self) -> object:
        """All metadata watchers of a version share."""
        return ("PartialObjectMetadata", self._version)

    def one(self, stored: Stored) -> bytes:
        """Kind, apiVersion and metadata."""
        return orjson.dumps(tables.partial_metadata(stored.obj, self._version))

    def many(self, items: Sequence[Stored], metadata: JsonObject) -> bytes:
        """A PartialObjectMetadataList."""
        group = f"{tables.META_GROUP}/{self._version}"
        head = {"kind": "PartialObjectMetadataList", "apiVersion": group}
        listed = [tables.partial_metadata(stored.obj, self._version) for stored in items]
        # An empty list is null: Go's nil slice, unlike in the lists of whole objects.
        return orjson.dumps({**head, "metadata": metadata, "items": listed or None})

    def bookmark(self, rv: int, *, initial_end: bool) -> bytes:
        """A PartialObjectMetadata without name."""
        group = f"{tables.META_GROUP}/{self._version}"
        return _bookmark("PartialObjectMetadata", group, rv, initial_end=initial_end)


class TableRenderer:
    """The Table that kubectl prints.

    Args:
        served: The type.
        clock: Tells the time that ages are counted to; a watch may be open for long.
        include: What a row holds of its object: None, Metadata or Object.
        version: The version of meta.k8s.io.
    """

    def __init__(
        self, served: Served, clock: Callable[[], datetime], include: str, version: str
    ) -> None:
        self._served = served
        self._clock = clock
        self._include = include
        self._version = version
        self._columns = tables.columns_of(served)
        self._whole = PlainRenderer(served)

    def identity(self) -> object:
        """Ages depend on the time: nothing is shared."""
        return self

    def one(self, stored: Stored) -> bytes:
        """A Table of one row."""
        return self.many([stored], {"resourceVersion": str(stored.rv)})

    def many(self, items: Sequence[Stored], metadata: JsonObject) -> bytes:
        """A Table of all rows."""
        now = self._clock()
        return self._table([self._row(stored, now) for stored in items], metadata)

    def bookmark(self, rv: int, *, initial_end: bool) -> bytes:
        """A Table without rows."""
        metadata: JsonObject = {"resourceVersion": str(rv)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return self._table([], metadata)

    def _table(self, rows: list[JsonObject], metadata: JsonObject) -> bytes:
        return orjson.dumps(tables.table(self._columns, rows, metadata, self._version))

    def _row(self, stored: Stored, now: datetime) -> JsonObject:
        row = tables.row_of(self._served, stored.obj, now)
        if self._include == "Metadata":
            row["object"] = tables.partial_metadata(stored.obj, self._version)
        elif self._include == "Object":
            row["object"] = orjson.Fragment(self._whole.one(stored))
        return row
