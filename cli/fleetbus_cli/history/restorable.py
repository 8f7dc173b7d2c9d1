"""Decides which deleted objects can be put back, in which order, and with which content.

An object is put back as it was last, without what an API server or a controller assigns: UID,
versions, times, status, addresses. What its owner makes again by itself is left to the owner.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from fleetbus.errors import MalformedOwner
from fleetbus.kube.json_fields import condition, many, mapping, text
from fleetbus.ownership import owner_of
from fleetbus.process.redact import MARK, MARK_OF_BYTES
from fleetbus_cli.history.assigned_fields import strip_assigned

_DEFINITIONS: Final = "apiextensions.k8s.io/customresourcedefinitions"
_FIRST: Final = (
    _DEFINITIONS,
    "core/namespaces",
    "scheduling.k8s.io/priorityclasses",
    "storage.k8s.io/storageclasses",
    "core/persistentvolumes",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/roles",
    "core/serviceaccounts",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "rbac.authorization.k8s.io/rolebindings",
    "core/configmaps",
    "core/persistentvolumeclaims",
    "core/services",
)
"""Types that others refer to come first; everything else follows."""
_NEVER: Final = frozenset(
    {
        "core/events",
        "events.k8s.io/events",
        "core/endpoints",
        "discovery.k8s.io/endpointslices",
        "coordination.k8s.io/leases",
        "core/nodes",
        "storage.k8s.io/csinodes",
        "storage.k8s.io/volumeattachments",
    }
)
"""Types whose objects are made anew by those who need them."""
_ENDED: Final = ("Succeeded", "Failed")
_AUTOMANAGED: Final = "kube-aggregator.kubernetes.io/automanaged"
_REDACTED: Final = (MARK, MARK_OF_BYTES)

Object = dict[str, Any]


@dataclass(slots=True)
class DeletedObject:
    """An object that was deleted.

    Attributes:
        resource: the resource key.
        tree: its last state; None if it is unknown.
        cluster_uid: of the namespace kube-system of its cluster.
        deleted_by: who did it, if that is known.
        version: the API version that it was watched in, such as `apps/v1`.
        refusal: why it is not put back; empty if it can be.
    """

    cluster: str
    resource: str
    namespace: str
    name: str
    uid: str
    version: str
    deleted_at: str
    tree: Object | None
    cluster_uid: str = ""
    deleted_by: str = ""
    refusal: str = ""
    owners: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where it was."""
        return self.cluster, self.resource, self.namespace, self.name


def select_restorable(deleted: Iterable[DeletedObject]) -> list[DeletedObject]:
    """Keep the last deletion of each object, and note which ones cannot be put back, and why.

    They come in the order in which they are to be put back.
    """
    latest: dict[tuple[str, str, str, str], DeletedObject] = {}
    for obj in deleted:
        previous = latest.get(obj.place)
        if previous is None or obj.deleted_at > previous.deleted_at:
            latest[obj.place] = obj
    candidates = [obj for obj in latest.values() if obj.resource not in _NEVER]
    for obj in candidates:
        obj.owners = _owners(obj.tree)
    by_uid = {(obj.cluster, obj.uid): obj for obj in candidates}
    for obj in candidates:
        obj.refusal = _refusal(obj, by_uid)
    return sorted(
        candidates, key=lambda obj: (obj.cluster, _depth(obj, by_uid), _rank(obj), obj.place)
    )


def _refusal(obj: DeletedObject, by_uid: Mapping[tuple[str, str], DeletedObject]) -> str:
    return _why_unknown(obj) or _who_decides(obj, by_uid) or _why_harmful(obj)


def _why_unknown(obj: DeletedObject) -> str:
    """Why the content of an object is not known whole; empty if it is."""
    if obj.tree is None:
        return "its last state is unknown: it did not fit into its event"
    metadata = mapping(obj.tree, "metadata")
    if (metadata.get("namespace") or "", metadata.get("name")) != (obj.namespace, obj.name):
        return "its last state is that of another object"
    if obj.resource == "core/secrets":
        return "the values of Secrets are never published, so they cannot be restored"
    return "some of its values were redacted before publication" if _is_redacted(obj.tree) else ""


