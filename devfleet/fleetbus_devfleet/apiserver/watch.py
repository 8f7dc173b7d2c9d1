"""A watch: a cursor over the events of one store.

It has no queue. `read` encodes what the log holds beyond the cursor (sharing the encoding with all
other watchers of the same form), `wait` sleeps until a write, a timer or the end wakes it. A cursor
that the log has left behind gets an ERROR 410 like one that began too early.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_devfleet.apiserver import errors
from fleetbus_devfleet.apiserver.faults import CutWatch, Expire, WatchFault
from fleetbus_devfleet.apiserver.store import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_devfleet.apiserver.read import Selection
    from fleetbus_devfleet.apiserver.render import Renderer
    from fleetbus_devfleet.apiserver.store import Event, Store

BATCH = 500
LAST_BOOKMARK_SECONDS = 2.0  # before the deadline
SHORTEST_WITH_BOOKMARK_SECONDS = 4.0  # shorter watches get none at their end (FACTS W8)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch was asked for.

    Attributes:
        rv: Begin behind this revision; None begins with the present state.
        seconds: The watch ends after so long.
        bookmark_seconds: The distance of bookmarks; None for none.
        initial_events_end: Mark the end of the present state with an annotated bookmark.
    """

    rv: int | None
    seconds: float
    bookmark_seconds: float | None = None
    initial_events_end: bool = False


@dataclass(slots=True)
class _Timers:
    """When something is due, in the loop's time."""

    deadline: float
    bookmark: float | None
    last_bookmark: float | None
    handle: asyncio.TimerHandle | None = None


