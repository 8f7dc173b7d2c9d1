"""Finds the requests that a changed object wakes.

A watch compares an object with this controller's own record of it (rule P8), never with what the
snapshot made of the event: another consumer may have been faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import PartialMetadata, read_metadata
from fleetbus.controller.watch import Watch
from fleetbus.errors import ClusterNotFound, StoreError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.decision import decide
from fleetbus.intake.mapping import UserCodeFailures, call_map
from fleetbus.intake.matching import Evaluation, Match, Reason, match, passes_filters
from fleetbus.intake.owners import owner_request
from fleetbus.intake.record import MAX_TARGETS, NO_RECORD, TOO_MANY, LastSeen, StoredRecord
from fleetbus.kube.list_watch.listing import DECODE_ERRORS
from fleetbus.process.cancellation import is_stop
from fleetbus.process.metrics import OUTSIDE_FLEET, SKIPPED
from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Add, Priority, encode_trigger
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Routed:
    """The requests and the record that follow from one event.

    Attributes:
        adds: the queue items.
        last_seen: what to remember of the object; None for nothing.
        is_complete: whether every watch could be asked; else nothing is stored, so that the object
            is evaluated again.
    """

    adds: list[Add]
    last_seen: LastSeen | None
    is_complete: bool


class Router:
    """Finds the requests of one controller for each event.

    User code runs here: mapping functions and predicates. What they raise is logged and counted
    and must not stop the stream for all other objects. So that no event is lost by it, a resync of
    its cluster is scheduled, and the event does not count as seen.

    Args:
        controller: whose watches decide.
        clusters: what is known of the clusters, for label selectors and predicates.
        fleet: passed to mapping functions.
        schedule_resync: called with the cluster of an event for which user code failed.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        clusters: Clusters,
        fleet: Fleet,
        schedule_resync: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._clusters = clusters
        self._fleet = fleet
        self._schedule_resync = schedule_resync
        self._failures = UserCodeFailures(controller)
        self._watches: dict[str, list[Watch]] = {}

    def watches(self, event: Event) -> list[Watch]:
        """The watches of the event's resource."""
        key = event.resource_key
        if (watches := self._watches.get(key)) is None:
            watches = self._watches[key] = [
                w for w in self._controller.watches if w.concerns(event.group, event.resource)
            ]
        return watches

    def is_skippable(self, older: Event, newer: Event) -> bool:
        """Whether an older state of an object may be dropped for a newer one that waits too."""
        return is_skippable(self.watches(newer), older, newer)

    def selects(self, event: Event) -> bool:
        """Whether labels or annotations decide about objects of the event's resource."""
        return any(w.selector or w.annotation_selector for w in self.watches(event))

    def refuses(self, event: Event, read: Callable[[], PartialMetadata | None]) -> bool:
        """Whether nothing follows from an event of an object that the record knows nothing of.

        Args:
            event: which.
            read: reads its labels and annotations; None for a body that is too large for the bus.
        """
        info = self._clusters.get(event.cluster)
        try:
            return all(
                passes_filters(watch, event, info, read) is False for watch in self.watches(event)
            )
        except BaseException as e:  # user code, or a body; `evaluate` logs and counts it
            if is_stop(e):
                raise
            return False

    def watches_of_cluster(self, event: Event) -> list[Watch] | None:
        """The watches of the event's resource and cluster; None while that is not known."""
        info = self._clusters.get(event.cluster)
        watches: list[Watch] = []
        for watch in self.watches(event):
            try:
                is_in = watch.clusters.decide(event.cluster, info)
            except BaseException as e:  # user code; `evaluate` logs and counts it
                if is_stop(e):
                    raise
                return None
            if is_in is None:
                return None
            if is_in:
                watches.append(watch)
        return watches

    def own_request(self, event: Event) -> Request:
        """The request that names the event's object itself."""
        return self._controller.request(event.cluster, event.namespace, event.name)

    def requests(self, items: Iterable[str]) -> list[Request]:
        """The requests that the record stores as targets."""
        return [self._controller.request(*i.split("/", 2)) for i in items if i != TOO_MANY]

    def count_skipped(self, reason: Reason, number: int = 1) -> None:
        """Count objects that woke nobody because a successful run had read them."""
        source = "event" if reason is Reason.EVENT else "full_enqueue"
        SKIPPED.labels(self._controller.name, source).inc(number)

    async def adds(self, events: Iterable[Event]) -> list[Add]:
        """The queue items for events, by a controller that has seen nothing yet."""
        return [add for event in events for add in (await self.evaluate(event)).adds]

    async def evaluate(
        self,
        event: Event,
        stored: StoredRecord = NO_RECORD,
        reason: Reason = Reason.EVENT,
        trace: str = "",
    ) -> Routed:
        """Ask all watches about one object, whatever the order guard made of it (rule P8).

        Args:
            event: the object as it is now.
            stored: what the record has of it.
            reason: why it is evaluated.
            trace: of the event, for the runs it wakes.
        """
        evaluation = Evaluation(event, stored, reason, self._clusters.get(event.cluster))
        watches = self.watches(event)
        for watch in watches:
            try:
                await self._ask(watch, evaluation)
            except (RedisError, StoreError):
                raise  # the store is away: the batch is kept, and nothing is acknowledged (P9)
            except BaseException as e:  # user code: one bad object stops nobody
                if is_stop(e):
                    raise
                self._note_failure("predicate_failed", watch, evaluation, e)
        self._leave_unwatched(evaluation, watches)
        return self._route(evaluation, watches, trace)

    # --- one watch ------------------------------------------------------------------------------

    async def _ask(self, watch: Watch, evaluation: Evaluation) -> None:
        outcome = match(watch, evaluation)
        is_match = outcome in (Match.CHANGED, Match.MEMBER)
        if is_match and not evaluation.is_deleted and watch.predicate is not None:
            evaluation.keeps_state = True
        if not watch.is_identity:
            await self._wake_targets(watch, evaluation, outcome)
            return
        evaluation.wakes_own |= outcome is Match.CHANGED or (
            outcome is Match.LEFT and watch.wake_on_leave
        )
        if outcome is Match.CHANGED or (is_match and evaluation.was_member(watch)):
            evaluation.members[watch.id] = None
            evaluation.has_entered |= not evaluation.was_member(watch)

    async def _wake_targets(self, watch: Watch, evaluation: Evaluation, outcome: Match) -> None:
        before = evaluation.last_targets(watch.id)
        if outcome is Match.MEMBER and evaluation.was_member(watch):
            evaluation.members[watch.id] = before
            if evaluation.reason is not Reason.GAP:
                return
            if before == [TOO_MANY]:
                evaluation.targets.update(dict.fromkeys(await self._targets(watch, evaluation)))
        elif outcome is Match.CHANGED or (outcome is Match.LEFT and watch.wake_on_leave):
            targets: list[Request] = []
            if outcome is Match.CHANGED or before == [TOO_MANY]:
                targets = await self._targets(watch, evaluation)
            if outcome is Match.CHANGED:
                items = [_item(request) for request in targets]
                evaluation.members[watch.id] = items if len(items) <= MAX_TARGETS else [TOO_MANY]
                if before in ([], items) and _is_ignored(watch, evaluation):
                    return
            evaluation.targets.update(dict.fromkeys(targets))
        else:
            return
        # Whom it woke last, too: it may name another one now.
        evaluation.targets.update(dict.fromkeys(self.requests(before)))

    # --- whom it wakes --------------------------------------------------------------------------

    async def _targets(self, watch: Watch, evaluation: Evaluation) -> list[Request]:
        if watch.owned:
            owner = owner_request(self._controller, watch, evaluation.event)
            return [owner] if owner else []
        try:
            own_request = self.own_request(evaluation.event)
            return await call_map(watch, evaluation.now, own_request, self._fleet, self._controller)
        except (RedisError, StoreError):
            raise
        except ClusterNotFound as e:
            log.info("cluster_left", controller=self._controller.name, reason=str(e))
        except BaseException as e:  # user code: one bad object stops nobody
            if is_stop(e):
                raise
            self._note_failure("map_failed", watch, evaluation, e)
        return []

    # --- what follows ---------------------------------------------------------------------------

    def _leave_unwatched(self, evaluation: Evaluation, watches: Iterable[Watch]) -> None:
        """Wake through the watches that have seen the object and are not declared any more."""
        if evaluation.last_seen is None or evaluation.is_late:
            return
        ids = {watch.id for watch in watches}
        for watch_id, targets in evaluation.last_seen.members.items():
            if watch_id not in ids:
                evaluation.wakes_own |= targets is None
                evaluation.targets.update(dict.fromkeys(self.requests(targets or ())))

    def _route(self, evaluation: Evaluation, watches: Sequence[Watch], trace: str) -> Routed:
        event = evaluation.event
        decision = decide(evaluation, may_leave=evaluation.is_deleted and _may_leave(watches))
        if decision.is_skipped:
            self.count_skipped(evaluation.reason)
        is_first_list = evaluation.reason is not Reason.EVENT or event.verb is Verb.LISTED
        priority = Priority.INITIAL if is_first_list else Priority.LIVE
        adds: list[Add] = []
        if decision.wakes_own:
            # A full enqueue has no trigger: it names what is known, and nothing that has changed.
            trigger = (
                encode_trigger(*evaluation.version) if evaluation.reason is Reason.EVENT else b""
            )
            adds.append(Add(self.own_request(event), priority, trigger, trace))
        targets = [request for request in evaluation.targets if self._is_of_fleet(request, event)]
        if dropped := len(evaluation.targets) - len(targets):
            OUTSIDE_FLEET.labels(self._controller.name).inc(dropped)
        adds += [Add(request, priority, trace=trace, cause=event.cluster) for request in targets]
        return Routed(adds, decision.last_seen, is_complete=not evaluation.is_undecided)

    def _is_of_fleet(self, request: Request, event: Event) -> bool:
        """Whether a target's cluster exists: a map or an owner mark may name any (rule Q9)."""
        is_own = request.cluster == event.cluster
        return is_own or not self._fleet.is_known or self._fleet.has(request.cluster)

    def _note_failure(
        self, event_name: str, watch: Watch, evaluation: Evaluation, error: BaseException
    ) -> None:
        evaluation.is_undecided = True
        self._failures.note(event_name, watch, evaluation.event, error)
        self._schedule_resync(evaluation.event.cluster)


