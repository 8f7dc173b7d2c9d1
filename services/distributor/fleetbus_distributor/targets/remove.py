"""Removes one object from one cluster, if the intent names it and its mark confirms it (D5)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from fleetbus.errors import Conflict, KubeError, NotFound
from fleetbus.kube.discovery import ApiResource
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.render.spec import DeletionPolicy
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.targets.claim import (
    is_marked_for_other,
    is_paused,
    is_protected,
    may_delete,
)
from fleetbus_distributor.targets.namespace_contents import find_content
from fleetbus_distributor.targets.outcome import State
from fleetbus_distributor.targets.target import (
    LATER,
    SOON,
    Target,
    namespaced_name,
    paused,
    to_finding,
)
from fleetbus_proto.resources import CORE


class Fate(StrEnum):
    """Outcomes of a removal."""

    GONE = "Gone"
    """It is not there, or it is not ours: it leaves the record."""
    RELEASED = "Released"
    """It stays on the cluster, and we gave it up on purpose."""
    KEPT = "Kept"
    """It is still ours; check again later."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome for one object, and the reason."""

    fate: Fate
    reason: str = ""
    message: str = ""
    state: State = State.DELETING
    retry: timedelta = SOON
    is_deleted: bool = False
    """A delete request was accepted in this round."""
    found: Owned | None = None
    """The object that took the place of the one on record, and is kept."""


_GONE = Removal(Fate.GONE)


async def remove_object(
    target: Target, owned: Owned, kept: AbstractSet[str] = frozenset()
) -> Removal:
    """Delete an object, or give it up.

    Args:
        target: the cluster.
        owned: the object.
        kept: UIDs that stay: the same object may have been applied under another kind's name.

    Raises:
        ClusterUnreachable: the cluster as a whole cannot be worked on.
    """
    live: Object | None = None
    try:
        api = await _type_of(target, owned)
        if api is None:
            return _without_type(target, owned)
        try:
            live = await target.client.get(api.resource, *namespaced_name(api, owned.ref))
        except NotFound:
            # Discovery was out of date.
            await target.client.discovery.version(owned.ref.api_version, anew=True)
            return Removal(Fate.KEPT, "Changed", f"{owned.ref}: its type has changed meanwhile")
        if live is None or not may_delete(live, target.owner) or live["metadata"]["uid"] in kept:
            return _GONE
        return await _release_or_delete(target, api, live, owned)
    except Conflict:
        return Removal(Fate.KEPT, "Changed", f"{owned.ref} was replaced meanwhile")
    except KubeError as error:
        return _refused(error, live, owned)


def _left_alone(target: Target, live: Object, owned: Owned) -> Removal | None:
    if reason := _why_left(target, live):
        return Removal(Fate.RELEASED, reason)
    if is_paused(live):
        why = paused(owned.ref)
        return Removal(Fate.KEPT, why.reason, why.message, State.HELD, why.retry)
    if owned.mark is not Mark.CONFIRMED or owned.uid in ("", live["metadata"]["uid"]):
        return None
    # A person confirmed another object of this name, and must confirm this one, too (rule D8).
    message = f"{owned.ref} took the place of the object whose deletion was confirmed"
    found = Owned(owned.ref, live["metadata"]["uid"], Mark.UNREQUESTED)
    return Removal(Fate.KEPT, "NotConfirmed", message, State.HELD, found=found)


def _refused(error: KubeError, live: Object | None, owned: Owned) -> Removal:
    """Redacted, because a webhook may quote the object whose deletion it refuses (rule D14)."""
    subject = {"kind": owned.ref.kind, **(live or {})}
    found = to_finding(error, subject, str(owned.ref))
    return Removal(Fate.KEPT, "DeleteFailed", found.message, State.FAILED, found.retry)