class Watch:
    """One open watch.

    Args:
        store: What is watched.
        renderer: Encodes the objects.
        selected: Which objects.
        options: Beginning, bookmarks, deadline.
        present_rv: Tells the cluster's revision.

    Attributes:
        faults: How the watch misbehaves; may be added to while it is open.
        ended: No more will come; the transport should end the response.
        aborted: The transport should break the connection instead.
    """

    def __init__(
        self,
        *,
        store: Store,
        renderer: Renderer,
        selected: Selection,
        options: WatchOptions,
        present_rv: Callable[[], int],
    ) -> None:
        self._store = store
        self._renderer = renderer
        self._selected = selected
        self._options = options
        self._present_rv = present_rv
        self.faults: list[WatchFault] = []
        self.ended = False
        self.aborted = False
        self.sent = 0
        self._head: list[bytes] = []
        self._timers: _Timers | None = None
        self._future: asyncio.Future[None] | None = None
        self._position = self._begin()
        store.listeners.add(self.wake)

    # life ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the watch: the server stops, or the type goes."""
        self.ended = True
        self.wake()

    def release(self) -> None:
        """The transport is done with the watch."""
        self._store.listeners.discard(self.wake)
        if self._timers is not None and self._timers.handle is not None:
            self._timers.handle.cancel()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Sleep until `read` may have something."""
        loop = asyncio.get_running_loop()
        self._arm(loop)
        self._future = loop.create_future()
        try:
            await self._future
        finally:
            self._future = None

    # reading ------------------------------------------------------------------------------------

    def read(self) -> bytes:
        """What there is to send now; sets `ended` and `aborted`."""
        lines, self._head = self._head, []
        if not self.ended:
            lines += self._drain()
            self.ended = self.ended or self._store.closed
        if not self.ended:
            lines += self._due_bookmarks()
        if self.faults:
            lines = self._spoiled(lines)
        self.sent += len(lines)
        return b"".join(lines)

    def _spoiled(self, lines: list[bytes]) -> list[bytes]:
        """Hold back what exceeds a fault's allowance, then let the fault strike."""
        found = (fault.allowance(self.sent) for fault in self.faults)
        allowances = [allowance for allowance in found if allowance is not None]
        if allowances:
            lines, self._head = lines[: min(allowances)], lines[min(allowances) :]
        for fault in self.faults:
            action = fault.strikes(self.sent + len(lines))
            if isinstance(action, Expire):
                self._head.clear()
                lines.append(self._expired())
            elif isinstance(action, CutWatch):
                self.aborted = self.ended = True
                if action.mid_line and lines:
                    lines[-1] = lines[-1][: len(lines[-1]) // 2]
        return lines

    def _begin(self) -> int:
        rv, store = self._options.rv, self._store
        if rv is None:
            select = self._selected
            for stored in store.snapshot().select(select.namespace):
                if select.matches is None or select.matches(stored.obj):
                    self._head.append(self._encode("ADDED", stored))
            if self._options.initial_events_end:
                self._head.append(self._bookmark(initial_end=True))
            return store.end
        if rv < store.floor:
            self._head.append(self._expired())
            return store.end
        return store.position_after(rv)

    def _drain(self) -> list[bytes]:
        lines: list[bytes] = []
        while not self.ended:
            events = self._store.events_from(self._position, BATCH)
            if events is None:
                lines.append(self._expired())
                break
            if not events:
                break
            self._position += len(events)
            # A future start revision swallows what is below it, silently (FACTS W9).
            floor = self._options.rv or 0
            found = (self._line(event) for event in events if event.stored.rv > floor)
            lines += [line for line in found if line is not None]
        return lines

    def _line(self, event: Event) -> bytes | None:
        selected, stored = self._selected, event.stored
        if selected.namespace is not None and stored.key[0] != selected.namespace:
            return None
        if selected.matches is None:
            return self._shared(event)
        now = event.type != "DELETED" and selected.matches(stored.obj)
        before = event.old is not None and selected.matches(event.old.obj)
        if now and not before:
            return self._encode("ADDED", stored)
        if before and event.old is not None and not now and event.type != "DELETED":
            return self._encode("DELETED", _left(event.old, stored.rv))
        return self._shared(event) if now or before else None

    def _shared(self, event: Event) -> bytes:
        identity = self._renderer.identity()
        if identity is self._renderer:
            return self._encode(event.type, event.stored)
        line = event.lines.get(identity)
        if line is None:
            line = event.lines[identity] = self._encode(event.type, event.stored)
        return line

    def _encode(self, event_type: str, stored: Stored) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (event_type.encode(), self._renderer.one(stored))

    def _expired(self) -> bytes:
        self.ended = True
        rv = self._options.rv or 0
        status = errors.expired(f"too old resource version: {rv} ({self._store.floor})").to_status()
        return b'{"type":"ERROR","object":%b}\n' % orjson.dumps(status)

    # time ---------------------------------------------------------------------------------------

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        timers = self._timers
        if timers is None:
            timers = self._timers = self._first_timers(now)
        if timers.handle is None:
            due = [timers.deadline, timers.bookmark, timers.last_bookmark]
            timers.handle = loop.call_at(min(t for t in due if t is not None), self._fire)

    def _first_timers(self, now: float) -> _Timers:
        seconds, every = self._options.seconds, self._options.bookmark_seconds
        last = None
        if every is not None and seconds > SHORTEST_WITH_BOOKMARK_SECONDS:
            last = now + seconds - LAST_BOOKMARK_SECONDS
        return _Timers(now + seconds, None if every is None else now + every, last)

    def _fire(self) -> None:
        if self._timers is not None:
            self._timers.handle = None
        self.wake()

    def _due_bookmarks(self) -> list[bytes]:
        timers = self._timers
        if timers is None:
            return []
        now = asyncio.get_running_loop().time()
        if now >= timers.deadline:
            self.ended = True
            return []
        due = False
        if timers.last_bookmark is not None and now >= timers.last_bookmark:
            timers.last_bookmark, due = None, True
        if timers.bookmark is not None and now >= timers.bookmark:
            timers.bookmark, due = now + (self._options.bookmark_seconds or 0), True
        if not due or any(fault.hides_bookmarks for fault in self.faults):
            return []
        return [self._bookmark(initial_end=False)]

    def _bookmark(self, *, initial_end: bool) -> bytes:
        rv = max(self._present_rv(), self._options.rv or 0)
        shown = self._renderer.bookmark(rv, initial_end=initial_end)
        return b'{"type":"BOOKMARK","object":%b}\n' % shown


def _left(old: Stored, rv: int) -> Stored:
    """An object that left the selection: its old content under the new revision (FACTS W6)."""
    metadata: dict[str, Any] = {**old.obj["metadata"], "resourceVersion": str(rv)}
    return Stored(old.key, {**old.obj, "metadata": metadata}, rv)