def _who_decides(obj: DeletedObject, by_uid: Mapping[tuple[str, str], DeletedObject]) -> str:
    """Who else makes the object again, or decides whether to; empty for nobody."""
    controller = next((each for each in obj.owners if each.get("controller")), None)
    if controller is not None:
        name = f"{controller.get('kind', '?')} {controller.get('name', '?')}"
        is_back = (obj.cluster, str(controller.get("uid"))) in by_uid
        again = " once that is back" if is_back else ""
        return f"its controller recreates it{again}: {name}"
    try:
        owner = owner_of(obj.tree or {})
    except MalformedOwner:
        owner = None
    if owner is None:
        return ""
    name = f"{owner.kind} {owner.namespace}/{owner.name} in {owner.cluster_name}"
    return f"it belongs to another cluster's object, which decides about it: {name}"


def _why_harmful(obj: DeletedObject) -> str:
    """Why putting an object back would do more than that; empty if it would not."""
    if obj.resource == "core/pods" and text(obj.tree, "status", "phase") in _ENDED:
        return "it had completed, and would run again"
    if obj.resource == "batch/jobs":
        status = mapping(obj.tree, "status")
        has_failed = condition(status, "Failed").get("status") == "True"  # it has no completionTime
        if has_failed or text(status, "completionTime"):
            return f"it had {'failed' if has_failed else 'completed'}, and would run again"
    if obj.resource == "core/persistentvolumes":
        if text(obj.tree, "spec", "persistentVolumeReclaimPolicy") == "Delete":
            return "its reclaim policy is Delete, so the storage is gone, too"
    elif text(mapping(obj.tree, "metadata", "labels"), _AUTOMANAGED):
        return "its API server recreates it"
    return ""


def _is_redacted(tree: Object) -> bool:
    """Whether a watcher has replaced a value, by a rule or because it may be of a Secret."""
    waiting: list[Any] = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += cast("Object", value).values()
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif value in _REDACTED:
            return True
    return False


def defined_type(obj: DeletedObject) -> tuple[str, str] | None:
    """The cluster and the resource key of what a definition defines; None for anything else."""
    if obj.resource != _DEFINITIONS:
        return None
    spec = mapping(obj.tree, "spec")
    return obj.cluster, f"{spec.get('group')}/{mapping(spec, 'names').get('plural')}"


def _owners(tree: Object | None) -> list[Mapping[str, Any]]:
    return list(many(tree, "metadata", "ownerReferences"))


def _depth(obj: DeletedObject, by_uid: Mapping[tuple[str, str], DeletedObject]) -> int:
    """Count the owners above it that are restored, too; owners come first."""
    depth, uids, now = 0, {obj.uid}, obj
    while True:
        above = next(
            (
                by_uid[key]
                for each in now.owners
                if (key := (now.cluster, str(each.get("uid")))) in by_uid and key[1] not in uids
            ),
            None,
        )
        if above is None:
            return depth
        depth, now = depth + 1, above
        uids.add(above.uid)


def _rank(obj: DeletedObject) -> int:
    return _FIRST.index(obj.resource) if obj.resource in _FIRST else len(_FIRST)


def restored_tree(
    obj: DeletedObject, new_uids: Mapping[tuple[str, str], str], volumes: Container[str] = ()
) -> tuple[Object, list[str]]:
    """The object to create, and the paths of what its cluster had assigned and is left out.

    Args:
        obj: what was deleted; its last state is known.
        new_uids: cluster and former UID of each owner that is back → its new UID.
        volumes: names of the PersistentVolumes of its cluster that are put back.
    """
    tree = copy.deepcopy(obj.tree or {})
    group, _, _ = obj.resource.rpartition("/")
    tree["apiVersion"] = tree.get("apiVersion") or (
        obj.version if group == "core" else f"{group}/{obj.version}"
    )
    has_volume = text(tree, "spec", "volumeName") in volumes
    stripped = strip_assigned(tree, obj.resource, has_volume=has_volume)
    if owners := _new_owners(obj, new_uids):
        tree["metadata"]["ownerReferences"] = owners
    return tree, stripped


def _new_owners(
    obj: DeletedObject, new_uids: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """References to owners that are back; one to an owner that is gone would delete it again."""
    return [
        {**each, "uid": new_uids[key]}
        for each in obj.owners
        if (key := (obj.cluster, str(each.get("uid")))) in new_uids
    ]


def missing_owners(obj: DeletedObject, new_uids: Mapping[tuple[str, str], str]) -> list[str]:
    """The owners of an object that are not back, as `Kind name`."""
    return [
        f"{each.get('kind', '?')} {each.get('name', '?')}"
        for each in obj.owners
        if (obj.cluster, str(each.get("uid"))) not in new_uids
    ]
