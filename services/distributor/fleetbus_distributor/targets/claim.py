"""Rule D4: whose object is it? Decided on the object as read live, before every write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import PROTECT_ANNOTATION, Owner, is_owned_by, owner_of


class Standing(StrEnum):
    """How an object stands to us; the values are reasons in the status."""

    OURS = "Ours"
    UNMARKED = "NotOurs"
    OTHER_OWNER = "OwnedByAnother"
    OTHER_HUB = "OwnedByOtherHub"
    OTHER_CLUSTER = "MarkedForOtherCluster"
    """It was written to another cluster, and somebody has copied or restored it here."""
    MALFORMED = "MalformedOwner"
    LOST = "TakenOver"
    """It was ours and somebody else took it: taking it back would be the first flip of many."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer, with a sentence for people."""

    standing: Standing
    message: str = ""


def claim(live: Mapping[str, Any], owner: Owner, known_uid: str) -> Claim:
    """Say how a live object stands to an owner.

    Args:
        live: the object, read from its API server.
        owner: the MultiClusterResource's mark.
        known_uid: the object's UID as our intent has it; "" if it was never confirmed. With it an
            object whose mark was stripped is still recognised.
    """
    try:
        found = owner_of(dict(live))
    except MalformedOwner:
        return Claim(Standing.MALFORMED, "its owner annotation cannot be read")
    was_ours = bool(known_uid) and live["metadata"].get("uid") == known_uid
    if found is None:
        return (
            Claim(Standing.OURS) if was_ours else Claim(Standing.UNMARKED, "it was not made by us")
        )
    if found.hub == owner.hub and (found.uid == owner.uid or _is_former(found, owner)):
        return _claim_here(found, owner)
    who = f"{found.kind} {found.namespace}/{found.name}"
    if was_ours:
        return Claim(Standing.LOST, f"it was taken over by {who}")
    if found.hub != owner.hub:
        return Claim(Standing.OTHER_HUB, f"it is owned by {who} of another hub")
    return Claim(Standing.OTHER_OWNER, f"it is owned by {who}")


def _is_former(found: Owner, owner: Owner) -> bool:
    """Whether the mark is of a MultiClusterResource that had this name before, and is gone."""

    def place(one: Owner) -> tuple[str, ...]:
        return one.cluster_name, one.kind, one.namespace, one.name

    return place(found) == place(owner)


def _claim_here(found: Owner, owner: Owner) -> Claim:
    """An object may have been written under another name that its cluster had."""
    if found.target in ("", owner.target) or found.target_uid == owner.target_uid:
        return Claim(Standing.OURS)
    return Claim(Standing.OTHER_CLUSTER, f"its mark is for cluster {found.target!r}")


def may_delete(live: Mapping[str, Any], owner: Owner) -> bool:
    """Rule D5: label and annotation must both name us, on this hub."""
    return is_owned_by(dict(live), owner.uid) and claim(live, owner, "").standing in (
        Standing.OURS,
        Standing.OTHER_CLUSTER,
    )


def is_marked_for_other(live: Mapping[str, Any], owner: Owner) -> bool:
    """Whether the mark names another cluster, by name or UID: such an object is left (rule D5).

    Args:
        live: an object whose mark names the owner.
        owner: the mark as it would be written here.
    """
    found = owner_of(dict(live))
    if found is None or not found.target:
        return False
    return (found.target, found.target_uid) != (owner.target, owner.target_uid)


def is_protected(live: Mapping[str, Any]) -> bool:
    """Whether somebody said on the object itself that fleetbus must never delete it."""
    annotations = cast("dict[str, str]", live["metadata"].get("annotations") or {})
    return annotations.get(PROTECT_ANNOTATION, "false") != "false"
