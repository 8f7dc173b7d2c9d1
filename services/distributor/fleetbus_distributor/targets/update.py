"""Changes an object that exists, by an apply or by its replacement (rules D3, D6, D13)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fleetbus.errors import Conflict, Invalid, KubeError
from fleetbus.kube.applied import is_unchanged
from fleetbus.owned_objects.claim import claim
from fleetbus.owned_objects.decision import Decision, RemovalPolicy, decide_removal
from fleetbus.owned_objects.executor import delete_exactly
from fleetbus.owned_objects.force import was_applied
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.drift_report import (
    Drift,
    describe_drift,
    fields_in_conflict,
    find_drift,
    find_updated,
)
from fleetbus_distributor.targets.field_versions import is_outdated, move_fields
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.placed_object import PlacedObject
from fleetbus_distributor.targets.target import (
    DELETES,
    RARELY,
    SOON,
    Finding,
    Target,
    redact_secrets,
    to_finding,
)

MISSING: Final = "Missing"
"""The reason of an object that is missing, or must be replaced, where nothing may be created."""
OUTDATED: Final = "RecreateHeld"
"""The reason of an object that must be replaced although no edit requests it."""
KEEPS_CHANGING: Final = "KeepsChanging"
"""The reason of an object that no longer is as it should be soon after each write."""
_UNTIL: Final = "nothing is written until the MultiClusterResource or the object changes"


async def update(obj: PlacedObject, live: Object) -> ObjectOutcome:
    """Apply to an object that exists, unless that has been of no use lately.

    Raises:
        KubeError: the cluster refuses.
    """
    target, corrections = obj.target, obj.target.corrections
    if stopped := corrections.stopped(target.name, obj.order, live, target.manager):
        return stopped
    has_room = corrections.has_room(target.name, obj.order, live)
    try:
        if has_room:
            if await _is_left_alone(obj, live):
                return obj.applied(live)
            return _written(obj, await _send(obj, live), live)
        # Ask what an apply would change; a conflict is an error as it is without a dry run.
        applied = await obj.place.try_apply(
            obj.configuration, live, force=obj.place.force.overwrites
        )
    except Invalid:
        if target.policy.recreate and _may_recreate(target, live):
            return await _recreate(obj, live)
        raise
    except Conflict as error:
        outcome = _conflict(obj, live, error)
        is_over = bool(outcome.drift) and not has_room
    else:
        if is_unchanged(live, applied):
            target.note_answer(obj.configuration, live)
            return obj.applied(live)
        outcome, is_over = _useless(obj, applied, live), True
    if is_over:
        corrections.stop(target.name, obj.order, live, target.manager, outcome)
    return outcome


async def _is_left_alone(obj: PlacedObject, live: Object) -> bool:
    """Whether the server, asked for the first time since a restart, would leave an object as it is.

    An apply would store some objects anew all the same, with a new generation even: those whose
    nulls or empty lists Go reads in two ways. After a restart these may be thousands.
    """
    target = obj.target
    if not target.is_same or target.memory.answers.has_any(target.name, live, target.manager):
        return False
    try:
        applied = await obj.place.try_apply(
            obj.configuration, live, force=obj.place.force.overwrites
        )
    except Conflict:
        return False  # somebody has changed it: whether the apply may force is its own question
    except KubeError as error:
        if not is_outdated(error, live, str(obj.configuration["apiVersion"])):
            raise
        return False
    if is_same := is_unchanged(live, applied):
        target.note_answer(obj.configuration, live)
    return is_same


async def _send(obj: PlacedObject, live: Object) -> Object:
    """Apply, once more after managedFields that were in the way are moved (rule D9)."""
    version = str(obj.configuration["apiVersion"])
    try:
        return await obj.place.apply(obj.configuration, live)
    except KubeError as error:
        if not is_outdated(error, live, version):
            raise
    moved = await move_fields(obj.target, obj.place.resource, live, version)
    return await obj.place.apply(obj.configuration, moved)


def _written(obj: PlacedObject, applied: Object, live: Object) -> ObjectOutcome:
    """The outcome of an apply, with the changes of others that it has undone (rule D13)."""
    target = obj.target
    if applied["metadata"].get("resourceVersion") == live["metadata"].get("resourceVersion"):
        return obj.applied(applied)
    target.corrections.count(target.name, obj.order, live, target.manager, is_same=target.is_same)
    drift: Sequence[Drift] = ()
    if target.is_same:
        drift = find_drift(obj.configuration, applied, live, target.manager)
    elif was_applied(live, target.manager):  # else an edit has changed it, which is none
        drift = find_updated(obj.configuration, applied, live, target.manager)
    return obj.applied(applied, Change.UPDATED, drift)


def _useless(obj: PlacedObject, applied: Object, live: Object) -> ObjectOutcome:
    """The outcome of an object that another apply would change once more, as the last ones did."""
    drift = find_drift(obj.configuration, applied, live, obj.target.manager)
    message = f"{obj.ref}: {describe_drift(drift)}, once more after each correction; {_UNTIL}"
    return obj.unwritten(Finding(State.CONFLICT, KEEPS_CHANGING, message, RARELY), live, drift)


def _conflict(obj: PlacedObject, live: Object, error: Conflict) -> ObjectOutcome:
    drift = [
        replace(field, field=redact_secrets(field.field, obj.configuration))
        for field in fields_in_conflict(error)
    ]
    return obj.unwritten(to_finding(error, obj.configuration, str(obj.ref)), live, drift)


# --- replacement --------------------------------------------------------------------------------


def _may_recreate(target: Target, live: Object) -> bool:
    """Whether an object may be deleted to be created anew (rules D5, D6)."""
    if target.aliases or live["kind"] in ("Namespace", "CustomResourceDefinition"):
        return False
    decision = decide_removal(live, claim(live, target.owner), RemovalPolicy(deletes=DELETES))
    return decision is Decision.DELETE


async def _recreate(obj: PlacedObject, live: Object) -> ObjectOutcome:
    """Delete an object to create it again; the new one must be acceptable first (rule D6).

    Only the round for all clusters does so: the spec of any other may be outdated by now, and the
    live object may be the one that a newer round has just created. A replacement that no edit
    requests is only recorded: the next round plans it like every other deletion (rule D8).
    """
    target, recorded, uid = obj.target, obj.recorded, str(live["metadata"]["uid"])
    if recorded and recorded.mark is Mark.OUTDATED:
        return _outdated(obj.ref, uid)
    if not target.may_create:
        message = f"{obj.ref} must be recreated because of a changed immutable field"
        return obj.unwritten(Finding(State.WAITING, MISSING, message, SOON))
    candidate = copy.deepcopy(obj.configuration)
    candidate["metadata"]["generateName"] = f"{candidate['metadata'].pop('name')[:50]}-"
    resource = obj.place.resource
    await target.client.create(resource, candidate, field_manager=target.manager, dry_run=True)
    if recorded is None or recorded.mark is not Mark.REPLACEABLE or recorded.uid not in ("", uid):
        return _outdated(obj.ref, uid)
    await delete_exactly(target.client, resource, live)
    message = f"{obj.ref} is deleted, to be recreated with a changed immutable field"
    outcome = obj.unwritten(Finding(State.WAITING, "Recreating", message, SOON))
    return replace(outcome, change=Change.DELETED)


def _outdated(ref: ObjectRef, uid: str) -> ObjectOutcome:
    message = (
        f"{ref} has a changed immutable field, and no edit requests that: it is deleted and "
        "recreated when the limits of such deletions allow it, or a person confirms it"
    )
    return ObjectOutcome(ref, State.HELD, OUTDATED, message, uid)
