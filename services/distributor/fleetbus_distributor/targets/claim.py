"""Decides from the live object who owns it, before every write (rule D4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import PAUSE_ANNOTATION, PROTECT_ANNOTATION, Owner, is_owned_by, owner_of


class Ownership(StrEnum):
    """The owner of an object; the values are reasons in the status."""

    OURS = "Ours"
    UNMARKED = "NotOurs"
    OTHER_OWNER = "OwnedByAnother"
    OTHER_HUB = "OwnedByOtherHub"
    OTHER_CLUSTER = "MarkedForOtherCluster"
    """It was written to another cluster, and somebody copied or restored it here."""
    MALFORMED = "MalformedOwner"
    LOST = "TakenOver"
    """It was ours and somebody took it over: taking it back would start a fight."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The owner of an object, with a sentence for people."""

    ownership: Ownership
    message: str = ""


def claim(live: Mapping[str, Any], owner: Owner, known_uid: str) -> Claim:
    """Decide whether an owner owns a live object.

    Args:
        live: the object, read from its API server.
        owner: the mark of the MultiClusterResource.
        known_uid: the object's UID on record; "" if it was never confirmed. By it an object whose
            mark was removed is still recognised.
    """
    try:
        found = owner_of(dict(live))
    except MalformedOwner:
        return Claim(Ownership.MALFORMED, "its owner annotation cannot be read")
    was_ours = bool(known_uid) and live["metadata"].get("uid") == known_uid
    if found is None:
        stranger = Claim(Ownership.UNMARKED, "it was not created by us")
        return Claim(Ownership.OURS) if was_ours else stranger
    if found.hub == owner.hub and (found.uid == owner.uid or _is_former(found, owner)):
        return _claim_here(found, owner)
    who = f"{found.kind} {found.namespace}/{found.name}"
    if was_ours:
        return Claim(Ownership.LOST, f"it was taken over by {who}")
    if found.hub != owner.hub:
        return Claim(Ownership.OTHER_HUB, f"it is owned by {who} of another hub")
    return Claim(Ownership.OTHER_OWNER, f"it is owned by {who}")


def _is_former(found: Owner, owner: Owner) -> bool:
    """Whether the mark is of an earlier MultiClusterResource of the same name."""

    def place(one: Owner) -> tuple[str, ...]:
        return one.cluster_name, one.kind, one.namespace, one.name

    return place(found) == place(owner)


def _claim_here(found: Owner, owner: Owner) -> Claim:
    """It is ours, also if it was written under a former name of this cluster."""
    if found.target in ("", owner.target) or found.target_uid == owner.target_uid:
        return Claim(Ownership.OURS)
    return Claim(Ownership.OTHER_CLUSTER, f"its mark is for cluster {found.target!r}")


def may_delete(live: Mapping[str, Any], owner: Owner) -> bool:
    """Whether label and annotation both name this owner on this hub (rule D5)."""
    return is_owned_by(dict(live), owner.uid) and claim(live, owner, "").ownership in (
        Ownership.OURS,
        Ownership.OTHER_CLUSTER,
    )


def is_marked_for_other(live: Mapping[str, Any], owner: Owner) -> bool:
    """Whether the mark names another cluster, by name or UID; then it is left alone (rule D5).

    Args:
        live: an object whose mark names the owner.
        owner: the mark as it would be written here.
    """
    found = owner_of(dict(live))
    if found is None or not found.target:
        return False
    return (found.target, found.target_uid) != (owner.target, owner.target_uid)


def is_protected(live: Mapping[str, Any]) -> bool:
    """Whether an annotation on the object forbids fleetbus to delete it."""
    return _is_set(live, PROTECT_ANNOTATION)


def is_paused(live: Mapping[str, Any]) -> bool:
    """Whether an annotation on the object asks fleetbus to leave it as it is (rule D26)."""
    return _is_set(live, PAUSE_ANNOTATION)


def _is_set(live: Mapping[str, Any], annotation: str) -> bool:
    annotations = cast("dict[str, str]", live["metadata"].get("annotations") or {})
    return annotations.get(annotation, "false") != "false"
