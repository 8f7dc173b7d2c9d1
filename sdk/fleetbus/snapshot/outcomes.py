"""What became of events and epochs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from fleetbus_proto.events import EpochEnd

if TYPE_CHECKING:
    from fleetbus_proto.events import Event, Incarnation, Rank


class ApplyOutcome(StrEnum):
    """What became of an event; consumers enqueue whatever it says (rule P8)."""

    APPLIED = "applied"
    STALE = "stale"
    SAME = "same"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedEpoch:
    """An epoch whose objects have all been counted; it is swept next (rule P6)."""

    cluster: str
    group: str
    version: str
    resource: str
    kind: str
    scope: str
    incarnation: Incarnation
    rank: Rank
    removed: bool = False
    """The type itself is gone, with proof: there is no list that could be doubted (W17)."""

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
    """One outcome per event, in their order, and the epochs that became complete by them."""

    outcomes: list[ApplyOutcome]
    completed: list[CompletedEpoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """Where an epoch stands once its end marker is stored.

    Attributes:
        complete: every object of the list has been counted; the sweep of `epoch` may run.
        counted: distinct keys so far.
        expected: what the marker says.
        outcome: applied (new), same (was complete before), stale (a newer rank or incarnation
            has taken its place; nothing to wait for), refused (not in the fleet).
        epoch: what to sweep when complete.
    """

    complete: bool
    counted: int
    expected: int
    outcome: ApplyOutcome
    epoch: CompletedEpoch
