"""Holds deletions when a MultiClusterResource goes with its namespace or CRD (rule D8).

`kubectl delete namespace`, or `kubectl delete crd`, deletes every MultiClusterResource in it. That
is no request to delete the objects on the targets: they are held, and our finalizer stays, until a
person confirms it, or keeps them with policy Orphan. Both work while the namespace or CRD is
terminating: objects may still be changed then, only not created. Our finalizer blocks the deletion
of the namespace or CRD, too; forcing it out and creating it again requests nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Inventory, Mark
from fleetbus_distributor.plan.plan import Hold, HoldReason, count, hash_plan, new_nonce
from fleetbus_distributor.render.spec import CRD_NAME
from fleetbus_distributor.render.template import Object

log = structlog.get_logger()

_DEFINITIONS: Final = "apiextensions.k8s.io/v1/customresourcedefinitions"
_NAMESPACES: Final = "v1/namespaces"


async def hold_teardown(hub: KubeClient, document: Document, inventory: Inventory) -> Hold | None:
    """Decide whether the objects of a deleted MultiClusterResource are held.

    Args:
        hub: read live.
        document: the MultiClusterResource; it is being deleted.
        inventory: the intent as it is on record.

    Returns:
        None if it was deleted itself, or if a person has confirmed that its objects go.
    """
    every = [(name, owned) for name, entries in inventory.items() for owned in entries.values()]
    if all(owned.mark is Mark.CONFIRMED for _, owned in every):
        return None
    before = status.read_hold(document.status)
    cause = await _cause(hub, document, before)
    if cause is None:
        return None
    reason, why = cause
    goes = sorted((name, *owned.ref.key, owned.uid) for name, owned in every)
    parts = (document.metadata["uid"], document.generation, "teardown", goes)
    plan_hash, nonce = hash_plan(before, new_nonce(), *parts)
    message = (
        f"{why}, which does not request the deletion of its {count(inventory)} object(s); nothing "
        f"is deleted until the annotation {CONFIRM_PRUNE_ANNOTATION} is {plan_hash!r}; to keep the "
        "objects on the clusters, set spec.policy.deletion to Orphan"
    )
    return Hold(reason, plan_hash, message, nonce)


async def confirm_all(document: Document, inventory: Inventory) -> Inventory:
    """Record that a person confirmed the deletion of these objects, and of no others."""
    marked = {
        name: {key: replace(owned, mark=Mark.CONFIRMED) for key, owned in entries.items()}
        for name, entries in inventory.items()
    }
    bases = intent.read_bases(document.status)
    recorded = status.with_intent(document.status, marked, bases, is_answered=True)
    await document.write_status(recorded)
    await document.drop_confirmation()
    return marked


async def _cause(
    hub: KubeClient, document: Document, before: Hold | None
) -> tuple[HoldReason, str] | None:
    namespace = str(document.metadata["namespace"])
    why = {
        HoldReason.NAMESPACE: f"it is deleted with its namespace {namespace}",
        HoldReason.DEFINITION: f"it is deleted with its definition {CRD_NAME}",
    }
    if before is not None and before.reason in why:
        # A deletion cannot be undone: forcing the parent out later requests nothing either.
        return before.reason, why[before.reason]
    try:
        if _goes_with(await hub.get(_NAMESPACES, "", namespace), document.metadata):
            return HoldReason.NAMESPACE, why[HoldReason.NAMESPACE]
        if _goes_with(await hub.get(_DEFINITIONS, "", CRD_NAME), document.metadata):
            return HoldReason.DEFINITION, why[HoldReason.DEFINITION]
    except KubeError as error:
        log.warning("cause_of_deletion_unknown", error=str(error))
        return HoldReason.UNREADABLE, "its namespace or definition cannot be read"
    return None


def _goes_with(parent: Object | None, metadata: Object) -> bool:
    """Whether its parent was deleted no later than itself, is gone, or was recreated since.

    Whoever deletes the MultiClusterResource first, and the namespace then, intended both. Times
    are whole seconds in UTC, so their strings compare; in doubt the deletion was not intended.
    """
    if parent is None:
        return True
    at, parents = str(metadata["deletionTimestamp"]), parent["metadata"]
    since, created = parents.get("deletionTimestamp"), str(parents["creationTimestamp"])
    # A parent younger than the object is not the one it was created in: that one was forced out
    # while our finalizer blocked it.
    is_new = created > str(metadata["creationTimestamp"]) and created >= at
    return is_new or (since is not None and str(since) <= at)
