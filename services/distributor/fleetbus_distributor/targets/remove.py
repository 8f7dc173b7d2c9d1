"""Removes one object from one cluster, if the intent names it and its mark confirms it (D5)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, cast

from fleetbus.errors import Conflict, KubeError, NotFound
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.requests import path_of
from fleetbus.owned_objects.claim import claim
from fleetbus.owned_objects.decision import Decision, RemovalPolicy, decide_removal
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.render.spec import DeletionPolicy
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.targets.outcome import State
from fleetbus_distributor.targets.target import (
    DELETES,
    LATER,
    SOON,
    Target,
    patch_exactly,
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
    successor: Owned | None = None
    """The object that took the place of the one on record, and is kept."""


_GONE = Removal(Fate.GONE)
_IN_EVERY_NAMESPACE: Final = frozenset(
    {("core", "configmaps", "kube-root-ca.crt"), ("core", "serviceaccounts", "default")}
)
_PASSING: Final = frozenset({("core", "events"), ("events.k8s.io", "events")})


async def remove_object(target: Target, owned: Owned, kept_uids: AbstractSet[str]) -> Removal:
    """Delete an object, or give it up.

    Args:
        target: the cluster.
        owned: the object.
        kept_uids: UIDs that stay: the same object may have been applied under another kind's name.

    Raises:
        ClusterUnreachable: the cluster as a whole cannot be worked on.
    """
    live: Object | None = None
    try:
        api = await _type_of(target, owned)
        if api is None:
            return _without_type(target, owned)
        obj = target.owned_object(api, owned.ref)
        try:
            live = await obj.read()
        except NotFound:
            # Discovery was out of date.
            await target.client.discovery.version(owned.ref.api_version, anew=True)
            return Removal(Fate.KEPT, "Changed", f"{owned.ref}: its type has changed meanwhile")
        if live is None:
            return _GONE
        return await _decide_and_remove(target, obj, live, owned, kept_uids)
    except Conflict:
        return Removal(Fate.KEPT, "Changed", f"{owned.ref} was changed or replaced meanwhile")
    except KubeError as error:
        return _refused(error, live, owned)


async def _decide_and_remove(
    target: Target, obj: OwnedObject, live: Object, owned: Owned, kept_uids: AbstractSet[str]
) -> Removal:
    policy = RemovalPolicy(
        deletes=DELETES,
        kept=kept_uids,
        heeds_pause=True,
        confirmed_uid=owned.uid if owned.mark is Mark.CONFIRMED else "",
        releases=bool(_why_released(target, owned)),
    )
    decision = decide_removal(live, claim(live, target.owner), policy)
    if decision is Decision.RELEASE:
        return await _release(target, obj, live, _why_released(target, owned))
    if decision is not Decision.DELETE:
        return _undeleted(decision, live, owned)
    if in_use := await _in_use(target, live, owned):
        return in_use
    is_gone = await obj.remove(live)
    return replace(_GONE if is_gone else _pending(owned), is_deleted=True)


def _why_released(target: Target, owned: Owned) -> str:
    """Why an object is given up instead of deleted; "" for one that is deleted."""
    if target.policy.deletion is DeletionPolicy.ORPHAN:
        return "Orphaned"
    # Deleting a namespace deletes everything in it, ours or not (rule D10).
    keeps = owned.ref.kind == "Namespace" and not target.policy.delete_namespaces
    return "NamespaceKept" if keeps else ""


def _undeleted(decision: Decision, live: Object, owned: Owned) -> Removal:
    if decision is Decision.FORGET:
        return _GONE
    if decision is Decision.WAIT:
        return _pending(owned)
    if decision is Decision.PAUSED:
        why = paused(owned.ref)
        return Removal(Fate.KEPT, why.reason, why.message, State.HELD, why.retry)
    if decision is Decision.NOT_CONFIRMED:
        # A person confirmed another object of this name, and must confirm this one, too (rule D8).
        message = f"{owned.ref} took the place of the object whose deletion was confirmed"
        successor = Owned(owned.ref, live["metadata"]["uid"], Mark.UNREQUESTED)
        return Removal(Fate.KEPT, decision, message, State.HELD, successor=successor)
    return Removal(Fate.RELEASED, decision)


def _refused(error: KubeError, live: Object | None, owned: Owned) -> Removal:
    """Redacted, because a webhook may quote the object whose deletion it refuses (rule D14)."""
    subject = {"kind": owned.ref.kind, **(live or {})}
    finding = to_finding(error, subject, str(owned.ref))
    return Removal(Fate.KEPT, "DeleteFailed", finding.message, State.FAILED, finding.retry)


async def _type_of(target: Target, owned: Owned) -> ApiResource | None:
    """The type under which the object is served now: its recorded version may be gone."""
    api = await target.client.discover(owned.ref.api_version, owned.ref.kind)
    if api is not None:
        return api
    group = _group_of(owned)
    served = [
        api
        for api in await target.client.discovery.recent()
        if api.kind == owned.ref.kind and api.resource.group == group
    ]
    return next((api for api in served if api.preferred), served[0] if served else None)


def _group_of(owned: Owned) -> str:
    group, _, _ = owned.ref.api_version.rpartition("/")
    return group or CORE


def _without_type(target: Target, owned: Owned) -> Removal:
    """A type that is not served has no objects, unless its API server is only down (D9, W8)."""
    group = _group_of(owned)
    failed = [
        version for version in target.client.discovery.failed if version.rpartition("/")[0] == group
    ]
    if failed:
        message = f"{owned.ref}: {', '.join(sorted(failed))} cannot be discovered"
        return Removal(Fate.KEPT, "DeleteFailed", message, State.FAILED, LATER)
    return _GONE


async def _release(target: Target, obj: OwnedObject, live: Object, reason: str) -> Removal:
    """Remove our mark, so that whoever manages the object next finds it free."""
    unmarked = {"labels": {OWNER_UID_LABEL: None}, "annotations": {OWNER_ANNOTATION: None}}
    await patch_exactly(target, obj.resource, live, unmarked)
    return Removal(Fate.RELEASED, reason)


async def _in_use(target: Target, live: Object, owned: Owned) -> Removal | None:
    """Keep what would take objects along that nobody decided about."""
    if owned.ref.kind == "CustomResourceDefinition":
        return await _has_instances(target, live, owned)
    if owned.ref.kind != "Namespace":
        return None
    content = await _find_content(target, owned.ref.name)
    if not content:
        return None
    message = f"{owned.ref}: it still contains {content}"
    return Removal(Fate.KEPT, "NamespaceNotEmpty", message, State.HELD, LATER)


async def _find_content(target: Target, namespace: str) -> str:
    """Name an object in a namespace that the cluster did not put there; "" if there is none.

    Of each type two objects are read at most; a type that cannot be read counts as content.

    Raises:
        KubeError: the cluster refuses, or does not answer.
    """
    discovery = target.client.discovery
    types = await discovery.refresh()
    if discovery.failed:
        return f"{', '.join(sorted(discovery.failed))}, which cannot be discovered"
    for api in _listable(types):
        path = path_of(api.resource, namespace)
        page = await target.client.get_json(path, query={"limit": "2"})
        for item in cast("list[dict[str, Any]]", page.get("items") or []):
            name = str(item["metadata"]["name"])
            if (api.resource.group, api.resource.plural, name) not in _IN_EVERY_NAMESPACE:
                return f"{api.kind} {name}"
    await target.client.confirm()  # another cluster's lists would show nothing, too
    return ""


def _listable(types: Iterable[ApiResource]) -> Iterable[ApiResource]:
    """Each type once, whatever versions of it are served."""
    chosen = {
        (api.resource.group, api.resource.plural): api
        for api in types
        if api.namespaced and "list" in api.verbs
    }
    return [api for key, api in sorted(chosen.items()) if key not in _PASSING]


async def _has_instances(target: Target, definition: Object, owned: Owned) -> Removal | None:
    """Keep a CRD that has instances: deleting it would delete all of them, also of others."""
    spec = definition["spec"]
    served = next((version["name"] for version in spec["versions"] if version.get("served")), "")
    if not served:
        return None
    resource = f"{spec['group']}/{served}/{spec['names']['plural']}"
    if not await target.client.has_any(resource):
        return None
    message = f"{owned.ref}: instances of this type still exist"
    return Removal(Fate.KEPT, "InstancesExist", message, State.HELD, LATER)


def _pending(owned: Owned) -> Removal:
    return Removal(Fate.KEPT, "Deleting", f"{owned.ref} is being deleted")
