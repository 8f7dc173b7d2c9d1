"""Answers a watch: what its client has missed, or the present state, then every change (A5, A6).

A watch from a version sends what changed since, then what changes. One without a version sends the
present state first. It ends with an ERROR 410 where it would miss something, and its client lists
again; it ends without one when its time is over or the process stops, and its client goes on from
the last version that it has got.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import redis.exceptions

from fleetbus.errors import StoreError
from fleetbus.snapshot import Entry, ExpiredToken
from fleetbus.snapshot.reads.changed import MOST, Change, ObjectState
from fleetbus.snapshot.reads.feed import ExpiredPosition, Position, resume
from fleetbus_query_api.catalog.readable import Readable
from fleetbus_query_api.objects.listing import members_of
from fleetbus_query_api.responses.problem import (
    GoneProblem,
    NotFoundProblem,
    Problem,
    TooManyRequestsProblem,
    UnavailableProblem,
)
from fleetbus_query_api.watch.backlog import Listed, Missed
from fleetbus_query_api.watch.broadcaster import Broadcaster
from fleetbus_query_api.watch.requests import Periodic, WatchRequest
from fleetbus_query_api.watch.subscription import EndReason, Subscription

_NEVER_GOOD: Final = 1
"""A version from before the feed of any store."""
_STORE_AWAY: Final = (redis.exceptions.RedisError, StoreError, OSError, TimeoutError)
BOOKMARK_EVERY: Final = timedelta(minutes=1)
RECHECK_EVERY: Final = timedelta(seconds=30)
"""Time for which a change of the clusters that a user may read goes unnoticed, beyond the caches
(A3)."""
LONGEST: Final = timedelta(hours=1)
"""The longest watch; without a timeout they end after half of it to all of it."""


class Timers:
    """When something is due that is not an event."""

    def __init__(self, request: WatchRequest) -> None:
        self._loop = asyncio.get_running_loop()
        longest = LONGEST.total_seconds()
        timeout = longest * random.uniform(0.5, 1)  # noqa: S311  # so that not all end at once
        if request.timeout is not None:
            timeout = min(request.timeout.total_seconds(), longest)
        recheck = RECHECK_EVERY.total_seconds()
        self._every = {"timeout": timeout, "recheck": recheck}
        if request.has_bookmarks:
            self._every["bookmark"] = BOOKMARK_EVERY.total_seconds()
        now = self._loop.time()
        self._due = {name: now + every for name, every in self._every.items()}
        self._due["recheck"] -= random.uniform(0, recheck / 2)  # noqa: S311  # likewise
        if request.bookmarks_at_once:
            self._due["bookmark"] = now
        if request.periodic is not None:
            self._every["periodic"] = request.periodic.interval.total_seconds()
            self._due["periodic"] = now

    def is_due(self, name: str) -> bool:
        """Whether something is due; then it is due again after its interval."""
        due, now = self._due.get(name), self._loop.time()
        if due is None or now < due:
            return False
        self._due[name] = now + self._every[name]
        return True

    def next(self) -> float:
        """When something is due next, in the loop's time."""
        return min(self._due.values())


class Watches:
    """Opens watches.

    Args:
        broadcaster: delivers changes to them.
    """

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.broadcaster = broadcaster

    async def open(self, request: WatchRequest) -> OpenWatch:
        """Open a watch; whoever iterates over it closes it.

        A version that cannot be resumed from is no error here: the watch then begins and ends with
        ERROR 410, as of an API server.

        Raises:
            TooManyRequestsProblem: too many watches are open.
            UnavailableProblem: the process stops, or the hub does not decide.
            StoreEmpty: the store was emptied (rule P13).
            redis.exceptions.RedisError: the store does not answer.
            Problem: whatever `find` raises.
        """
        release = self.broadcaster.admit(request.user, request.selector)
        try:
            readable = await request.find()
            end = await self._start()
            # From here to `join` nothing may be awaited: events would go by without this watch.
            return OpenWatch(self.broadcaster, request, readable, end, release)
        except BaseException:
            release()
            raise

    async def _start(self) -> Position:
        try:
            return await self.broadcaster.start()
        except ExpiredPosition as e:
            raise UnavailableProblem(str(e)) from None


