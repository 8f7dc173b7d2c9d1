"""Whose an object in a cluster is, by its mark (rules D4, D5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import (
    PAUSE_ANNOTATION,
    PROTECT_ANNOTATION,
    Owner,
    is_owned_by,
    owner_of,
)


class Ownership(StrEnum):
    """The owner of an object; the values are reasons in the status of a MultiClusterResource."""

    OURS = "Ours"
    FORMER = "OwnedByFormer"
    """The mark names an earlier owner of the same name, or one that is gone."""
    UNMARKED = "NotOurs"
    OTHER_OWNER = "OwnedByAnother"
    OTHER_HUB = "OwnedByOtherHub"
    COPY = "MarkedForOtherCluster"
    """It was written to another place, and somebody copied or restored it here."""
    MALFORMED = "MalformedOwner"
    LOST = "TakenOver"
    """It was ours and somebody took it over: taking it back would start a fight."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The owner of an object, with a sentence for people."""

    ownership: Ownership
    message: str = ""
    is_here: bool = True
    """Whether the mark names exactly this cluster, or none."""
    is_confirmed: bool = False
    """Whether label and annotation both say so, as a deletion requires: one alone may be copied."""


def claim(live: Mapping[str, Any], owner: Owner, *, recorded_uid: str = "") -> Claim:
    """Decide whether an owner owns a live object.

    Args:
        live: the object, read from its API server.
        owner: the mark as it would be written here.
        recorded_uid: the object's UID on record; "" if it was never confirmed. By it an object
            whose mark was removed is still recognised.
    """
    try:
        mark = owner_of(dict(live))
    except MalformedOwner:
        return Claim(Ownership.MALFORMED, "its owner annotation cannot be read")
    was_ours = bool(recorded_uid) and live["metadata"].get("uid") == recorded_uid
    if mark is None:
        stranger = Claim(Ownership.UNMARKED, "it was not created by us")
        return Claim(Ownership.OURS) if was_ours else stranger
    if mark.hub == owner.hub and (mark.uid == owner.uid or _place(mark) == _place(owner)):
        return _claim_here(mark, owner, is_confirmed=is_owned_by(dict(live), owner.uid))
    who = f"{mark.kind} {mark.namespace}/{mark.name}"
    if was_ours:
        return Claim(Ownership.LOST, f"it was taken over by {who}")
    if mark.hub != owner.hub:
        return Claim(Ownership.OTHER_HUB, f"it is owned by {who} of another hub")
    return Claim(Ownership.OTHER_OWNER, f"it is owned by {who}")


def _place(owner: Owner) -> tuple[str, ...]:
    return owner.cluster_name, owner.kind, owner.namespace, owner.name


def _claim_here(mark: Owner, owner: Owner, *, is_confirmed: bool) -> Claim:
    """It is ours, also if it was written under a former name of this cluster."""
    is_here = is_marked_for(mark, owner.target, owner.target_uid)
    message = "" if is_here else f"its mark is for cluster {mark.target!r}"
    ownership = Ownership.OURS if mark.uid == owner.uid else Ownership.FORMER
    if not is_here and mark.target != owner.target and mark.target_uid != owner.target_uid:
        ownership = Ownership.COPY
    return Claim(ownership, message, is_here, is_confirmed)


def is_marked_for(mark: Owner, cluster: str, uid: str) -> bool:
    """Whether a mark names a cluster, by name and accepted UID, or no cluster at all.

    Args:
        mark: of an object in that cluster.
        cluster: its name.
        uid: its accepted UID; "" while that is unknown: then only the names are compared.
    """
    if not mark.target:
        return True  # written by an earlier release, or while the UID was unknown
    return mark.target == cluster and (not uid or mark.target_uid == uid)


def is_protected(live: Mapping[str, Any]) -> bool:
    """Whether an annotation on the object forbids fleetbus to delete it."""
    return _is_set(live, PROTECT_ANNOTATION)


def is_paused(live: Mapping[str, Any]) -> bool:
    """Whether an annotation on the object asks fleetbus to leave it as it is (rule D26)."""
    return _is_set(live, PAUSE_ANNOTATION)


def _is_set(live: Mapping[str, Any], annotation: str) -> bool:
    annotations = cast("dict[str, str]", live["metadata"].get("annotations") or {})
    return annotations.get(annotation, "false") != "false"
