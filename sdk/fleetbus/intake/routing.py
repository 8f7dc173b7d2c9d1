"""From a changed object to the requests it wakes.

A watch looks at an object against what this controller's own record says of it (rule P8), never
against what the snapshot made of the event: another consumer may have been faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import cast

import msgspec
import structlog
from redis.exceptions import RedisError

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller, Watch
from fleetbus.controller.filters import PartialMetadata, read_metadata
from fleetbus.errors import ClusterNotFound, StoreError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.owners import owner_request
from fleetbus.intake.record import (
    MAX_TARGETS,
    NEVER,
    NO_RECORD,
    TOO_MANY,
    LastSeen,
    StoredRecord,
    is_older,
    pack,
    unpack,
)
from fleetbus.intake.superseded import is_skippable
from fleetbus.intake.user_code import UserCodeFailures, call_map
from fleetbus.kube.client import Object
from fleetbus.kube.trees import read_tree
from fleetbus.process.cancellation import is_stop
from fleetbus.process.metrics import OUTSIDE_FLEET, SKIPPED
from fleetbus.reconcile import Request
from fleetbus.run.current import Version
from fleetbus.workqueue.queue import Add, Priority, encode_trigger
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_comparable

log = structlog.get_logger()


class Reason(Enum):
    """Why an object is looked at."""

    EVENT = auto()
    """The bus told of it."""
    RESYNC = auto()
    """A cluster joined or changed, or a process started: what was seen as it is now stays."""
    GAP = auto()
    """Something may have been missed (rule P12): only what is proved reconciled stays."""
    NEW_CODE = auto()
    """The controller's code has changed: nothing is proved, and nothing was seen."""


class Match(Enum):
    """Where an object stands with one watch."""

    NONE = auto()
    MEMBER = auto()
    """It matches; this change does not matter."""
    CHANGED = auto()
    LEFT = auto()


