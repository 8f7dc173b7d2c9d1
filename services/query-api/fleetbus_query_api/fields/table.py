"""The rows of one resource in one cluster, and the columns that were read of them."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fleetbus.kube.field_paths import FieldPath
from fleetbus.snapshot.reads.changed import Change
from fleetbus.snapshot.reads.rows import StoredRow
from fleetbus_proto.events import UNREADABLE
from fleetbus_proto.keys import object_key
from fleetbus_query_api.fields.bodies import UnreadableBody
from fleetbus_query_api.fields.column import UNDECIDED, FieldColumn
from fleetbus_query_api.fields.extract import field_reader

_ROW_BYTES: Final = 60
"""Bytes of a row, besides the characters of its key: the object around them, and its places."""
_OWN_BYTES: Final = 2_000
"""Bytes of a table without rows."""
_FEW: Final = 1_000


class Place(NamedTuple):
    """One resource in one cluster."""

    cluster: str
    resource: str


class FieldTable:
    """Rows in the order of lists, each with the counter of the change that was read.

    The feed reports which rows have changed; the rows themselves change only under the lock.

    Args:
        place: which rows.

    Attributes:
        columns: by path; with those that are being read.
        dirty: rows that have changed since they were read, with the version of the change.
        lock: held while rows are used, or changed.
        is_loaded: whether all keys are there.
        is_void: changes were missed, or everything is gone: it must not be used any more.
        pins: how many questions use it, and by path each column.
        measured: its size when it was last counted.
        end: stops the delivery of changes.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.keys: list[bytes] = []
        self.counters = array("Q")
        self.columns: dict[FieldPath, FieldColumn] = {}
        self.dirty: dict[bytes, int] = {}
        self.lock = asyncio.Lock()
        self.is_loaded = False
        self.is_void = False
        self.pins: Counter[FieldPath | None] = Counter()
        self.measured = 0
        self.end: Callable[[], None] = lambda: None
        self._key_bytes = 0

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        columns = sum(column.size for column in self.columns.values())
        rows = len(self.keys) + len(self.dirty)
        return _OWN_BYTES + columns + self._key_bytes + _ROW_BYTES * rows

    def has(self, paths: Iterable[FieldPath]) -> bool:
        """Whether all rows of these columns were read."""
        return self.is_loaded and all(
            path in self.columns and self.columns[path].is_read for path in paths
        )

    def pin(self, paths: Iterable[FieldPath], by: int = 1) -> None:
        """Keep these columns; with -1 no longer."""
        self.pins.update(dict.fromkeys((*paths, None), by))

    # --- changes ----------------------------------------------------------------------------------

    def changed(self, changes: Sequence[Change]) -> None:
        """Note which rows have changed."""
        for change in changes:
            if not change.name:  # the whole cluster, or the whole resource
                self.lost("dropped")
                return
            key = object_key(change.namespace, change.name).encode()
            self.dirty[key] = max(change.version, self.dirty.get(key, 0))
        if not self.pins[None] and len(self.dirty) > _FEW + len(self.keys) // 2:
            self.lost("reading it anew costs as much")

    def lost(self, reason: str) -> None:
        """Give up: changes were missed."""
        del reason
        self.is_void = True
        self.end()

    def settle(self, key: bytes, version: int) -> None:
        """Forget that a row has changed, unless it has changed again."""
        if self.dirty.get(key) == version:
            del self.dirty[key]

    # --- rows -------------------------------------------------------------------------------------

    def fill(self, keys: Iterable[bytes]) -> None:
        """Add keys after all others."""
        for key in keys:
            self.keys.append(key)
            self._key_bytes += len(key)
            self.counters.append(0)

    def find(self, key: bytes) -> int | None:
        """The number of the row of a key."""
        at = bisect_left(self.keys, key)
        return at if at < len(self.keys) and self.keys[at] == key else None

    def span(self, namespace: str | None) -> tuple[int, int]:
        """The first row of a namespace, and the first one after it; all rows for None."""
        if namespace is None:
            return 0, len(self.keys)
        start = f"{namespace}/".encode()
        return bisect_left(self.keys, start), bisect_left(self.keys, start[:-1] + b"0")

    def put(self, row: StoredRow, only: Mapping[FieldPath, FieldColumn] | None = None) -> None:
        """Take what was read of a row; what was read before something newer changes nothing.

        Args:
            row: what was read.
            only: the columns to set, if the row has not changed since the others were read.
        """
        at = self.find(row.key)
        counter = int(row.guard.counter) if row.guard is not None else 0
        if at is not None and row.guard is not None and counter < self.counters[at]:
            return
        if not row.is_live:
            if at is not None:
                self._remove(at)
            return
        if at is None:
            at = bisect_left(self.keys, row.key)
            self._insert(at, row.key)
            only = None
        elif counter != self.counters[at]:
            only = None
        self.counters[at] = counter
        body = b"" if row.guard is None or row.guard.degraded == UNREADABLE else row.body
        for path, column in (self.columns if only is None else only).items():
            try:
                column.set(at, field_reader(path)(body))
            except UnreadableBody:
                column.set(at, UNDECIDED)

    def _insert(self, at: int, key: bytes) -> None:
        self.keys.insert(at, key)
        self._key_bytes += len(key)
        self.counters.insert(at, 0)
        for column in self.columns.values():
            column.insert(at, UNDECIDED)

    def _remove(self, at: int) -> None:
        self._key_bytes -= len(self.keys.pop(at))
        self.counters.pop(at)
        for column in self.columns.values():
            column.remove(at)
