"""Decides what may be done with a live object, from the object, whose it is, and a policy.

Every write to an object of ours in another cluster, and every deletion, is decided here. Nothing is
sent, so all that counts stands in the arguments, and a test can show it as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetbus.owned_objects.claim import Claim, Ownership, is_paused, is_protected


class Action(StrEnum):
    """A step with an object."""

    APPLY = "Apply"
    REPLACE = "Replace"
    """Delete it and create it again."""
    DELETE = "Delete"
    RELEASE = "Release"
    """Take our mark off and leave it, for good."""
    LEAVE = "Leave"
    """Leave it as it is, and report why."""
    WAIT = "Wait"
    """It is being deleted."""
    FORGET = "Forget"
    """It is not ours, so ours is gone."""


class Obstacle(StrEnum):
    """Why an object is left as it is."""

    CLAIM = "Claim"
    """The message of its claim says it."""
    COPY = "MarkedForOtherCluster"
    PROTECTED = "Protected"
    PAUSED = "Paused"
    NOT_CONFIRMED = "NotConfirmed"
    """A person has confirmed the deletion of another object of this name (rule D8)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The step to take, and for `LEAVE` the reason."""

    action: Action
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPolicy:
    """The rest of the facts that decide about the removal of an object.

    Attributes:
        deletes: whose objects are deleted.
        kept: UIDs that stay: the same object may be wanted under another kind's name.
        heeds_pause: whether a paused object is left as it is (rule D26).
        confirmed_uid: the UID whose deletion a person has confirmed; "" where none is needed.
        releases: whether the object is to be given up instead of deleted.
    """

    deletes: AbstractSet[Ownership]
    kept: AbstractSet[str] = frozenset()
    heeds_pause: bool = False
    confirmed_uid: str = ""
    releases: bool = False


def decide_apply(
    live: Mapping[str, Any], claim: Claim, *, takes: AbstractSet[Ownership]
) -> Decision:
    """Decide what to do with an object in whose place ours is to be (rules D4, D5).

    Args:
        live: the object, read from its API server just now.
        claim: whose it is.
        takes: whose objects are written to. One of a former owner that is not among them is
            replaced.
    """
    if live["metadata"].get("deletionTimestamp"):
        return Decision(Action.WAIT)
    if claim.ownership in takes:
        return Decision(Action.APPLY)
    if claim.ownership is not Ownership.FORMER:
        return Decision(Action.LEAVE, Obstacle.CLAIM)
    removal = decide_removal(live, claim, RemovalPolicy(deletes={Ownership.FORMER}))
    return Decision(Action.REPLACE) if removal.action is Action.DELETE else removal


def decide_removal(live: Mapping[str, Any], claim: Claim, policy: RemovalPolicy) -> Decision:
    """Decide whether an object may be deleted, and what else becomes of it (rules D5, D8, D26).

    Args:
        live: the object, read from its API server just now.
        claim: whose it is by its mark alone; a record of its UID is no reason to delete.
        policy: what else decides.
    """
    is_ours = claim.ownership in policy.deletes and claim.is_confirmed
    if not is_ours or live["metadata"]["uid"] in policy.kept:
        return Decision(Action.FORGET)
    if obstacle := _obstacle(live, claim, policy):
        return Decision(Action.LEAVE, obstacle)
    if policy.releases:
        return Decision(Action.RELEASE)
    if live["metadata"].get("deletionTimestamp"):
        return Decision(Action.WAIT)
    return Decision(Action.DELETE)


def _obstacle(live: Mapping[str, Any], claim: Claim, policy: RemovalPolicy) -> Obstacle | None:
    if not claim.is_here:
        return Obstacle.COPY
    if is_protected(live):
        return Obstacle.PROTECTED
    if policy.heeds_pause and is_paused(live):
        return Obstacle.PAUSED
    if policy.confirmed_uid not in ("", live["metadata"]["uid"]):
        return Obstacle.NOT_CONFIRMED
    return None