@dataclass
class Evaluation:
    """One object as it is now, beside what the record holds of it."""

    event: Event
    stored: StoredRecord
    reason: Reason
    info: ClusterInfo | None
    members: dict[int, list[str] | None] = field(default_factory=dict[int, list[str] | None])
    unmatched: list[int] = field(default_factory=list[int])
    targets: dict[Request, None] = field(default_factory=dict[Request, None])
    wakes_own: bool = False
    has_entered: bool = False
    """It matches an identity watch that it did not match before."""
    has_matched: bool = False
    """It is late, and its state of then matched an identity watch."""
    keeps_state: bool = False
    is_open: bool = False
    """Something could not be decided: nothing is remembered, so it is looked at again."""

    def __post_init__(self) -> None:
        self.version: Version = (self.event.incarnation.number, self.event.resource_version)
        self.is_deleted = self.event.verb is Verb.DELETED
        held = self.stored.last_seen
        last_seen = self.last_seen = held if held is not None and held.is_seen else None
        self.is_stale = last_seen is not None and is_older(self.version, last_seen.version)
        is_same = last_seen is not None and self.version == last_seen.version
        self.is_unchanged = is_same and self.reason in (Reason.RESYNC, Reason.GAP)

    @cached_property
    def marked(self) -> PartialMetadata | None:
        """Labels and annotations; None for a body that is too large for the bus."""
        return None if self.event.object is None else read_metadata(self.event.object)

    @cached_property
    def now(self) -> Object | None:
        """The whole object."""
        body = self.event.object
        return None if body is None else cast("Object", read_tree(body))

    @cached_property
    def old(self) -> Object | None:
        """The object as this controller saw it last; of a deletion, else as the event tells."""
        if self.reason is not Reason.NEW_CODE and self.last_seen and self.last_seen.state:
            return cast("Object", read_tree(unpack(self.last_seen.state)))
        return self.now if self.is_deleted else None

    def was_member(self, watch: Watch) -> bool:
        """Whether the object matched the watch when it was seen last."""
        return self.last_seen is not None and watch.id in self.last_seen.members

    def last_targets(self, watch_id: int) -> list[str]:
        """The requests that the object woke last through a mapped watch."""
        return (self.last_seen and self.last_seen.members.get(watch_id)) or []


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a look.

    Attributes:
        adds: the queue items.
        last_seen: what to remember; None for nothing.
        is_final: whether to remember it at all.
    """

    adds: list[Add]
    last_seen: LastSeen | None
    is_complete: bool


class Router:
    """Finds the requests of one controller for each event.

    User code runs here: mapping functions and predicates. What they raise is logged and counted
    and must not stop the stream for all others; so that nothing is lost by it, the event's cluster
    is named to `owe`, for a full enqueue later, and the event does not count as seen.

    Args:
        controller: whose watches decide.
        clusters: what is known of the clusters, for label selectors and predicates.
        fleet: handed to mapping functions.
        owe: told the cluster of an event for which user code failed.
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
        self._owe = schedule_resync
        self._failures = UserCodeFailures(controller)

    def watches(self, event: Event) -> list[Watch]:
        """Those of the event's resource."""
        return [w for w in self._controller.watches if w.concerns(event.group, event.resource)]

    def is_skippable(self, older: Event, newer: Event) -> bool:
        """Whether nobody misses the older of two states of an object that both wait."""
        return is_skippable(self.watches(newer), older, newer)

    def selects(self, event: Event) -> bool:
        """Whether labels or annotations decide about objects of the event's resource."""
        return any(w.selector or w.annotation_selector for w in self.watches(event))

    def watches_of_cluster(self, event: Event) -> list[Watch] | None:
        """Those that concern the event's cluster now, too; None while that cannot be told."""
        info = self._clusters.get(event.cluster)
        found: list[Watch] = []
        for watch in self.watches(event):
            try:
                is_in = watch.clusters.decide(event.cluster, info)
            except BaseException as e:  # user code; `judge` logs and counts it
                if is_stop(e):
                    raise
                return None
            if is_in is None:
                return None
            if is_in:
                found.append(watch)
        return found

    def own_request(self, event: Event) -> Request:
        """The request that names the event's object itself."""
        return self._controller.request(event.cluster, event.namespace, event.name)

    def requests(self, items: Iterable[str]) -> list[Request]:
        """Those that the record names as targets."""
        return [self._controller.request(*i.split("/", 2)) for i in items if i != TOO_MANY]

    def count_skipped(self, reason: Reason, number: int = 1) -> None:
        """Count what woke nobody because a successful run had read it."""
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
    ) -> Decision:
        """Look at one object, whatever the order guard said of it (P8).

        Args:
            event: the object as it is now.
            stored: what the record has of it.
            reason:  why it is looked at.
            trace: of the event, for the runs it wakes.
        """
        look = Evaluation(event, stored, reason, self._clusters.get(event.cluster))
        watches = self.watches(event)
        for watch in watches:
            try:
                await self._ask(watch, look)
            except (RedisError, StoreError):
                raise  # the store is away: the batch is kept, and nothing is acknowledged (P9)
            except BaseException as e:  # user code, and one bad object stops nobody
                if is_stop(e):
                    raise
                self._note_failure("predicate_failed", watch, look, e)
        self._leave_unwatched(look, watches)
        return self._conclude(look, trace)

    # --- one watch ------------------------------------------------------------------------------

    async def _ask(self, watch: Watch, look: Evaluation) -> None:
        stand = self._stand(watch, look)
        is_kept = stand in (Match.CHANGED, Match.MEMBER)
        if is_kept and not look.is_deleted and watch.predicate is not None:
            look.keeps_state = True
        if watch.is_identity:
            look.wakes_own |= stand is Match.CHANGED or (
                stand is Match.LEFT and watch.wake_on_leave
            )
            if stand is Match.CHANGED or (is_kept and look.was_member(watch)):
                look.members[watch.id] = None
                look.has_entered |= not look.was_member(watch)
        else:
            await self._wake_targets(watch, look, stand)

    async def _wake_targets(self, watch: Watch, look: Evaluation, stand: Match) -> None:
        before = look.last_targets(watch.id)
        if stand is Match.MEMBER and look.was_member(watch):
            look.members[watch.id] = before
            if look.reason is not Reason.GAP:
                return
            if before == [TOO_MANY]:
                look.targets.update(dict.fromkeys(await self._targets(watch, look)))
        elif stand is Match.CHANGED or (stand is Match.LEFT and watch.wake_on_leave):
            found: list[Request] = []
            if stand is Match.CHANGED or before == [TOO_MANY]:
                found = await self._targets(watch, look)
            look.targets.update(dict.fromkeys(found))
            if stand is Match.CHANGED:
                items = [_item(request) for request in found]
                look.members[watch.id] = items if len(items) <= MAX_TARGETS else [TOO_MANY]
        else:
            return
        # Also whom it woke last: the object may have turned to somebody else.
        look.targets.update(dict.fromkeys(self.requests(before)))

    def _stand(self, watch: Watch, look: Evaluation) -> Match:
        was = look.was_member(watch)
        has = self._matches(watch, look)
        if has is None:
            look.is_open = True
            return Match.MEMBER if was else Match.NONE
        if look.is_deleted and not look.is_stale:
            # Of a body that was left out nothing is known, but perhaps from before.
            has = has and (look.event.object is not None or look.last_seen is None)
            return self._stand_of_deleted(watch, look, is_known=was or has)
        if look.is_stale:
            # Newer states were decided on; this one matters if its end was never told.
            is_done = not has or (watch.predicate is not None and was)
            return Match.MEMBER if is_done else self._stand_of_late(watch, look)
        if not has:
            return Match.LEFT if was else Match.NONE
        return self._stand_of_matching(watch, look)

    def _stand_of_late(self, watch: Watch, look: Evaluation) -> Match:
        """Whether a state that others have followed wakes; in doubt it does (rule P8)."""
        then, known = look.now, look.old
        if watch.predicate is None or then is None:
            is_match = then is not None or not look.is_deleted
        elif look.is_deleted:
            is_match = watch.passes(then, None)
            if not is_match:
                return Match.MEMBER
        else:
            is_match = watch.passes(None, then)
            if not is_match and known is not None and not watch.passes(then, known):
                return Match.MEMBER
        look.has_matched |= watch.is_identity and is_match
        return Match.CHANGED

    def _stand_of_deleted(self, watch: Watch, look: Evaluation, *, is_known: bool) -> Match:
        if not is_known:
            return Match.NONE
        if look.old is None or watch.passes(look.old, None):
            return Match.CHANGED
        return Match.NONE

    def _stand_of_matching(self, watch: Watch, look: Evaluation) -> Match:
        was = look.was_member(watch)
        was_unmatched = look.last_seen is not None and watch.id in look.last_seen.unmatched
        if look.is_unchanged and was:
            if was_unmatched:
                look.unmatched.append(watch.id)
            is_owed = look.reason is Reason.GAP and watch.predicate is None
            return Match.CHANGED if is_owed else Match.MEMBER
        if watch.predicate is None or look.now is None:
            return Match.CHANGED
        old = None if look.is_unchanged else look.old
        passes = watch.passes(old, look.now)
        is_match = passes if old is None else watch.passes(None, look.now)
        if not passes and was and not is_match and not was_unmatched:
            return Match.LEFT
        if not is_match:
            look.unmatched.append(watch.id)
        is_owed = was and look.reason is Reason.NEW_CODE
        return Match.CHANGED if passes or is_owed else Match.MEMBER

    def _matches(self, watch: Watch, look: Evaluation) -> bool | None:
        event = look.event
        if watch.namespaces is not None and event.namespace not in watch.namespaces:
            return False
        is_in = watch.clusters.decide(event.cluster, look.info)
        if not is_in:
            return is_in
        if not (watch.selector or watch.annotation_selector) or look.marked is None:
            return True
        marks = look.marked
        return watch.selector.matches(marks.labels) and watch.annotation_selector.matches(
            marks.annotations
        )

    # --- whom it wakes --------------------------------------------------------------------------

    async def _targets(self, watch: Watch, look: Evaluation) -> list[Request]:
        if watch.owned:
            owner = owner_request(self._controller, watch, look.event)
            return [owner] if owner else []
        try:
            own = self.own_request(look.event)
            return await call_map(watch, look.now, own, self._fleet, self._controller)
        except (RedisError, StoreError):
            raise
        except ClusterNotFound as e:
            log.info("cluster_left", controller=self._controller.name, reason=str(e))
        except BaseException as e:  # user code, and one bad object must not stop all
            if is_stop(e):
                raise
            self._note_failure("map_failed", watch, look, e)
        return []

    # --- what follows ---------------------------------------------------------------------------

    def _leave_unwatched(self, look: Evaluation, watches: Iterable[Watch]) -> None:
        """Watches through which the object was seen, and which the controller has no more."""
        if look.last_seen is None or look.is_stale:
            return
        ids = {watch.id for watch in watches}
        for watch_id, targets in look.last_seen.members.items():
            if watch_id not in ids:
                look.wakes_own |= targets is None
                look.targets.update(dict.fromkeys(self.requests(targets or ())))

    def _conclude(self, look: Evaluation, trace: str) -> Decision:
        event, before = look.event, look.stored.last_seen
        is_member = None in look.members.values()
        is_left = not is_member and before is not None and (before.is_left or before.is_member)
        # Unless the object has just left or come back: then what was read was read as another one.
        was_told = before is not None and before.reports_left
        has_read = look.reason is not Reason.NEW_CODE and (is_left == was_told or look.is_stale)
        # What of then matched, and of now does not: whoever runs has to know.
        is_late = look.has_matched and before is not None and not before.is_member
        has_read = has_read and (was_told or not is_late)
        may_remain = look.is_deleted and not look.is_stale and self._may_leave(event)
        if may_remain:
            # A newer version may be what came back under the name; and whoever was to be told
            # that the object left may not have run yet.
            has_read = has_read and look.stored.read == look.version
            look.wakes_own |= _owes_leave(look)
        wakes_own = _wakes_own(look, is_left=is_left, has_read=has_read)
        if look.wakes_own and not wakes_own:
            self.count_skipped(look.reason)
        priority = Priority.LIVE
        if look.reason is not Reason.EVENT or event.verb is Verb.LISTED:
            priority = Priority.INITIAL
        adds: list[Add] = []
        if wakes_own:
            # A full enqueue has no trigger: it names what is known, not what has just changed.
            trigger = encode_trigger(*look.version) if look.reason is Reason.EVENT else b""
            adds.append(Add(self.own_request(event), priority, trigger, trace))
        targets = [request for request in look.targets if self._is_of_fleet(request, event)]
        OUTSIDE_FLEET.labels(self._controller.name).inc(len(look.targets) - len(targets))
        adds += [Add(request, priority, trace=trace, cause=event.cluster) for request in targets]
        last_seen = _remains(look, is_woken=wakes_own) if may_remain else None
        if not look.is_deleted and (look.members or is_left or look.keeps_state):
            last_seen = _seen(look, is_woken=wakes_own, is_left=is_left)
        if look.is_stale and before is not None and not look.is_open:
            last_seen = msgspec.structs.replace(
                before, is_left=before.is_left or is_late, announced=None
            )
        return Decision(adds, last_seen, is_complete=not look.is_open)

    def _is_of_fleet(self, request: Request, event: Event) -> bool:
        """Q9: a map or an owner mark may name anything, and each name would take turns."""
        is_own = request.cluster == event.cluster
        return is_own or not self._fleet.is_known or self._fleet.has(request.cluster)

    def _may_leave(self, event: Event) -> bool:
        """Whether what becomes of such an object may be told as `left`."""
        own = [watch for watch in self.watches(event) if watch.is_identity]
        return any(watch.wake_on_leave for watch in own) and all(
            watch.selector or watch.annotation_selector or watch.predicate for watch in own
        )

    def _note_failure(
        self, what: str, watch: Watch, look: Evaluation, error: BaseException
    ) -> None:
        look.is_open = True
        self._failures.note(what, watch, look.event, error)
        self._owe(look.event.cluster)


