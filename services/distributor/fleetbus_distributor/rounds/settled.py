"""Remembers the facts of rounds for all clusters that left nothing to do (rule D11).

As long as these facts hold, another such round would only compare every cluster once more. So it is
skipped, and only the clusters where something happened are reconciled. Whatever this process does
not know, because it has just started or because a round failed, requires a whole round.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from fleetbus.clusters.info import ClusterInfo
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.rounds.missing_objects import clusters_of


@dataclass(frozen=True, slots=True)
class HubFacts:
    """Everything on the hub that a round for all clusters depends on."""

    generation: int
    confirmed: str
    recorded: bytes
    """Digest of the intent: a hub that was restored from a backup has another one, and so has one
    where another process has opened a wave of a rollout, because the basis of its clusters changes.
    """
    clusters: tuple[ClusterInfo, ...]
    unjoined: frozenset[str]
    """Clusters that were unjoined."""


def facts_of(
    document: Document, clusters: tuple[ClusterInfo, ...], unjoined: frozenset[str]
) -> HubFacts:
    """Collect the facts for one MultiClusterResource.

    Args:
        document: as it was read, or as the round last wrote it.
        clusters: the fleet as it was before the round.
        unjoined: clusters that were unjoined, likewise.
    """
    recorded = intent.digest_of_record(document.status)
    return HubFacts(document.generation, document.confirmed, recorded, clusters, unjoined)


@dataclass(frozen=True, slots=True)
class LastRound:
    """The last round for all clusters of a MultiClusterResource, if it was settled."""

    facts: HubFacts
    began: float
    """When it began to look at all clusters."""
    retry: timedelta | None
    """When it wants the hub to be read again."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The clusters that a round works on."""

    clusters: frozenset[str] | None = None
    """None for all."""
    only_missing: bool = False
    """Nothing is planned: they only get what they lack."""


def scope_of(
    last: LastRound | None, notes: frozenset[str] | None, touched: frozenset[str]
) -> Scope:
    """Decide which clusters need work (pure).

    Args:
        last: the last round, if another one would have the same facts.
        notes: of repairs about missing objects; None if they cannot be read.
        touched: clusters that a rollout gives another revision, or has to look at.
    """
    if last is None or notes is None:
        return Scope()
    return Scope(touched | clusters_of(notes), only_missing=not touched)


class SettledRounds:
    """Settled rounds of this process, by UID of the MultiClusterResource.

    Args:
        period: how long one counts; then everything is compared again (rule D13).
        now: a monotonic clock in seconds.
    """

    def __init__(self, period: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._period = period.total_seconds()
        self.now = now
        self._rounds: OrderedDict[str, LastRound] = OrderedDict()

    def last(self, uid: str, facts: HubFacts) -> LastRound | None:
        """The last round; None if another one would have other facts, or something to do."""
        last = self._rounds.get(uid)
        return last if last and last.facts == facts and self._is_young(last) else None

    def record(self, uid: str, facts: HubFacts, began: float, retry: timedelta | None) -> None:
        """Remember a finished round, and when it wants the hub to be read again."""
        self._rounds[uid] = LastRound(facts, began, retry)
        self._rounds.move_to_end(uid)
        while self._rounds and not self._is_young(next(iter(self._rounds.values()))):
            self._rounds.popitem(last=False)

    def forget(self, uid: str) -> None:
        """Forget the last round: the next one has begun, and may fail."""
        self._rounds.pop(uid, None)

    def _is_young(self, last: LastRound) -> bool:
        return self.now() < last.began + self._period
