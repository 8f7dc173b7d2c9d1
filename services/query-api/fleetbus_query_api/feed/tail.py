"""Reads the end of the snapshot's feed for the whole process (rule A5).

The feed is read while somebody follows it, or asks to catch up; an idle process reads nothing. A
position that has become void, because the feed was cut or the store was lost, is reported to all
listeners: whatever they hold may have changed unnoticed. While the store does not answer, only
those who wait to catch up get an error: what others hold may still be right, and the position tells
once it answers again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, Protocol

import redis.exceptions
import structlog

from fleetbus.errors import FleetbusError, StoreError
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.reads.changed import Change
from fleetbus.snapshot.reads.feed import MOST, ExpiredPosition, Feed, Position

log = structlog.get_logger()

INTERVAL: Final = timedelta(milliseconds=50)
"""Between two reads while somebody follows the feed: by so much a change is delayed."""
_SLOW_INTERVAL: Final = timedelta(seconds=1)
"""While there are only listeners for single resources, who catch up before they answer: it keeps
what they then have to read short."""
_ANSWER_WITHIN: Final = timedelta(seconds=5)
_AWAY: Final = (redis.exceptions.RedisError, StoreError, OSError, TimeoutError)


class Listener(Protocol):
    """Is called by the tail, on the event loop; must neither block nor raise."""

    def changed(self, changes: Sequence[Change]) -> None:
        """Take the next changes, in the order of their versions, at least one."""
        ...

    def lost(self, reason: str) -> None:
        """Drop what is held: changes were missed. Those from now on are delivered."""
        ...


class Follower(Protocol):
    """Is called for every change of the snapshot; as `Listener` otherwise."""

    def advanced(self, changes: Sequence[Change], position: Position) -> None:
        """Take the next changes, maybe none, and the position behind them."""
        ...

    def lost(self, reason: str) -> None:
        """Drop what is held: changes were missed. Those from now on are delivered."""
        ...


class FeedTail:
    """Delivers the changes of the snapshot to those who asked for them.

    Whoever holds rows of a resource first catches up, then listens, then reads the rows: every
    change after that is delivered. Before each answer they catch up again. As long as nobody has
    caught up there is no position, and `lost` is called for all who listen by then.

    Args:
        feed: of the snapshot.
        answer_within: how long the store may take.
    """

    def __init__(self, feed: Feed, *, answer_within: timedelta = _ANSWER_WITHIN) -> None:
        self.feed = feed
        self._answer_within = answer_within.total_seconds()
        self._position: Position | None = None
        self._listeners: dict[tuple[str, str], list[Listener]] = {}
        self._followers: list[Follower] = []
        self._waiting: list[asyncio.Future[Position]] = []
        self._wake = asyncio.Event()
        self._has_ended = False
        self._failing = LogOnce()

    @property
    def position(self) -> Position | None:
        """Behind the last change that was delivered; None if it is not known."""
        return self._position

    def listen(self, cluster: str, resource: str, listener: Listener) -> Callable[[], None]:
        """Deliver the changes of a resource in a cluster from now on; call the result to end it.

        A cluster that is dropped is a change of all its resources.
        """
        place = (cluster, resource)
        self._listeners.setdefault(place, []).append(listener)
        self._wake.set()

        def end() -> None:
            with suppress(KeyError, ValueError):
                self._listeners[place].remove(listener)
                if not self._listeners[place]:
                    del self._listeners[place]

        return end

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Deliver all changes from now on, soon after they are made; call the result to end it."""
        self._followers.append(follower)
        self._wake.set()

        def end() -> None:
            with suppress(ValueError):
                self._followers.remove(follower)

        return end

    async def catch_up(self) -> Position:
        """Deliver every change that was made before this call; returns the position behind them.

        Raises:
            StoreEmpty: the store was emptied (rule P13).
            StoreError: the process stops, the store does not answer in time, or its server was
                replaced and no projector has noticed yet.
            redis.exceptions.RedisError: the store does not answer.
        """
        if self._has_ended:
            raise _stopping()
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._wake.set()
        try:
            return await answer
        except TimeoutError as e:
            raise StoreError("the store does not answer in time") from e

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Read the feed meanwhile."""
        reading = asyncio.create_task(self._run(), name="feed-tail")
        try:
            yield
        finally:
            self._has_ended = True
            reading.cancel()
            await asyncio.wait([reading])
            _answer(self._waiting, lambda future: future.set_exception(_stopping()))

    async def _run(self) -> None:
        while True:
            await self._wait()
            waiting, self._waiting = self._waiting, []
            try:
                position = await self._read_on()
            except asyncio.CancelledError:
                self._waiting += waiting
                raise
            except Exception as e:  # noqa: BLE001  # who waits gets it, and the next may succeed
                self._report(e)
                _answer(waiting, lambda future, why=e: future.set_exception(copy.copy(why)))
                await asyncio.sleep(INTERVAL.total_seconds())
            else:
                self._failing.reset()
                _answer(waiting, lambda future, at=position: future.set_result(at))

    async def _wait(self) -> None:
        """Wait until the feed is to be read."""
        pause = None
        if self._followers:
            pause = INTERVAL.total_seconds()
        elif self._listeners:
            pause = _SLOW_INTERVAL.total_seconds()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()

    async def _read_on(self) -> Position:
        """Read to the end and deliver; what was changed meanwhile may be left for the next time."""
        if self._position is None:
            return await self._begin()
        if not self._is_needed():
            end = await self._find_end()
            if not self._is_needed():  # somebody may go on from the last position since
                self._position = end
                return end
        while True:
            try:
                async with asyncio.timeout(self._answer_within):
                    changes, position = await self.feed.read(self._position)
            except FleetbusError as e:  # the store is empty, or another one: nothing goes on
                self._lose(str(e))
                return await self._begin()
            self._position = position
            self._deliver(changes, position)
            if len(changes) < MOST:
                return position

    async def _begin(self) -> Position:
        """Go on from the present; whoever listens has missed what came before."""
        position = await self._find_end()
        self._lose("the feed is followed from here on")
        self._position = position
        return position

    async def _find_end(self) -> Position:
        """The end of the feed; one whose server was replaced has none until it begins anew."""
        why = ""
        try:
            async with asyncio.timeout(self._answer_within):
                while True:
                    try:
                        return await self.feed.end()
                    except ExpiredPosition as e:
                        why = str(e)
                    await asyncio.sleep(INTERVAL.total_seconds())
        except TimeoutError as e:
            if why:
                raise StoreError(why) from e
            raise

    def _is_needed(self) -> bool:
        """Whether somebody gets the changes."""
        return bool(self._followers or self._listeners)

    def _deliver(self, changes: Sequence[Change], position: Position) -> None:
        for place, group in self._group(changes).items():
            for listener in tuple(self._listeners.get(place, ())):
                _call(listener, lambda receiver=listener, its=group: receiver.changed(its))
        for follower in tuple(self._followers):
            _call(follower, lambda receiver=follower: receiver.advanced(changes, position))

    def _group(self, changes: Iterable[Change]) -> dict[tuple[str, str], list[Change]]:
        """The changes by the resources that somebody listens to."""
        groups: dict[tuple[str, str], list[Change]] = {}
        for change in changes if self._listeners else ():
            for place in self._places_of(change):
                groups.setdefault(place, []).append(change)
        return groups

    def _places_of(self, change: Change) -> Iterable[tuple[str, str]]:
        if change.resource:
            place = (change.cluster, change.resource)
            return (place,) if place in self._listeners else ()
        return [place for place in self._listeners if place[0] == change.cluster]

    def _lose(self, reason: str) -> None:
        self._position = None
        for listener in [
            listener for listeners in self._listeners.values() for listener in listeners
        ]:
            _call(listener, lambda receiver=listener: receiver.lost(reason))
        for follower in tuple(self._followers):
            _call(follower, lambda receiver=follower: receiver.lost(reason))

    def _report(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if isinstance(error, _AWAY):
            if self._failing.should_log(text):
                log.warning("feed_not_read", error=text)
            return
        # Something in the feed that nobody understands must not be read again and again.
        log.error("feed_not_read", error=text, exc_info=error)
        self._lose("the feed could not be read")


def _stopping() -> StoreError:
    return StoreError("the query API is stopping; try again")


def _answer(
    waiting: Iterable[asyncio.Future[Position]],
    settle: Callable[[asyncio.Future[Position]], None],
) -> None:
    for future in waiting:
        if not future.done():  # its task may have been cancelled
            settle(future)


def _call(listener: Listener | Follower, deliver: Callable[[], None]) -> None:
    """Call one; what is wrong with it must not end the feed of the others."""
    try:
        deliver()
    except Exception:
        log.exception("listener_failed", listener=type(listener).__name__)
        with suppress(Exception):
            listener.lost("a change could not be taken")  # it may hold what is outdated
