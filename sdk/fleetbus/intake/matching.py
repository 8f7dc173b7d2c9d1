"""Matches one object against one watch, from what it was like when it was seen last (rule P8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import cast

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.filters import PartialMetadata, read_metadata
from fleetbus.controller.watch import Watch
from fleetbus.intake.record import StoredRecord, is_older, unpack
from fleetbus.kube.client import Object
from fleetbus.kube.trees import read_tree
from fleetbus.reconcile import Request
from fleetbus.run.current import Version
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb


class Reason(Enum):
    """Why an object is evaluated."""

    EVENT = auto()
    """The bus delivered a change of it."""
    RESYNC = auto()
    """Its cluster joined or changed, or the process started: what was seen as it is now is done."""
    GAP = auto()
    """Something may have been missed (rule P12): only what is proved to be reconciled is done."""
    NEW_CODE = auto()
    """The controller's code has changed: nothing is proved, and nothing was seen."""


class Match(Enum):
    """The result of matching one object against one watch."""

    NONE = auto()
    """It does not match."""
    MEMBER = auto()
    """It matches, and this change does not matter."""
    CHANGED = auto()
    """It matches, and this change wakes."""
    LEFT = auto()
    """It matched before, and does not now."""


@dataclass
class Evaluation:
    """One object as it is now, beside what the record has of it, and what its watches have found.

    Attributes:
        event: the object as it is now.
        stored: what the record has of it.
        reason: why it is evaluated.
        info: its cluster; None while this process does not know it.
        members: by watch that it matches: None for an identity watch, else the requests it woke.
        unmatched: the members of whose predicate only changes matter.
        targets: whom mapped watches wake, each once.
        wakes_own: a watch asks for a run of the object's own request.
        has_entered: it matches an identity watch that it did not match before.
        has_matched_late: it is late, and its state of then matched an identity watch.
        keeps_state: a predicate will be asked what has changed since.
        is_undecided: user code failed, or the cluster is unknown: nothing is remembered, so the
            object is evaluated again.
    """

    event: Event
    stored: StoredRecord
    reason: Reason
    info: ClusterInfo | None = None
    members: dict[int, list[str] | None] = field(default_factory=dict[int, list[str] | None])
    unmatched: list[int] = field(default_factory=list[int])
    targets: dict[Request, None] = field(default_factory=dict[Request, None])
    wakes_own: bool = False
    has_entered: bool = False
    has_matched_late: bool = False
    keeps_state: bool = False
    is_undecided: bool = False

    def __post_init__(self) -> None:
        self.version: Version = (self.event.incarnation.number, self.event.resource_version)
        self.is_deleted = self.event.verb is Verb.DELETED
        last_seen = self.last_seen = self.stored.last_seen
        self.is_late = last_seen is not None and is_older(self.version, last_seen.version)
        """A newer state has been evaluated before this one."""
        is_same = last_seen is not None and self.version == last_seen.version
        self.is_unchanged = is_same and self.reason in (Reason.RESYNC, Reason.GAP)

    @cached_property
    def metadata(self) -> PartialMetadata | None:
        """Labels and annotations; None for a body that is too large for the bus."""
        return None if self.event.object is None else read_metadata(self.event.object)

    @cached_property
    def now(self) -> Object | None:
        """The whole object."""
        body = self.event.object
        return None if body is None else cast("Object", read_tree(body))

    @cached_property
    def old(self) -> Object | None:
        """The object as this controller saw it last; of a deletion, else as the event has it."""
        if self.reason is not Reason.NEW_CODE and self.last_seen and self.last_seen.state:
            return cast("Object", read_tree(unpack(self.last_seen.state)))
        return self.now if self.is_deleted else None

    @property
    def is_member(self) -> bool:
        """Whether it matches an identity watch."""
        return None in self.members.values()

    def was_member(self, watch: Watch) -> bool:
        """Whether it matched the watch when it was seen last."""
        return self.last_seen is not None and watch.id in self.last_seen.members

    def last_targets(self, watch_id: int) -> list[str]:
        """The requests that it woke last through a mapped watch."""
        return (self.last_seen and self.last_seen.members.get(watch_id)) or []


