"""Why a MultiClusterResource goes: somebody deleted it, or what it lives in goes (rule D8).

`kubectl delete namespace`, or `kubectl delete crd`, deletes every MultiClusterResource in it. That
is no order about the objects on the targets: they are held, and so is our finalizer, until a person
confirms it, or says with policy Orphan that they stay. Both work while the namespace or the
definition is on its way out: objects may still be changed then, only not created. Our finalizer
holds up the namespace or definition, too; whoever forces it out and makes it anew orders nothing.
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
from fleetbus_distributor.plan.plan import Hold, HoldReason, count, name_question, new_nonce
from fleetbus_distributor.render.spec import CRD_NAME
from fleetbus_distributor.render.template import Object

log = structlog.get_logger()

_DEFINITIONS: Final = "apiextensions.k8s.io/v1/customresourcedefinitions"
_NAMESPACES: Final = "v1/namespaces"


async def hold_teardown(hub: KubeClient, document: Document, inventory: Inventory) -> Hold | None:
    """Decide whether the objects of a MultiClusterResource that goes are held.

    Args:
        hub: read live.
        document: the MultiClusterResource; it is being deleted.
        inventory: the intent as it is on record.

    Returns:
        None if it was itself deleted, or if a person confirmed before that its objects go.
    """
    every = [(name, one) for name, entries in inventory.items() for one in entries.values()]
    if all(one.mark is Mark.CONFIRMED for _, one in every):
        return None
    before = status.read_hold(document.status)
    found = await _cause(hub, document, before)
    if found is None:
        return None
    reason, why = found
    goes = sorted((name, *one.ref.key, one.uid) for name, one in every)
    parts = (document.metadata["uid"], document.generation, "teardown", goes)
    plan_hash, nonce = name_question(before, new_nonce(), *parts)
    message = (
        f"{why}, which is no order to delete its {count(inventory)} object(s); nothing is deleted "
        f"until the annotation {CONFIRM_PRUNE_ANNOTATION} is {plan_hash!r}; to leave them on the "
        "clusters, set spec.policy.deletion to Orphan"
    )
    return Hold(reason, plan_hash, message, nonce)


async def confirm_all(document: Document, inventory: Inventory) -> Inventory:
    """Put on record that a person confirmed the deletion of these objects, and of no others."""
    marked = {
        name: {key: replace(one, mark=Mark.CONFIRMED) for key, one in entries.items()}
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
        HoldReason.NAMESPACE: f"it goes with its namespace {namespace}",
        HoldReason.DEFINITION: f"it goes with its definition {CRD_NAME}",
    }
    if before is not None and before.reason in why:
        # No deletion can be taken back: what forces its parent out later is no order either.
        return before.reason, why[before.reason]
    try:
        if _goes_with(await hub.get(_NAMESPACES, "", namespace), document.metadata):
            return HoldReason.NAMESPACE, why[HoldReason.NAMESPACE]
        if _goes_with(await hub.get(_DEFINITIONS, "", CRD_NAME), document.metadata):
            return HoldReason.DEFINITION, why[HoldReason.DEFINITION]
    except KubeError as error:
        log.warning("cause_of_deletion_unknown", error=str(error))
        return HoldReason.UNREADABLE, "it cannot be read whether its namespace or definition goes"
    return None


def _goes_with(parent: Object | None, metadata: Object) -> bool:
    """Whether what it lives in was deleted no later than itself, is gone, or was made anew since.

    Somebody who deletes the MultiClusterResource first, and the namespace then, meant both. Times
    are whole seconds in UTC, so their texts compare; in doubt the deletion was not meant.
    """
    if parent is None:
        return True
    at, parents = str(metadata["deletionTimestamp"]), parent["metadata"]
    since, made = parents.get("deletionTimestamp"), str(parents["creationTimestamp"])
    # Younger than what lives in it, it is not the one that this was created in: that one was
    # forced out while our finalizer held it.
    is_new = made > str(metadata["creationTimestamp"]) and made >= at
    return is_new or (since is not None and str(since) <= at)
