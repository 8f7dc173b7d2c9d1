"""What a child of a `Children` controller carries, and whose an object is by what it carries.

Beside the owner mark: a label with the controller's name and one with the parent's place (a hash,
the same for whatever lived under that name), so that children are found by index also when nobody
knows the parent's uid any more; and an annotation with the child's own place. The owner mark names
the cluster that the child was written to, with its accepted UID (rule D4). A copy that somebody
made of a child, in this cluster or by restoring a backup into another one, has all marks too, but
its place or its server does not agree with them: it is not ours.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import orjson

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import (
    OWNER_ANNOTATION,
    OWNER_UID_LABEL,
    PROTECT_ANNOTATION,
    Owner,
    owner_of,
    set_owner,
)
from fleetbus.reconcile import Request
from fleetbus_proto.resources import Resource

CONTROLLER_LABEL: Final = "fleetbus.dev/controller"
PARENT_LABEL: Final = "fleetbus.dev/owner-key"
CHILD_ANNOTATION: Final = "fleetbus.dev/child"
APPLIED_ANNOTATION: Final = "fleetbus.dev/applied"
OWN_PREFIX: Final = "fleetbus.dev/"
_OTHER_SERVER: Final = (
    "its mark is for another cluster than the accepted one of this name, so it was copied or"
    " restored; once it is deleted by hand it is made anew"
)

Object = dict[str, Any]


class Ownership(StrEnum):
    """How an object stands to a parent."""

    OURS = "Ours"
    STALE = "Stale"
    """A child of an object that had the parent's name before, or of a parent that is gone."""
    COPY = "Copy"
    """Every mark is right, but the object is not where they say: somebody copied a child."""
    FOREIGN = "Foreign"


@dataclass(frozen=True, slots=True)
class ChildMark:
    """The marks of the children of one parent.

    Attributes:
        controller: the name of the `Children` controller.
        place: cluster, namespace and name of the parent.
        parents: the resource of the parent.
        owner: the parent as it lives; None when it is gone.
    """

    controller: str
    place: Request
    parents: Resource
    owner: Owner | None = None

    @property
    def key(self) -> str:
        """The value of the label that all children of this place have."""
        place = self.place
        parts = (place.cluster, self.parents.key, place.namespace, place.name)
        return hashlib.blake2b(orjson.dumps(parts), digest_size=10).hexdigest()

    @property
    def selector(self) -> str:
        """Selects the children of this place."""
        return f"{CONTROLLER_LABEL}={self.controller},{PARENT_LABEL}={self.key}"

    def put_on(self, desired: Object, cluster: str, uid: str) -> Object:
        """A copy of a desired object with all marks; the parent must live.

        Args:
            desired: the object without marks.
            cluster: the name of its cluster.
            uid: the accepted UID of that cluster; empty where nobody knows it.
        """
        if self.owner is None:
            raise ValueError("a parent that is gone has no children to be made")
        marked = copy.deepcopy(desired)
        digest = hashlib.blake2b(
            orjson.dumps(desired, option=orjson.OPT_SORT_KEYS), digest_size=8
        ).hexdigest()
        set_owner(marked, self.owner.on(cluster, uid) if uid else self.owner)
        metadata = marked["metadata"]
        metadata["labels"] |= {CONTROLLER_LABEL: self.controller, PARENT_LABEL: self.key}
        metadata["annotations"] |= {
            CHILD_ANNOTATION: child_place(cluster, marked),
            APPLIED_ANNOTATION: digest,
        }
        return marked

    def ownership(self, found: Object, cluster: str, uid: str) -> tuple[Ownership, str]:
        """Whose an object in a cluster is, and for a stranger or a copy why.

        Label and annotation must agree (rules D4, D5). An empty `uid` means that nobody knows the
        accepted one; then, and for a mark that names none, only the names are compared.
        """
        labels, annotations = _strings(found, "labels"), _strings(found, "annotations")
        try:
            owner = owner_of(found)
        except MalformedOwner as e:
            return Ownership.FOREIGN, str(e)
        if owner is None or OWNER_ANNOTATION not in annotations:
            return Ownership.FOREIGN, "it was not made by us"
        if not self._is_of_place(owner, labels):
            who = f"{owner.kind} {owner.namespace}/{owner.name} of cluster {owner.cluster_name}"
            return Ownership.FOREIGN, f"it is owned by {who}, or its marks do not agree"
        if why := _why_copy(found, owner, cluster, uid):
            return Ownership.COPY, why
        if self.owner is None or owner.uid != self.owner.uid:
            return Ownership.STALE, ""
        return Ownership.OURS, ""

    def _is_of_place(self, owner: Owner, labels: dict[str, str]) -> bool:
        place = self.place
        return (
            labels.get(OWNER_UID_LABEL) == owner.uid
            and labels.get(CONTROLLER_LABEL) == self.controller
            and labels.get(PARENT_LABEL) == self.key
            and (owner.cluster_name, owner.namespace, owner.name)
            == (place.cluster, place.namespace, place.name)
        )


def child_place(cluster: str, obj: Object) -> str:
    """`<cluster>/<namespace>/<name>` of an object."""
    metadata = obj["metadata"]
    return f"{cluster}/{metadata.get('namespace') or ''}/{metadata['name']}"


def marked_uid(found: Object, cluster: str) -> str:
    """The UID that a child's mark names for a cluster; empty if it names none."""
    try:
        owner = owner_of(found)
    except MalformedOwner:
        return ""
    return owner.target_uid if owner is not None and owner.target == cluster else ""


def _why_copy(found: Object, owner: Owner, cluster: str, uid: str) -> str:
    """Why a child is not where its marks say; empty if it is."""
    place = _strings(found, "annotations").get(CHILD_ANNOTATION, "a child")
    if place != child_place(cluster, found):
        return f"it is a copy of {place}"
    if not owner.target:
        return ""  # of a release before this one, or nobody knew the UID
    is_here = owner.target == cluster and (not uid or owner.target_uid == uid)
    return "" if is_here else _OTHER_SERVER


def is_in_sync(found: Object, marked: Object) -> bool:
    """Whether a child shows everything that is desired of it.

    What others added is left alone. What we once desired and no longer want is noticed by the
    digest of what was applied.
    """
    return _holds(found, {key: marked[key] for key in marked if key not in ("apiVersion", "kind")})


def is_protected(obj: Object) -> bool:
    """Whether somebody said on the object itself that fleetbus must never delete it."""
    return _strings(obj, "annotations").get(PROTECT_ANNOTATION, "false") != "false"


def _holds(found: Any, desired: Any) -> bool:
    if isinstance(desired, dict):
        fields = cast("Object", desired)
        if not isinstance(found, dict):
            return found is None and not fields
        there = cast("Object", found)
        return all(_holds(there.get(key), value) for key, value in fields.items())
    if isinstance(desired, list):
        items = cast("list[Any]", desired)
        others = cast("list[Any]", found) if isinstance(found, list) else []
        return len(items) == len(others) and all(map(_holds, others, items))
    if isinstance(desired, bool) or isinstance(found, bool):
        return desired is found
    return desired == found or (not desired and found is None)


def _strings(obj: Object, field: str) -> dict[str, str]:
    return cast("dict[str, str]", obj["metadata"].get(field) or {})
