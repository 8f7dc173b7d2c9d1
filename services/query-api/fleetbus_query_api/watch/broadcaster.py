"""Delivers the changes of the snapshot to all watches of the process (rules A5, A8).

The objects of changed keys are read once for all watches, and an event is encoded once for all
whose clients accept the same form.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import redis.exceptions
import structlog
from prometheus_client import Counter

from fleetbus.errors import FleetbusError, StoreError
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot import ListQuery, Page
from fleetbus.snapshot.reads.changed import MOST, Change, ChangedObjects, ObjectState
from fleetbus.snapshot.reads.feed import Position
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.limits.turns import Turns
from fleetbus_query_api.objects.listing import ObjectListing
from fleetbus_query_api.responses.problem import GoneProblem, UnavailableProblem
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.watch.admission import Admission
from fleetbus_query_api.watch.events import Event, Settler, Shown, key_of
from fleetbus_query_api.watch.selection import Matching, Pages, Selector
from fleetbus_query_api.watch.shown_keys import KeyCount, ShownKeys
from fleetbus_query_api.watch.subscription import EndReason, Subscription

log = structlog.get_logger()

ENDED: Final = Counter(
    "fleetbus_query_api_ended_watches_total",
    "Watches that have ended, by reason: client, timeout, stopping, expired (410: changes were"
    " missed), slow (410: too much was waiting for the client), rights (410: the clusters that"
    " the user may read have changed), failed.",
    ["reason"],
)
for _reason in EndReason:
    ENDED.labels(_reason)
DELIVERED: Final = Counter(
    "fleetbus_query_api_watch_changes_total", "Changes of the snapshot delivered to watches."
)

_MAX_PENDING: Final = 50_000
"""Changes that wait to be delivered."""
_MAX_WAITING: Final = 64 * 1024 * 1024
_PAGE: Final = 100
"""Objects per page of a present state: each client has one page in memory."""
_CUTS: Final = ("dropped", "unwatched")
"""Changes that are no deletions."""
_RETRY: Final = timedelta(milliseconds=100)
_READ_AT_A_TIME: Final = 8
_READ_OF_USER: Final = 2
"""Pages that are read for the watches of one user at a time: more of them would read no faster, and
others would wait."""


@dataclass(slots=True)
class _Step:
    """A change to deliver.

    Attributes:
        is_wanted: whether somebody may see the object, as far as was known when it was read.
        is_read: whether `state` is the object, as it was after the change.
    """

    change: Change
    is_wanted: bool
    is_read: bool = False
    state: ObjectState | None = None


class _Topic:
    """The watches of one resource.

    Args:
        keys: what those with selectors have shown.
    """

    def __init__(self, keys: ShownKeys) -> None:
        self.keys = keys
        self.settler = Settler()
        self.subscriptions: set[Subscription] = set()
        self.matching: dict[Selector, Matching] = {}

    def wants(self, change: Change) -> bool:
        """Whether the object of a change may be shown to somebody."""
        key = key_of(change)
        return any(subscription.sees(*key) for subscription in self.subscriptions)

    def deliver(self, event: Event) -> None:
        """Offer an event to those who see its object."""
        key = event.key
        for matching in self.matching.values():
            matching.update(event)
        visibility = Shown.YES if event.existed else Shown.NO
        for subscription in tuple(self.subscriptions):
            if not subscription.sees(*key):
                continue
            try:
                if subscription.matching is None:
                    subscription.offer(event, visibility, event.is_live)
                else:
                    subscription.offer(event, *subscription.matching.outcome)
            except Exception:  # of one encoder, or one object: the others go on
                log.exception("event_not_encoded", cluster=key[0], resource=event.entry.name)
                subscription.end(EndReason.FAILED, GoneProblem("an object could not be encoded"))

    def forget_unseen(self, matching: Matching) -> None:
        """Forget what matches in clusters that nobody has there: their events are not delivered."""
        users = (
            subscription for subscription in self.subscriptions if subscription.matching is matching
        )
        matching.keep({cluster for subscription in users for cluster in subscription.clusters})

    def cut(self, change: Change, problem: GoneProblem) -> None:
        """End the watches that have shown objects of a cluster, or one object."""
        for subscription in tuple(self.subscriptions):
            is_cluster = not change.resource and change.cluster in subscription.clusters
            if is_cluster or (change.resource and subscription.sees(*key_of(change))):
                subscription.end(EndReason.EXPIRED, problem)
        if not change.resource:
            for matching in self.matching.values():
                matching.forget(change.cluster)
            self.keys.drop(change.cluster)


class Broadcaster:
    """Follows the feed while there are watches.

    Args:
        tail: of the feed.
        slices: run the delivery.
        listing: reads the present state.
        settings: the limits.
        max_waiting: bytes that wait for all clients; the one that is furthest behind is cut.
    """

    def __init__(
        self,
        *,
        tail: FeedTail,
        slices: TimeSlices,
        listing: ObjectListing,
        settings: QueryApiSettings,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self.tail = tail
        self._max_waiting = max_waiting
        self.slices = slices
        self._listing = listing
        self._admission = Admission(settings)
        self._reading = Turns(total=_READ_AT_A_TIME, each=_READ_OF_USER)
        self._keys = KeyCount()
        self._loads: set[asyncio.Task[None]] = set()
        self._topics: dict[str, _Topic] = {}
        self._pending: list[Change] = []
        self._has_pending = asyncio.Event()
        # Behind the last change that waits; that is being delivered; that was.
        self._reached = self._delivering = self._delivered = 0
        self._losses = 0
        self._unfollow: Callable[[], None] | None = None
        self._is_closed = False
        self._failing = LogOnce()

    @property
    def objects(self) -> ChangedObjects:
        """Reads the objects of changes."""
        return self.tail.feed.objects

    @property
    def delivered(self) -> int:
        """The version up to which every watch was offered everything."""
        return self._delivered

    @property
    def joined_at(self) -> int:
        """The version after which a watch that joins now is offered everything."""
        return self._delivering

    def admit(self, user: str, selector: Selector) -> Callable[[], None]:
        """Count a watch of a user, until the result is called.

        Raises:
            TooManyRequestsProblem: there are too many, or their selectors take too much work.
            UnavailableProblem: the process stops.
        """
        if self._is_closed:
            raise UnavailableProblem("the query API is stopping; try again")
        return self._admission.admit(user, selector)

    async def start(self) -> Position:
        """Follow the feed; returns a position that nothing made before this call is behind.

        Raises: as `FeedTail.catch_up`.
        """
        end = await self.tail.catch_up()
        if self._unfollow is None:
            now = self.tail.position or end  # another one may have caught up since
            self._reached = self._delivering = self._delivered = now.version
            self._unfollow = self.tail.follow(self)
        return end

    def join(self, resource: str, subscription: Subscription) -> None:
        """Offer a watch every event after `joined_at`."""
        topic = self._topics.get(resource)
        if topic is None:
            topic = self._topics[resource] = _Topic(ShownKeys(self._keys, self.slices))
        topic.subscriptions.add(subscription)
        if not subscription.selector.is_by_content:
            return
        matching = topic.matching.get(subscription.selector)
        if matching is None:
            read = self._read_matching(resource, subscription.user)
            matching = Matching(subscription.selector, topic.keys, read, self._now)
            topic.matching[subscription.selector] = matching
        matching.users += 1
        subscription.matching = matching

    def load(self, subscription: Subscription, clusters: Iterable[str]) -> None:
        """Read what the selector of a watch matches in clusters, where that is not known."""
        matching = subscription.matching
        if matching is None:
            return
        loading = asyncio.create_task(self._load(matching, list(clusters)), name="watch-selection")
        self._loads.add(loading)
        loading.add_done_callback(self._loads.discard)

    def leave(self, resource: str, subscription: Subscription) -> None:
        """Take that a watch is over."""
        ENDED.labels(subscription.end_reason or EndReason.CLIENT).inc()
        topic, matching = self._topics.get(resource), subscription.matching
        if topic is None or subscription not in topic.subscriptions:
            return
        topic.subscriptions.discard(subscription)
        if matching is not None:
            matching.users -= 1
            topic.forget_unseen(matching)
            if not matching.users:
                del topic.matching[subscription.selector]
                matching.close()
        if not topic.subscriptions:
            del self._topics[resource]
        if not self._topics:
            self._stop_following()

    async def read_present(
        self, resource: str, clusters: Iterable[str], selector: Selector, user: str
    ) -> AsyncGenerator[Page]:
        """Read the present state of what is selected, page by page, by turns with other users."""
        query = ListQuery(
            clusters=sorted(clusters),
            resource=resource,
            namespace=selector.namespace or None,
            name=selector.name or None,
            labels=selector.labels or None,
            limit=_PAGE,
            count=False,
        )
        while True:
            async with self._reading.take(user):
                page = (await self._listing.page(query, selector.fields)).page
            yield page
            if not page.continue_token:
                return
            query = replace(query, continue_token=page.continue_token)

    def close(self) -> None:
        """End all watches, so that their clients go on elsewhere, and admit no other one."""
        self._is_closed = True
        for subscription in list(self._subscriptions()):
            subscription.end(EndReason.STOPPING)

    # --- as a follower of the feed --------------------------------------------------------------

    def advanced(self, changes: Sequence[Change], position: Position) -> None:
        """Take the next changes."""
        self._pending += changes
        self._reached = position.version
        self._has_pending.set()
        if len(self._pending) > _MAX_PENDING:
            self.lost("the query API does not keep up with the changes: list again")

    def lost(self, reason: str) -> None:
        """End all watches: changes were missed."""
        self._losses += 1
        self._pending.clear()
        for subscription in list(self._subscriptions()):
            subscription.end(EndReason.EXPIRED, GoneProblem(reason))
        # Those that are about to leave are in no topic: events that follow are not for them.
        for topic in self._topics.values():
            topic.keys.clear()
        self._topics.clear()
        self._stop_following()

    # --- inside ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Deliver changes meanwhile."""
        delivering = asyncio.create_task(self._run(), name="watches")
        try:
            yield
        finally:
            self.close()
            tasks = [delivering, *self._loads]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _subscriptions(self) -> Iterable[Subscription]:
        return (
            subscription for topic in self._topics.values() for subscription in topic.subscriptions
        )

    def _stop_following(self) -> None:
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        self._pending.clear()

    async def _run(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            try:
                await self._deliver_pending()
            except Exception:
                log.exception("changes_not_delivered")
                self.lost("a change could not be delivered: list again")

    async def _deliver_pending(self) -> None:
        while self._pending:
            losses = self._losses
            changes, self._pending = self._pending[:MOST], self._pending[MOST:]
            self._delivering = changes[-1].version
            steps = await self._read(changes)
            if losses != self._losses:
                return
            await self.slices.run(lambda step, at=losses: self._deliver(step, at), steps)
            self._limit_waiting()
        self._delivering = self._delivered = self._reached

    async def _read(self, changes: Sequence[Change]) -> list[_Step]:
        """Read the objects that somebody may see, where no other change of theirs follows."""
        steps = [_Step(change, is_wanted=self._is_wanted(change)) for change in changes]
        last = {(s.change.resource, *key_of(s.change)): s for s in steps if s.is_wanted}
        read = list(last.values())
        states = await self._read_states([step.change for step in read])
        for step, state in zip(read, states, strict=True):
            step.state, step.is_read = state, True
        return steps

    async def _read_states(self, changes: Sequence[Change]) -> Sequence[ObjectState | None]:
        """Read objects, again and again while the store is away; after a loss nobody needs them."""
        losses = self._losses
        while changes and losses == self._losses:
            try:
                states = await self.objects.read(changes)
            except (redis.exceptions.RedisError, StoreError, OSError, TimeoutError) as e:
                if self._failing.should_log(str(e)):
                    log.warning("changed_objects_not_read", error=str(e) or type(e).__name__)
                await asyncio.sleep(_RETRY.total_seconds())
            else:
                self._failing.reset()
                return states
        return [None] * len(changes)

    def _is_wanted(self, change: Change) -> bool:
        topic = self._topics.get(change.resource)
        return topic is not None and change.type not in _CUTS and topic.wants(change)

    def _deliver(self, step: _Step, losses: int) -> None:
        if losses != self._losses:
            return
        change = step.change
        self._delivered = change.version
        topic = self._topics.get(change.resource)
        if change.type in _CUTS:
            self._cut(change)
        elif topic is None:
            return
        elif not step.is_wanted:
            topic.settler.forget(change)
        elif not step.is_read:
            topic.settler.skip(change)
        elif (event := topic.settler.settle(change, step.state)) is not None:
            topic.deliver(event)
            DELIVERED.inc()

    def _cut(self, change: Change) -> None:
        """End the watches that have shown what is no longer watched, and is not deleted."""
        if change.type == "dropped":
            reason = f"cluster {change.cluster} has left the fleet: list again"
        else:
            reason = f"cluster {change.cluster} no longer watches {change.resource}: list again"
        for resource, topic in list(self._topics.items()):
            if change.resource not in ("", resource):
                continue
            topic.cut(change, GoneProblem(reason))

    def _limit_waiting(self) -> None:
        """Cut those that are furthest behind while too much waits for all of them."""
        subscriptions = [
            subscription
            for subscription in self._subscriptions()
            if subscription.end_reason is None
        ]
        total = sum(subscription.waiting for subscription in subscriptions)
        while total > self._max_waiting:
            slowest = max(subscriptions, key=lambda subscription: subscription.waiting)
            subscriptions.remove(slowest)
            total -= slowest.waiting
            slowest.end(EndReason.SLOW, GoneProblem("too much was waiting for you: list again"))

    async def _load(self, matching: Matching, clusters: Sequence[str]) -> None:
        for cluster in clusters:
            await self._load_cluster(matching, cluster)

    async def _load_cluster(self, matching: Matching, cluster: str) -> None:
        while self._is_seen(matching, cluster):
            try:
                await matching.load(cluster)
            except (redis.exceptions.RedisError, FleetbusError, OSError, TimeoutError) as e:
                if self._failing.should_log(str(e)):
                    log.warning("selected_objects_not_read", error=str(e) or type(e).__name__)
                await asyncio.sleep(_RETRY.total_seconds())
            else:
                return

    def _is_seen(self, matching: Matching, cluster: str) -> bool:
        """Whether somebody gets the events of a cluster that keep what matches there current."""
        return any(
            subscription.matching is matching and cluster in subscription.clusters
            for subscription in self._subscriptions()
        )

    async def _now(self) -> int:
        return (await self.tail.catch_up()).version

    def _read_matching(self, resource: str, user: str) -> Callable[[str, Selector], Pages]:
        return lambda cluster, selector: self.read_present(resource, [cluster], selector, user)
