"""The marks on children of a `Children` controller, and the ownership they prove.

Besides the owner mark: a label with the controller's name and one with a hash of the parent's
cluster, namespace and name (not its uid), so that children are found by index even if the parent's
uid is unknown; and an annotation with the child's own place. The owner mark names the cluster that
the child was written to, with its accepted UID (rule D4). A copy of a child, made in this cluster
or by restoring a backup into another one, carries all marks too, but its place or its cluster does
not match them: it is not ours.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from fleetbus.errors import MalformedOwner
from fleetbus.kube.applied import ServerAnswers
from fleetbus.owned_objects.claim import Claim, Ownership, is_marked_for
from fleetbus.ownership import (
    OWNER_ANNOTATION,
    OWNER_UID_LABEL,
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
    "its mark names another cluster than the accepted one of this name, so it was copied or"
    " restored; delete it by hand to have it created again"
)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildMark:
    """The marks of the children of one parent.

    Attributes:
        controller: the name of the `Children` controller.
        place: cluster, namespace and name of the parent.
        parents: the resource of the parent.
        owner: the parent; None if it is gone.
    """

    controller: str
    place: Request
    parents: Resource
    owner: Owner | None = None

    @property
    def key(self) -> str:
        """The value of `PARENT_LABEL` on all children of this parent."""
        place = self.place
        parts = (place.cluster, self.parents.key, place.namespace, place.name)
        return hashlib.blake2b(orjson.dumps(parts), digest_size=10).hexdigest()

    @property
    def selector(self) -> str:
        """The label selector of the children of this parent."""
        return f"{CONTROLLER_LABEL}={self.controller},{PARENT_LABEL}={self.key}"

    def put_on(self, desired: Object, cluster: str, uid: str) -> Object:
        """Copy a desired object and add all marks; the parent must exist.

        Args:
            desired: the object without marks.
            cluster: the name of its cluster.
            uid: the accepted UID of that cluster; empty if unknown.
        """
        if self.owner is None:
            raise ValueError("a parent that is gone cannot get children")
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

    def claim(self, found: Object, cluster: str, uid: str) -> Claim:
        """Determine whose an object in a cluster is, and for a foreign one or a copy why.

        Label and annotation must agree (rules D4, D5). An empty `uid` means the accepted one is
        unknown; then, and for a mark without one, only the names are compared.
        """
        try:
            owner = owner_of(found)
        except MalformedOwner as e:
            return Claim(Ownership.MALFORMED, str(e))
        if owner is None or OWNER_ANNOTATION not in _strings(found, "annotations"):
            return Claim(Ownership.UNMARKED, "it has no mark of ours")
        if not self._is_of_place(owner, _strings(found, "labels")):
            who = f"{owner.kind} {owner.namespace}/{owner.name} of cluster {owner.cluster_name}"
            message = f"it is owned by {who}, or its marks contradict each other"
            return Claim(Ownership.OTHER_OWNER, message)
        if why := _why_copy(found, owner, cluster, uid):
            return Claim(Ownership.COPY, why, is_here=False, is_confirmed=True)
        is_former = self.owner is None or owner.uid != self.owner.uid
        return Claim(Ownership.FORMER if is_former else Ownership.OURS, is_confirmed=True)

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
    """Return `<cluster>/<namespace>/<name>` of an object."""
    metadata = obj["metadata"]
    return f"{cluster}/{metadata.get('namespace') or ''}/{metadata['name']}"


def marked_uid(found: Object, cluster: str) -> str:
    """Return the UID that a child's mark names for a cluster; empty if it names none."""
    try:
        owner = owner_of(found)
    except MalformedOwner:
        return ""
    return owner.target_uid if owner is not None and owner.target == cluster else ""


def _why_copy(found: Object, owner: Owner, cluster: str, uid: str) -> str:
    """Explain why a child is not where its marks say; empty if it is."""
    place = _strings(found, "annotations").get(CHILD_ANNOTATION, "a child")
    if place != child_place(cluster, found):
        return f"it is a copy of {place}"
    return "" if is_marked_for(owner, cluster, uid) else _OTHER_SERVER


def is_in_sync(found: Object, marked: Object, cluster: str, answers: ServerAnswers) -> bool:
    """Whether a child has every desired field, or its server takes it as it is for that.

    Fields added by others are ignored. A field that is no longer desired is noticed by the digest
    of what was applied.
    """
    desired = {key: marked[key] for key in marked if key not in ("apiVersion", "kind")}
    return _holds(found, desired) or answers.covers(cluster, marked, found)


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