class OpenWatch:
    """An open watch, as an iterator over what its client gets.

    Args:
        broadcaster: delivers changes.
        request: the request.
        readable: what the user may watch.
        end: a position at which nothing that was made before the request is missing.
        release: is called at the end.
    """

    def __init__(
        self,
        broadcaster: Broadcaster,
        request: WatchRequest,
        readable: Readable,
        end: Position,
        release: Callable[[], None],
    ) -> None:
        self._broadcaster = broadcaster
        self._asked = request
        self._readable = readable
        self._resource = readable.resource.key
        self._release = release
        self._missed_from: Position | None = None
        self._checking: asyncio.Task[Readable] | None = None
        self._is_finished = False
        since = request.since or 0
        self._joined = self._broadcaster.joined_at
        version = since if since and not request.begins_with_state else end.version
        self._subscription = Subscription(
            encoder=request.encoder,
            selector=request.selector,
            user=request.user,
            clusters=readable.clusters,
            since=self._joined if request.begins_with_state else version,
            opened=0 if request.begins_with_state else end.version,
        )
        try:
            if request.begins_with_state:
                if since > end.version:
                    resume(since, end)
                self._subscription.hold()
            elif since:
                position = resume(since, end)
                if since < self._joined:
                    self._missed_from = position
                    self._subscription.hold()
        except ExpiredPosition as e:
            self._subscription.end(EndReason.EXPIRED, GoneProblem(str(e)))
        self._broadcaster.join(self._resource, self._subscription)

    def close(self) -> None:
        """End the watch: its client has gone."""
        self._subscription.end(EndReason.CLIENT)

    def finish(self) -> None:
        """Forget the watch; also if nobody has iterated over it."""
        if self._is_finished:
            return
        self._is_finished = True
        self.close()
        self._broadcaster.leave(self._resource, self._subscription)
        self._release()
        if self._checking is not None:
            self._checking.cancel()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Yield everything that the client gets, in chunks; at most once."""
        try:
            async for chunk in self._chunks():
                if chunk:
                    yield chunk
        finally:
            self.finish()

    async def _chunks(self) -> AsyncGenerator[bytes]:
        subscription = self._subscription
        try:
            self._broadcaster.load(subscription, subscription.clusters)
            async for chunk in self._begin():
                if subscription.end_reason is not None:
                    break
                yield chunk
            async for chunk in self._follow():
                yield chunk
        except (ExpiredPosition, ExpiredToken) as e:
            subscription.end(EndReason.EXPIRED, GoneProblem(str(e)))
        except _STORE_AWAY:
            away = UnavailableProblem("the snapshot's store does not answer")
            subscription.end(EndReason.FAILED, away)
        except Problem as e:
            subscription.end(EndReason.FAILED, e)
        yield subscription.take()  # the error, if there was one

    # --- what the client does not know yet ------------------------------------------------------

    async def _begin(self) -> AsyncGenerator[bytes]:
        request, subscription = self._asked, self._subscription
        if self._missed_from is not None:
            async for chunk in self._catch_up(self._missed_from):
                yield chunk
        elif request.begins_with_state and subscription.end_reason is None:
            listed = Listed(members_of(self._readable), self._joined)
            async for chunk in self._list(listed):
                yield chunk
            if request.sends_initial and request.has_bookmarks:
                yield request.encoder.bookmark(listed.version, ends_initial=True)
            subscription.skip_listed(listed.clusters, listed.version, listed.late)
            subscription.flush(visibility=listed.shown(), since=listed.version)

    async def _list(self, listed: Listed) -> AsyncGenerator[bytes]:
        """Send the present state of clusters; events are held back meanwhile."""
        subscription, lines = self._subscription, list[bytes]()

        def take(entry: Entry) -> None:
            lines.append(subscription.encoder.listed(listed.take(entry)))

        async for page in self._broadcaster.read_present(
            self._resource, listed.clusters, subscription.selector, self._asked.user
        ):
            listed.begin(page.counter)
            await self._broadcaster.slices.run(take, page.entries)
            yield b"".join(lines)
            lines.clear()

    async def _catch_up(self, position: Position) -> AsyncGenerator[bytes]:
        """Send what changed between the client's version and the events that are held back."""
        subscription, missed = self._subscription, Missed(self._subscription)
        while position.version < self._joined:
            changes, position = await self._broadcaster.tail.feed.read(position)
            for change in changes:
                if change.version <= self._joined and change.resource in ("", self._resource):
                    missed.take(change)
        last_changes = list(missed.last.values())
        for at in range(0, len(last_changes), MOST):
            batch = last_changes[at : at + MOST]
            states = await self._broadcaster.objects.read(batch)
            lines: list[bytes] = []

            def render(pair: tuple[Change, ObjectState | None], to: list[bytes] = lines) -> None:
                to.append(missed.render(*pair))

            await self._broadcaster.slices.run(render, zip(batch, states, strict=True))
            yield b"".join(lines)
        subscription.flush(visibility=missed.shown(), since=self._joined)

    # --- what changes ---------------------------------------------------------------------------

    async def _follow(self) -> AsyncGenerator[bytes]:
        request, subscription, timers = self._asked, self._subscription, Timers(self._asked)
        while True:
            reason, lines = subscription.end_reason, subscription.take()
            if request.has_bookmarks and reason in (EndReason.TIMEOUT, EndReason.STOPPING):
                lines += self._bookmark()
            yield lines
            if reason is not None:
                return
            if timers.is_due("timeout"):
                subscription.end(EndReason.TIMEOUT)
                continue
            if timers.is_due("bookmark"):
                yield self._bookmark()
            if request.periodic is not None and timers.is_due("periodic"):
                yield await self._render_periodic(request.periodic)
            if timers.is_due("recheck") and self._checking is None:
                self._checking = asyncio.create_task(_as_task(request.find()), name="recheck")
                self._checking.add_done_callback(lambda _: subscription.ready.set())
            if self._checking is not None and self._checking.done():
                async for chunk in self._apply_check(self._checking):
                    yield chunk
                self._checking = None
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(timers.next()):
                    await subscription.ready.wait()

    async def _render_periodic(self, periodic: Periodic) -> bytes:
        try:
            return await periodic.render(self._readable)
        except _STORE_AWAY:
            return b""  # the next one reports what is outdated

    def _bookmark(self) -> bytes:
        version = max(self._broadcaster.delivered, self._subscription.since)
        return self._asked.encoder.bookmark(version, ends_initial=False)

    async def _apply_check(self, checking: asyncio.Task[Readable]) -> AsyncGenerator[bytes]:
        """Take which clusters the user may watch now (rule A3)."""
        subscription = self._subscription
        try:
            readable = checking.result()
        except TooManyRequestsProblem:
            return  # checked again soon; decisions are not kept for longer than they may be
        except NotFoundProblem:
            subscription.end(EndReason.RIGHTS, _rights_changed())
            return
        except Problem as e:
            subscription.end(EndReason.RIGHTS, e)
            return
        except _STORE_AWAY:
            return  # the tail of the feed knows what was lost, once the store is back
        self._readable = readable
        clusters = set(readable.clusters)
        if subscription.clusters - clusters:
            subscription.end(EndReason.RIGHTS, _rights_changed())
        elif more := clusters - subscription.clusters:
            async for chunk in self._include(more):
                yield chunk

    async def _include(self, clusters: set[str]) -> AsyncGenerator[bytes]:
        """Show clusters that have joined the fleet, or that the user may read from now on."""
        subscription = self._subscription
        yield subscription.take()
        subscription.hold()
        subscription.clusters |= clusters
        self._broadcaster.load(subscription, clusters)
        members = [name for name in members_of(self._readable) if name in clusters]
        # Who goes on from one of its objects would miss those that come after it by name, so they
        # have a version that is answered with 410. The next event, or bookmark, has a good one.
        listed = Listed(members, _NEVER_GOOD)
        async for chunk in self._list(listed):
            yield chunk
        subscription.skip_listed(listed.clusters, listed.version, listed.late)
        subscription.flush(visibility=listed.shown())
        if self._asked.has_bookmarks:  # the objects have older versions than the last event
            subscription.put(self._bookmark())


async def _as_task(awaitable: Awaitable[Readable]) -> Readable:
    return await awaitable


def _rights_changed() -> GoneProblem:
    return GoneProblem("the clusters of the fleet that you may read have changed: list again")