async def _release_or_delete(
    target: Target, api: ApiResource, live: Object, owned: Owned
) -> Removal:
    if left := _left_alone(target, live, owned):
        return left
    if target.policy.deletion is DeletionPolicy.ORPHAN:
        return await _release(target, api, live, "Orphaned")
    if owned.ref.kind == "Namespace" and not target.policy.delete_namespaces:
        # Deleting a namespace deletes everything in it, ours or not (rule D10).
        return await _release(target, api, live, "NamespaceKept")
    if live["metadata"].get("deletionTimestamp"):
        return _pending(owned)
    if held := await _in_use(target, live, owned):
        return held
    return await _delete(target, api, live, owned)


def _why_left(target: Target, live: Object) -> str:
    """Why an object of ours is left as it is; empty for most."""
    if is_protected(live):
        return "Protected"
    return "MarkedForOtherCluster" if is_marked_for_other(live, target.owner) else ""


async def _type_of(target: Target, owned: Owned) -> ApiResource | None:
    """The type under which the object is served now: its recorded version may be gone."""
    api = await target.client.discover(owned.ref.api_version, owned.ref.kind)
    if api is not None:
        return api
    group = _group_of(owned)
    served = [
        one
        for one in await target.client.discovery.recent()
        if one.kind == owned.ref.kind and one.resource.group == group
    ]
    return next((one for one in served if one.preferred), served[0] if served else None)


def _group_of(owned: Owned) -> str:
    group, _, _ = owned.ref.api_version.rpartition("/")
    return group or CORE


def _without_type(target: Target, owned: Owned) -> Removal:
    """A type that is not served has no objects, unless its API server is only down (D9, W8)."""
    group = _group_of(owned)
    failed = [one for one in target.client.discovery.failed if one.rpartition("/")[0] == group]
    if failed:
        message = f"{owned.ref}: {', '.join(sorted(failed))} cannot be discovered"
        return Removal(Fate.KEPT, "DeleteFailed", message, State.FAILED, LATER)
    return _GONE


async def _release(target: Target, api: ApiResource, live: Object, reason: str) -> Removal:
    """Remove our mark, so that whoever manages the object next finds it free."""
    metadata = live["metadata"]
    patch = {
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": {OWNER_UID_LABEL: None},
            "annotations": {OWNER_ANNOTATION: None},
        }
    }
    await target.client.patch(
        api.resource,
        metadata.get("namespace", ""),
        metadata["name"],
        patch,
        field_manager=target.manager,
    )
    return Removal(Fate.RELEASED, reason)


async def _in_use(target: Target, live: Object, owned: Owned) -> Removal | None:
    """Keep what would take objects along that nobody decided about."""
    if owned.ref.kind == "CustomResourceDefinition":
        return await _has_instances(target, live, owned)
    if owned.ref.kind != "Namespace":
        return None
    content = await find_content(target, owned.ref.name)
    if not content:
        return None
    message = f"{owned.ref}: it still holds {content}"
    return Removal(Fate.KEPT, "NamespaceNotEmpty", message, State.HELD, LATER)


async def _has_instances(target: Target, definition: Object, owned: Owned) -> Removal | None:
    """Keep a CRD that has instances: deleting it would delete all of them, also of others."""
    spec = definition["spec"]
    served = next((one["name"] for one in spec["versions"] if one.get("served")), "")
    if not served:
        return None
    resource = f"{spec['group']}/{served}/{spec['names']['plural']}"
    if not await target.client.has_any(resource):
        return None
    message = f"{owned.ref}: instances of this type still exist"
    return Removal(Fate.KEPT, "InstancesExist", message, State.HELD, LATER)


async def _delete(target: Target, api: ApiResource, live: Object, owned: Owned) -> Removal:
    where = namespaced_name(api, owned.ref)
    await target.client.delete(api.resource, *where, uid=live["metadata"]["uid"])
    after = await target.client.get(api.resource, *where)
    if after is None or after["metadata"]["uid"] != live["metadata"]["uid"]:
        return Removal(Fate.GONE, is_deleted=True)
    pending = _pending(owned)
    return Removal(pending.fate, pending.reason, pending.message, is_deleted=True)


def _pending(owned: Owned) -> Removal:
    return Removal(Fate.KEPT, "Deleting", f"{owned.ref} is being deleted")
