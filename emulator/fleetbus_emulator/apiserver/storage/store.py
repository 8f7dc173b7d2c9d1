"""The objects of one resource type and the log of what happened to them.

An object is never changed once it is stored: writers store a new one. That makes it safe to share
one dict, and one encoded form of it, among lists, events, watchers and in-process subscribers.
Every past state that the log still reaches can be rebuilt by undoing events, which is how pages of
a list stay a snapshot without snapshots being kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Key = tuple[str, str]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]
MANY = 64


class Stored:
    """An object as it was after one write."""

    __slots__ = ("_body", "_option", "key", "obj", "rv")

    def __init__(self, key: Key, obj: dict[str, Any], rv: int, *, sort_keys: bool = False) -> None:
        self.key = key
        self.obj = obj
        self.rv = rv
        self._body: bytes | None = None
        # Custom resources come out with sorted keys, as from Go's maps.
        self._option = orjson.OPT_SORT_KEYS if sort_keys else 0

    @property
    def body(self) -> bytes:
        """The JSON without kind and apiVersion, which differ between the served versions."""
        if self._body is None:
            fields = {k: v for k, v in self.obj.items() if k not in ("kind", "apiVersion")}
            self._body = orjson.dumps(fields, option=self._option)
        return self._body

    def copy(self) -> dict[str, Any]:
        """A deep copy that the caller may change."""
        copied: dict[str, Any] = orjson.loads(self.body)
        return {"apiVersion": self.obj["apiVersion"], "kind": self.obj["kind"], **copied}


class Event:
    """One committed write.

    Attributes:
        stored: The object after the write; for DELETED the last state under the deletion's rv.
        old: The object before the write.
        lines: Encoded watch lines by renderer, so that all watchers share one encoding.
    """

    __slots__ = ("lines", "old", "stored", "type")

    def __init__(self, event_type: EventType, stored: Stored, old: Stored | None) -> None:
        self.type: EventType = event_type
        self.stored = stored
        self.old = old
        self.lines: dict[object, bytes] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects of a store at one revision, in key order."""

    keys: list[Key]
    lookup: Callable[[Key], Stored]

    def span(self, namespace: str | None, after: Key | None = None) -> tuple[int, int]:
        """The index range of a namespace's keys (None: all), beginning behind `after`."""
        low, high = 0, len(self.keys)
        if namespace is not None:
            low = bisect_left(self.keys, (namespace, ""))
            high = bisect_left(self.keys, (namespace + "\0", ""))
        if after is not None:
            low = max(low, bisect_right(self.keys, after))
        return low, high

    def select(self, namespace: str | None, after: Key | None = None) -> Iterator[Stored]:
        """The objects of a namespace (None: of all), beginning behind `after`."""
        low, high = self.span(namespace, after)
        for index in range(low, high):
            yield self.lookup(self.keys[index])


class Store:
    """Objects by key and the events that the log still holds.

    Args:
        floor: The revision before the first event that can be asked for.
        capacity: How many events are kept at least; up to a quarter more are.

    Attributes:
        forgotten: The revision of the newest event that the log has lost: no earlier state can be
            restored. 0 if it has all.
    """

    def __init__(self, floor: int, capacity: int) -> None:
        self.floor = floor
        self.forgotten = 0
        self.closed = False
        self.listeners: set[Callable[[], None]] = set()
        self._capacity = capacity
        self._items: dict[Key, Stored] = {}
        self._sorted: list[Key] = []
        self._fresh: list[Key] = []  # keys that are not among the sorted ones yet
        self._events: list[Event] = []
        self._first = 0  # position of _events[0]; positions only ever grow
        self._oldest = floor  # the oldest past that lists can show

    def get(self, key: Key) -> Stored | None:
        """The object, or None."""
        return self._items.get(key)

    def __len__(self) -> int:
        return len(self._items)

    def snapshot(self) -> Snapshot:
        """The present state; valid until the next write."""
        return Snapshot(self._keys(), self._items.__getitem__)

    def _keys(self) -> list[Key]:
        """All keys in order; new ones are sorted in on the next read.

        Many at once are sorted in, which for a hundred thousand takes a tenth of the time.
        """
        if len(self._fresh) > MANY:
            self._sorted += self._fresh
            self._sorted.sort()
        else:
            for key in self._fresh:
                insort(self._sorted, key)
        self._fresh.clear()
        return self._sorted

    def commit(self, event: Event) -> None:
        """Store the outcome of a write and wake the watchers."""
        self._place(event.stored.key, None if event.type == "DELETED" else event.stored)
        self._events.append(event)
        if len(self._events) > self._capacity + self._capacity // 4:
            self._drop(len(self._events) - self._capacity)
        self.wake()

    def wake(self) -> None:
        """Make every watcher look again."""
        for listener in tuple(self.listeners):
            listener()

    def close(self) -> None:
        """The type is no longer served: watches end."""
        self.closed = True
        self.wake()

    # the log ------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The position behind the last event."""
        return self._first + len(self._events)

    def position_after(self, rv: int) -> int:
        """The position of the first event later than `rv`."""
        return self._first + bisect_right(self._events, rv, key=_rv)

    def events_from(self, position: int, limit: int) -> list[Event] | None:
        """Events from a position on; None if the log no longer reaches back to it."""
        if position < self._first:
            return None
        start = position - self._first
        return self._events[start : start + limit]

    def compact(self, rv: int, *, watches: bool) -> None:
        """Forget the states before `rv`; with `watches` also the events up to it."""
        self._oldest = max(self._oldest, rv)
        if watches:
            self._drop(bisect_right(self._events, rv, key=_rv))
            self.floor = max(self.floor, rv)

    def _drop(self, count: int) -> None:
        if count:
            self.forgotten = self._events[count - 1].stored.rv
            self.floor = max(self.floor, self.forgotten)
            del self._events[:count]
            self._first += count

    # the past -----------------------------------------------------------------------------------

    def at(self, rv: int) -> Snapshot | None:
        """The state at a past revision; None if it is compacted."""
        if rv < max(self.floor, self._oldest):
            return None
        undone: dict[Key, Stored | None] = {}
        for event in reversed(self._events[self.position_after(rv) - self._first :]):
            undone[event.stored.key] = event.old
        if not undone:
            return self.snapshot()
        keys = [key for key in self._keys() if key not in undone]
        keys += [key for key, old in undone.items() if old is not None]

        def lookup(key: Key) -> Stored:
            return undone.get(key) or self._items[key]

        return Snapshot(sorted(keys), lookup)

    def roll_back(self, rv: int) -> None:
        """Return to the state at `rv`, not before `forgotten`, forgetting what came later."""
        start = self.position_after(rv) - self._first
        for event in reversed(self._events[start:]):
            self._place(event.stored.key, event.old)
        del self._events[start:]
        # Lists and watches go on from there, even if that is older than a compaction.
        self.floor, self._oldest = min(self.floor, rv), min(self._oldest, rv)
        self.closed = False

    def _place(self, key: Key, stored: Stored | None) -> None:
        if stored is not None:
            if key not in self._items:
                self._fresh.append(key)
            self._items[key] = stored
        elif self._items.pop(key, None) is not None:
            keys = self._keys()
            del keys[bisect_left(keys, key)]


def _rv(event: Event) -> int:
    return event.stored.rv
