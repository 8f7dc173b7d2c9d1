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


class Decision(StrEnum):
    """A step with an object, or the reason to leave it as it is."""

    APPLY = "Apply"
    REPLACE = "Replace"
    """Delete it and create it again."""
    DELETE = "Delete"
    RELEASE = "Release"
    """Take our mark off and leave it, for good."""
    FORGET = "Forget"
    """It is not ours, so ours is gone."""
    WAIT = "Wait"
    """It is being deleted."""
    NOT_OURS = "NotOurs"
    """It has the place of ours; its claim tells whose it is."""
    COPY = "MarkedForOtherCluster"
    PROTECTED = "Protected"
    PAUSED = "Paused"
    NOT_CONFIRMED = "NotConfirmed"
    """A person has confirmed the deletion of another object of this name (rule D8)."""


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
        return Decision.WAIT
    if claim.ownership in takes:
        return Decision.APPLY
    if claim.ownership is not Ownership.FORMER:
        return Decision.NOT_OURS
    decision = decide_removal(live, claim, RemovalPolicy(deletes={Ownership.FORMER}))
    return Decision.REPLACE if decision is Decision.DELETE else decision


def decide_removal(live: Mapping[str, Any], claim: Claim, policy: RemovalPolicy) -> Decision:
    """Decide whether an object may be deleted, and what else becomes of it (rules D5, D8, D26).

    Args:
        live: the object, read from its API server just now.
        claim: whose it is by its mark alone; a record of its UID is no reason to delete.
        policy: what else decides.
    """
    uid = live["metadata"]["uid"]
    is_ours = claim.ownership in policy.deletes and claim.is_confirmed
    steps = (
        (not is_ours or uid in policy.kept, Decision.FORGET),
        (not claim.is_here, Decision.COPY),
        (is_protected(live), Decision.PROTECTED),
        (policy.heeds_pause and is_paused(live), Decision.PAUSED),
        (policy.confirmed_uid not in ("", uid), Decision.NOT_CONFIRMED),
        (policy.releases, Decision.RELEASE),
        (live["metadata"].get("deletionTimestamp"), Decision.WAIT),
    )
    return next((decision for applies, decision in steps if applies), Decision.DELETE)
