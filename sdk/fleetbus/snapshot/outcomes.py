"""Results of applying events and of ending epochs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from fleetbus_proto.events import EpochEnd

if TYPE_CHECKING:
    from fleetbus_proto.events import Event, Incarnation, Rank


class ApplyOutcome(StrEnum):
    """The result of applying one event; consumers enqueue whichever it is (rule P8)."""

    APPLIED = "applied"
    STALE = "stale"
    SAME = "same"
    REFUSED = "refused"


STANDING: Final = frozenset({ApplyOutcome.APPLIED, ApplyOutcome.SAME})
"""After these the snapshot has the event as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedEpoch:
    """An epoch all of whose objects have arrived; the sweep comes next (rule P6)."""

    cluster: str
    group: str
    version: str
    resource: str
    kind: str
    scope: str
    incarnation: Incarnation
    rank: Rank
    removed: bool = False
    """The resource type itself was removed, provably: no list is in doubt (rule W17)."""

    @property
    def resource_key(self) -> str:
        """`<group>/<plural>`."""
        return f"{self.group}/{self.resource}"

    @classmethod
    def of(cls, source: Event | EpochEnd) -> Self:
        """The epoch that an event or an end marker belongs to."""
        return cls(
            cluster=source.cluster,
            group=source.group,
            version=source.version,
            resource=source.resource,
            kind=source.kind,
            scope=source.scope,
            incarnation=source.incarnation,
            rank=source.epoch,
            removed=isinstance(source, EpochEnd) and source.removed,
        )


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """One outcome per event, in order, and the epochs that these events completed."""

    outcomes: list[ApplyOutcome]
    completed: list[CompletedEpoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """The state of an epoch whose end marker is stored.

    Attributes:
        complete: whether every object of the list has arrived, so that `epoch` may be swept.
        counted: distinct keys so far.
        expected: the count in the marker.
        outcome: applied (new), same (was complete before), stale (replaced by a newer rank or
            incarnation; nothing to wait for), refused (not in the fleet).
        epoch: the epoch to sweep when complete.
    """

    complete: bool
    counted: int
    expected: int
    outcome: ApplyOutcome
    epoch: CompletedEpoch
