"""A watch: a cursor over the events of one store.

It has no queue. `read` encodes what the log holds beyond the cursor (sharing the encoding with all
other watchers of the same form), `wait` sleeps until a write, a timer or the end wakes it. A cursor
that the log has left behind gets an ERROR 410 like one that began too early.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.faults.streams import Break, WatchFault, apply_faults
from fleetbus_emulator.apiserver.storage.store import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fleetbus_emulator.apiserver.encoding.render import Renderer
    from fleetbus_emulator.apiserver.faults import Drip
    from fleetbus_emulator.apiserver.read.lists import Selection
    from fleetbus_emulator.apiserver.storage.progress import StoreProgress
    from fleetbus_emulator.apiserver.storage.store import Event, Store

BATCH = 500
LAST_BOOKMARK_SECONDS = 2.0  # before the deadline
SHORTEST_WITH_BOOKMARK_SECONDS = 4.0  # shorter watches get none at their end


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The parameters of a watch.

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
    """The times at which something is due, in the loop's time."""

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
        progress: When the store reports it, for bookmarks; None for always.
        faults: How the watch misbehaves from its beginning.

    Attributes:
        faults: How the watch misbehaves; may be added to while it is open.
        sent: How many lines were sent.
        ended: No more will come; the transport should end the response.
        broken: How the transport should break the connection instead.
    """

    def __init__(
        self,
        *,
        store: Store,
        renderer: Renderer,
        selected: Selection,
        options: WatchOptions,
        present_rv: Callable[[], int],
        progress: StoreProgress | None = None,
        faults: Sequence[WatchFault] = (),
    ) -> None:
        self._store = store
        self._renderer = renderer
        self._selected = selected
        self._options = options
        self._present_rv = present_rv
        self._progress = progress
        # What the client knows, and up to where the events of the type have been read since.
        self._began_rv = self._read_rv = options.rv or present_rv()
        self.faults = list(faults)
        self.ended = False
        self.broken: Break | None = None
        self.sent = 0
        self._head: list[bytes] = []
        self._initial: deque[Stored] = deque()  # what there was, as far as it is not sent yet
        self._initial_end_pending = False
        self._timers: _Timers | None = None
        self._future: asyncio.Future[None] | None = None
        self._position = store.end
        self._position = self._begin()
        store.listeners.add(self.wake)

    # life ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the watch: the server stops, or the type is removed."""
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
        """Return the lines to send now, some hundred at most; sets `ended` and `broken`."""
        if self.faults and self._is_stalling():
            return b""
        lines, self._head = self._head, []
        if not self.ended:
            lines += self._present_state()
        if not self.ended and not self._initial:
            lines += self._drain()
            self.ended = self.ended or (self._store.closed and len(lines) < BATCH)
        if not self.ended and not self._initial:
            lines += self._due_bookmarks()
        if self.faults:
            lines = self._spoiled(lines)
        self.sent += len(lines)
        return b"".join(lines)

    @property
    def behind(self) -> int:
        """The number of events of the log it has not read yet, whether they match or not."""
        return self._store.end - self._position

    @property
    def drip(self) -> Drip | None:
        """The pace at which the transport should send; None for as fast as it can."""
        return next((fault.drip for fault in self.faults if fault.drip), None)

    def _is_stalling(self) -> bool:
        return bool(self.faults) and any(fault.is_stalling(self.sent) for fault in self.faults)

    def _spoiled(self, lines: list[bytes]) -> list[bytes]:
        outcome = apply_faults(self.faults, lines, self.sent, self._expired)
        self._head = outcome.held
        self.ended = self.ended or outcome.ended
        self.broken = outcome.broken
        return outcome.lines

    def _begin(self) -> int:
        rv, store = self._options.rv, self._store
        if rv is None:
            self._initial.extend(self._selected_now())
            self._initial_end_pending = self._options.initial_events_end
            return store.end
        if rv < store.floor:
            self._head.append(self._expired())
            return store.end
        return store.position_after(rv)

    def _selected_now(self) -> Iterator[Stored]:
        select = self._selected
        for stored in self._store.snapshot().select(select.namespace):
            if self.faults and any(f.drops_initial(stored.rv, *stored.key) for f in self.faults):
                continue
            if select.matches is None or select.matches(stored.obj):
                yield stored

    def _present_state(self) -> list[bytes]:
        """The next part of what there was when the watch began."""
        count = min(BATCH, len(self._initial))
        lines = [self._encode("ADDED", self._initial.popleft()) for _ in range(count)]
        if self._initial_end_pending and not self._initial:
            self._initial_end_pending = False
            if self._store.events_from(self._position, 1) is None:
                lines.append(self._expired())  # a bookmark would promise what the log has lost
            else:
                lines.append(self._bookmark(initial_end=True))
        return lines

    def _drain(self) -> list[bytes]:
        lines: list[bytes] = []
        line_of, end = self._line, None
        if self.faults:
            line_of, end = self._undropped_line, self._end()
        # A future start revision swallows what is below it, silently.
        floor = self._options.rv or 0
        while not self.ended:
            limit = BATCH if end is None else min(BATCH, end - self._position)
            events = self._store.events_from(self._position, limit)
            if events is None:
                lines.append(self._expired())
                break
            self._position += len(events)
            if events:
                self._read_rv = events[-1].stored.rv
            rendered = (line_of(event) for event in events if event.stored.rv > floor)
            lines += [line for line in rendered if line is not None]
            if len(events) < BATCH or len(lines) >= BATCH:
                break
        return lines

    def _undropped_line(self, event: Event) -> bytes | None:
        line = self._line(event)
        if line is None or any(fault.drops(event, line) for fault in self.faults):
            return None
        return line

    def _end(self) -> int:
        """The position up to which faults let it read."""
        lags = [fault.lag for fault in self.faults if fault.lag]
        end = self._store.end
        return min([end, *(lag.visible(self._position, end, self.wake) for lag in lags)])

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
        if timers.handle is None and not self._is_stalling():
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
        return [self._bookmark(initial_end=False)] if due and self._has_news() else []

    def _has_news(self) -> bool:
        """Whether a bookmark would have a later revision than the start of the watch."""
        return self._progress is None or self._reported_rv() > self._began_rv

    def _reported_rv(self) -> int:
        present = self._present_rv()
        if self._progress is None:
            return present
        return max(self._progress.reported(present), self._read_rv)

    def _bookmark(self, *, initial_end: bool) -> bytes:
        unread = self._store.events_from(self._position, 1)
        # A bookmark promises that nothing up to it is missing, also when a fault keeps us behind.
        present = self._present_rv() if initial_end else self._reported_rv()
        reached = unread[0].stored.rv - 1 if unread else present
        rv = max(reached, self._options.rv or 0)
        bookmark = self._renderer.bookmark(rv, initial_end=initial_end)
        return b'{"type":"BOOKMARK","object":%b}\n' % bookmark


def _left(old: Stored, rv: int) -> Stored:
    """An object that left the selection: its old content under the new revision."""
    metadata: dict[str, Any] = {**old.obj["metadata"], "resourceVersion": str(rv)}
    return Stored(old.key, {**old.obj, "metadata": metadata}, rv)