def match(watch: Watch, evaluation: Evaluation) -> Match:
    """Match one object; asks the watch's predicate, so it may raise anything."""
    was, has = evaluation.was_member(watch), _matches_filters(watch, evaluation)
    if has is None:
        evaluation.is_undecided = True
        return Match.MEMBER if was else Match.NONE
    if evaluation.is_late:
        # Newer states were evaluated; this one matters only if it was never seen to match.
        is_done = not has or (watch.predicate is not None and was)
        return Match.MEMBER if is_done else _match_late(watch, evaluation)
    if evaluation.is_deleted:
        # Whether a body that was left out matched is known only from before.
        has = has and (evaluation.event.object is not None or evaluation.last_seen is None)
        is_wanted = (was or has) and (evaluation.old is None or watch.passes(evaluation.old, None))
        return Match.CHANGED if is_wanted else Match.NONE
    if not has:
        return Match.LEFT if was else Match.NONE
    return _match_present(watch, evaluation)


def _match_late(watch: Watch, evaluation: Evaluation) -> Match:
    """Whether a state that newer ones have overtaken wakes; in doubt it does (rule P8)."""
    then, newest = evaluation.now, evaluation.old
    if watch.predicate is None or then is None:
        is_match = then is not None or not evaluation.is_deleted
    elif evaluation.is_deleted:
        is_match = watch.passes(then, None)
        if not is_match:
            return Match.MEMBER
    else:
        is_match = watch.passes(None, then)
        if not is_match and newest is not None and not watch.passes(then, newest):
            return Match.MEMBER
    evaluation.has_matched_late |= watch.is_identity and is_match
    return Match.CHANGED


def _match_present(watch: Watch, evaluation: Evaluation) -> Match:
    """An object that passes all filters but the predicate."""
    was = evaluation.was_member(watch)
    was_unmatched = evaluation.last_seen is not None and watch.id in evaluation.last_seen.unmatched
    if evaluation.is_unchanged and was:
        if was_unmatched:
            evaluation.unmatched.append(watch.id)
        # A change may have been missed that left the object as it was seen: only a predicate knows.
        is_due = evaluation.reason is Reason.GAP and watch.predicate is None
        return Match.CHANGED if is_due else Match.MEMBER
    if watch.predicate is None or evaluation.now is None:
        return Match.CHANGED
    old = None if evaluation.is_unchanged else evaluation.old
    passes = watch.passes(old, evaluation.now)
    is_match = passes if old is None else watch.passes(None, evaluation.now)
    if not passes and was and not is_match and not was_unmatched:
        return Match.LEFT
    if not is_match:
        evaluation.unmatched.append(watch.id)
    is_due = was and evaluation.reason is Reason.NEW_CODE
    return Match.CHANGED if passes or is_due else Match.MEMBER


def _matches_filters(watch: Watch, evaluation: Evaluation) -> bool | None:
    """Whether all filters but the predicate hold; None while the cluster is unknown."""
    return passes_filters(watch, evaluation.event, evaluation.info, lambda: evaluation.metadata)


def passes_filters(
    watch: Watch,
    event: Event,
    info: ClusterInfo | None,
    read: Callable[[], PartialMetadata | None],
) -> bool | None:
    """Whether an event passes all filters of a watch but the predicate.

    Args:
        watch: of its resource.
        event: which.
        info: its cluster; None while this process does not know it.
        read: reads its labels and annotations; None for a body that is too large for the bus.

    Returns:
        None while the cluster is unknown, and the filters ask about it.
    """
    if watch.namespaces is not None and event.namespace not in watch.namespaces:
        return False
    is_in = watch.clusters.decide(event.cluster, info)
    if not is_in:
        return is_in
    if not (watch.selector or watch.annotation_selector) or (metadata := read()) is None:
        return True
    return watch.selector.matches(metadata.labels) and watch.annotation_selector.matches(
        metadata.annotations
    )
