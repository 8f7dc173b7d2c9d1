"""Outcomes of one round: of an object, and of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.result import HEALTHY, Health
from fleetbus_distributor.plan.intent import Key, Owned
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.targets.drift_report import Drift


class State(StrEnum):
    """The state of a cluster in the status; of several, the last one in this order is shown."""

    APPLIED = "Applied"
    DELETING = "Deleting"
    DRIFTED = "Drifted"
    HELD = "Held"
    WAITING = "Waiting"
    CONFLICT = "Conflict"
    FAILED = "Failed"
    UNREACHABLE = "Unreachable"


_SEVERITY = {state: number for number, state in enumerate(State)}


class Change(StrEnum):
    """The kind of a write; the values are the reasons of our Kubernetes Events."""

    NONE = ""
    CREATED = "Applied"
    UPDATED = "Patched"
    DELETED = "Delete"


@dataclass(frozen=True, slots=True)
class ObjectOutcome:
    """The outcome for one object."""

    ref: ObjectRef
    state: State
    reason: str = ""
    message: str = ""
    uid: str = ""
    retry: timedelta | None = None
    change: Change = Change.NONE
    health: Health = HEALTHY
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The chosen fields of its status."""
    drift: Sequence[Drift] = ()
    """Its fields that others have changed or hold; after a write those that were taken back."""
    ran: str | None = None
    """The record of an object that runs once; None to keep the present one."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """An object that we gave up without deleting it."""

    cluster: str
    ref: ObjectRef
    reason: str


@dataclass(slots=True)
class ClusterOutcome:
    """The outcome for one cluster; `inventory` is what may still be ours there."""

    name: str
    state: State = State.APPLIED
    reason: str = "Applied"
    message: str = ""
    retry: timedelta | None = None
    inventory: dict[Key, Owned] = field(default_factory=dict[Key, Owned])
    left_behind: list[LeftBehind] = field(default_factory=list[LeftBehind])
    changes: list[tuple[Change, ObjectRef]] = field(default_factory=list[tuple[Change, ObjectRef]])
    findings: list[ObjectOutcome] = field(default_factory=list[ObjectOutcome])
    """Objects that are not as they should be, and why."""
    corrected: list[ObjectOutcome] = field(default_factory=list[ObjectOutcome])
    """Objects where changes of others were taken back in this round."""
    last_correction: str = ""
    """Which objects and fields were taken back last, from whom; "" if none ever was."""
    revision: str = ""
    """Hash of the objects that were last applied here completely."""
    lacks_objects: bool = False
    """Something is missing that may not be created here."""
    health: ClusterHealth | None = None
    """None where no object was read in this round."""

    @property
    def unhealthy(self) -> str:
        """One object that is not healthy, and why; "" if there is none."""
        health = self.health
        return f"{health.first}: {health.message}" if health and health.first else ""

    def add(self, state: State, reason: str, message: str, retry: timedelta | None) -> None:
        """Add a finding: the most severe state is shown, the earliest retry counts."""
        if _SEVERITY[state] > _SEVERITY[self.state]:
            self.state, self.reason, self.message = state, reason, message
        self.retry = earliest(self.retry, retry)


def earliest(first: timedelta | None, second: timedelta | None) -> timedelta | None:
    """The shorter of two waits; None means no wait."""
    if first is None or second is None:
        return first or second
    return min(first, second)
