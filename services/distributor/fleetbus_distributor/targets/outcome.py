"""What came of one object, and of one cluster, in one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from fleetbus_distributor.plan.intent import Key, Owned
from fleetbus_distributor.render.template import ObjectRef


class State(StrEnum):
    """The state of a cluster's entry; the later one here is the one that is shown."""

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
    """What was written; the values are the reasons of our Kubernetes Events."""

    NONE = ""
    CREATED = "Applied"
    UPDATED = "Patched"
    DELETED = "Delete"


@dataclass(frozen=True, slots=True)
class ObjectOutcome:
    """What came of one object."""

    ref: ObjectRef
    state: State
    reason: str = ""
    message: str = ""
    uid: str = ""
    retry: timedelta | None = None
    change: Change = Change.NONE


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """An object that we let go of and did not delete."""

    cluster: str
    ref: ObjectRef
    reason: str


@dataclass(slots=True)
class ClusterOutcome:
    """What came of one cluster; `inventory` is what may still be ours there."""

    name: str
    state: State = State.APPLIED
    reason: str = "Applied"
    message: str = ""
    retry: timedelta | None = None
    inventory: dict[Key, Owned] = field(default_factory=dict[Key, Owned])
    left_behind: list[LeftBehind] = field(default_factory=list[LeftBehind])
    changes: list[tuple[Change, ObjectRef]] = field(default_factory=list[tuple[Change, ObjectRef]])
    revision: str = ""
    """Hash of what was applied here last as a whole."""
    lacks_objects: bool = False
    """Something is missing that may not be created here."""

    def note(self, state: State, reason: str, message: str, retry: timedelta | None) -> None:
        """Take a finding in: the gravest state is shown, the earliest retry counts."""
        if _SEVERITY[state] > _SEVERITY[self.state]:
            self.state, self.reason, self.message = state, reason, message
        self.retry = earliest(self.retry, retry)


def earliest(first: timedelta | None, second: timedelta | None) -> timedelta | None:
    """The shorter of two waits; None means no wait."""
    if first is None or second is None:
        return first or second
    return min(first, second)
