"""What the last round for all clusters was based on, if it left nothing to do (rule D11).

As long as none of that changes, another one would only compare every cluster once more. So it is
spared, and the clusters where something happened are worked on alone. Whatever this process does
not know, because it has just started say, or because a round failed, means a whole round.
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


@dataclass(frozen=True, slots=True)
class HubFacts:
    """Everything on the hub that a round for all clusters depends on."""

    generation: int
    confirmed: str
    recorded: bytes
    """Digest of the intent: a hub that was restored from a backup has another one."""
    clusters: tuple[ClusterInfo, ...]
    left: frozenset[str]
    """Clusters that were unjoined."""


def facts_of(
    document: Document, clusters: tuple[ClusterInfo, ...], left: frozenset[str]
) -> HubFacts:
    """Collect the facts for one MultiClusterResource.

    Args:
        document: as it was read, or as the round wrote it last.
        clusters: the fleet as it was before the round.
        left: likewise.
    """
    recorded = intent.digest_of_record(document.status)
    return HubFacts(document.generation, document.confirmed, recorded, clusters, left)


@dataclass(frozen=True, slots=True)
class _Round:
    facts: HubFacts
    began: float
    retry: timedelta | None


class Settled:
    """The rounds that left nothing to do, by UID of the MultiClusterResource; of this process.

    Args:
        period: how long one counts; then everything is compared again (rule D13).
        now: a monotonic clock in seconds.
    """

    def __init__(self, period: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._period = period.total_seconds()
        self.now = now
        self._rounds: OrderedDict[str, _Round] = OrderedDict()

    def covers(self, uid: str, facts: HubFacts) -> bool:
        """Whether another round for all clusters would have the same facts and nothing to do."""
        last = self._rounds.get(uid)
        return last is not None and last.facts == facts and self._is_young(last)

    def retry(self, uid: str) -> timedelta | None:
        """When the last round wanted another look at the hub."""
        last = self._rounds.get(uid)
        return last.retry if last else None

    def note(self, uid: str, facts: HubFacts, began: float, retry: timedelta | None) -> None:
        """Remember a round that is through, and when it wants another look at the hub."""
        self._rounds[uid] = _Round(facts, began, retry)
        self._rounds.move_to_end(uid)
        while self._rounds and not self._is_young(next(iter(self._rounds.values()))):
            self._rounds.popitem(last=False)

    def forget(self, uid: str) -> None:
        """Forget the last round: the next one has begun, and nobody knows how it will end."""
        self._rounds.pop(uid, None)

    def _is_young(self, last: _Round) -> bool:
        return self.now() < last.began + self._period