def _may_leave(watches: Sequence[Watch]) -> bool:
    """Whether these watches may have reported an object as left: all of them select objects."""
    own_watches = [watch for watch in watches if watch.is_identity]
    return any(watch.wake_on_leave for watch in own_watches) and all(
        watch.selector or watch.annotation_selector or watch.predicate for watch in own_watches
    )


def is_skippable(watches: Sequence[Watch], older: Event, newer: Event) -> bool:
    """Whether the newer state wakes whoever the older one would have woken.

    Runs read the snapshot, and other consumers write it: somebody may have read the older state
    although this controller has not received it. Whoever is woken by that state alone, and not by
    what came before and after, would keep what it has read for ever (promise 2).

    Args:
        watches: those of the objects' resource.
        older: a state of an object, not its deletion.
        newer: a later one of the same.
    """
    # Only the author's function knows whom a state names, or what of it matters.
    if any(watch.predicate or watch.map for watch in watches):
        return False
    if not any(watch.owned or watch.selector or watch.annotation_selector for watch in watches):
        return True
    if older.object is None or newer.object is None:
        return False
    try:
        return read_metadata(older.object) == read_metadata(newer.object)
    except DECODE_ERRORS:
        return False


def _is_ignored(watch: Watch, evaluation: Evaluation) -> bool:
    """Whether the watch ignores the change; after a gap it may hide another one."""
    return (
        watch.ignore is not None
        and evaluation.reason is Reason.EVENT
        and watch.ignore(evaluation.event)
    )


def _item(request: Request) -> str:
    return f"{request.cluster}/{request.namespace}/{request.name}"