def _wakes_own(look: Evaluation, *, is_left: bool, has_read: bool) -> bool:
    """Whether to wake the object's own request; not if that is proved to be done (P8)."""
    since, is_wanted = look.version, look.wakes_own
    if look.is_unchanged and look.last_seen and not look.has_entered:
        # Nothing new; but what woke it last may not be done yet.
        since = look.last_seen.woken
        is_wanted = is_wanted or is_left or None in look.members.values()
    read = look.stored.read if has_read else None
    return is_wanted and (read is None or is_older(read, since))


def _seen(look: Evaluation, *, is_woken: bool, is_left: bool) -> LastSeen:
    """What to remember of an object that is there."""
    before, body = look.last_seen, look.event.object
    return LastSeen(
        version=look.version,
        woken=look.version if is_woken else before.woken if before else NEVER,
        members=look.members,
        is_left=is_left,
        unmatched=look.unmatched,
        state=pack(body) if look.keeps_state and body else b"",
    )


def _owes_leave(look: Evaluation) -> bool:
    """Whether the object has left, and no run is known to have been told."""
    last_seen, read = look.last_seen, look.stored.read
    return (
        last_seen is not None
        and last_seen.is_left
        and (read is None or is_older(read, last_seen.woken))
    )


def _remains(look: Evaluation, *, is_woken: bool) -> LastSeen | None:
    """What stays of a deleted object, until a run has seen that it is gone."""
    before = look.last_seen
    own = {watch: None for watch, targets in look.members.items() if targets is None}
    is_left = not own and _owes_leave(look)
    if is_woken and (own or is_left) and is_comparable(look.version[1]):
        return LastSeen(look.version, look.version, {**own}, is_left=is_left, is_gone=True)
    if before is None or not before.is_gone:
        return None
    return msgspec.structs.replace(before, announced=None)


def _item(request: Request) -> str:
    return f"{request.cluster}/{request.namespace}/{request.name}"
