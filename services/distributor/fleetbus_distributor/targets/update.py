"""Changes an object that exists, by an apply or by its replacement (rules D3, D6, D13)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fleetbus.errors import Conflict, Invalid, KubeError
from fleetbus.kube.applied import is_unchanged
from fleetbus.owned_objects.claim import claim
from fleetbus.owned_objects.decision import Action, RemovalPolicy, decide_removal
from fleetbus.owned_objects.executor import OwnedObject, delete_exactly
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.drift import (
    KEEPS_CHANGING,
    fields_in_conflict,
    is_free_to_adopt,
    is_hand_made,
    was_applied,
)
from fleetbus_distributor.targets.drift_report import (
    Drift,
    describe_drift,
    find_drift,
    find_updated,
)
from fleetbus_distributor.targets.field_versions import is_outdated, move_fields
from fleetbus_distributor.targets.object_outcomes import applied, outcome_of
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
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
_UNTIL: Final = "nothing is written until the MultiClusterResource or the object changes"


async def update(
    target: Target, obj: OwnedObject, configuration: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Apply to an object that exists, unless that has been of no use lately.

    Raises:
        KubeError: the cluster refuses.
    """
    order = _order_of(target, configuration)
    if stopped := target.corrections.stopped(target.name, order, live, target.manager):
        return stopped
    has_room = target.corrections.has_room(target.name, order, live)
    try:
        if has_room:
            made = await _send(target, obj, configuration, live)
        else:  # ask what an apply would change; a conflict is an error as it is without a dry run
            made = await obj.try_apply(configuration, live, force=_is_forced(target))
    except Invalid:
        if target.policy.recreate and _may_recreate(target, live):
            return await _recreate(target, obj, configuration, live, ref)
        raise
    except Conflict as error:
        outcome = _conflict(target, configuration, live, ref, error)
        is_over = bool(outcome.drift) and not has_room
    else:
        if has_room:
            return _written(target, configuration, made, live, ref)
        if is_unchanged(live, made):
            target.note_answer(configuration, live)
            return applied(target, ref, live)
        outcome, is_over = _useless(target, configuration, made, live, ref), True
    if is_over:
        target.corrections.stop(target.name, order, live, target.manager, outcome)
    return outcome


def _order_of(target: Target, configuration: Object) -> Object:
    """A configuration with the policies that decide how it is written: another order may work."""
    policy = [target.policy.conflict.value, target.policy.drift.value]
    return {**configuration, "fleetbus.dev/policy": policy}


def _is_forced(target: Target) -> bool:
    return target.policy.conflict is ConflictPolicy.OVERWRITE


async def _send(target: Target, obj: OwnedObject, configuration: Object, live: Object) -> Object:
    """Apply; take fields back where that is allowed, and move managedFields that are in the way.

    Each is done once at most (rules D6, D9).
    """
    is_forced, is_moved = _is_forced(target), False
    while True:
        try:
            return await obj.apply(configuration, live, force=is_forced)
        except Conflict as error:
            if is_forced or not _may_take(target, error, live):
                raise
            is_forced = True
        except KubeError as error:
            if is_moved or not is_outdated(error, live, configuration["apiVersion"]):
                raise
            live = await move_fields(target, obj.resource, live, configuration["apiVersion"])
            is_moved = True


def _may_take(target: Target, error: Conflict, live: Object) -> bool:
    adopts = target.policy.conflict is ConflictPolicy.ADOPT
    if adopts and is_free_to_adopt(error, live, target.manager):
        return True
    corrects = target.policy.drift is DriftPolicy.CORRECT
    return corrects and is_hand_made(error, live, target.manager)


def _written(
    target: Target, configuration: Object, made: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    if made["metadata"].get("resourceVersion") == live["metadata"].get("resourceVersion"):
        return applied(target, ref, made)
    order = _order_of(target, configuration)
    target.corrections.count(target.name, order, live, target.manager, is_same=target.is_same)
    drift = _taken_back(target, configuration, made, live)
    return applied(target, ref, made, Change.UPDATED, drift)


def _taken_back(
    target: Target, configuration: Object, made: Object, live: Object
) -> Sequence[Drift]:
    """The changes of others that an apply has undone; what an edit has changed is none (D13)."""
    if target.is_same:
        return find_drift(configuration, made, live, target.manager)
    if not was_applied(live, target.manager):
        return []
    return find_updated(configuration, made, live, target.manager)


def _useless(
    target: Target, configuration: Object, made: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """The outcome of an object that another apply would change once more, as the last ones did."""
    drift = find_drift(configuration, made, live, target.manager)
    message = f"{ref}: {describe_drift(drift)}, once more after each correction; {_UNTIL}"
    finding = Finding(State.CONFLICT, KEEPS_CHANGING, message, RARELY)
    return replace(outcome_of(ref, finding, target.uid_to_record(live, ref)), drift=drift)


def _conflict(
    target: Target, configuration: Object, live: Object, ref: ObjectRef, error: Conflict
) -> ObjectOutcome:
    finding = to_finding(error, configuration, str(ref))
    shown = [
        replace(field, field=redact_secrets(field.field, configuration))
        for field in fields_in_conflict(error)
    ]
    return replace(outcome_of(ref, finding, target.uid_to_record(live, ref)), drift=shown)


# --- replacement --------------------------------------------------------------------------------


def _may_recreate(target: Target, live: Object) -> bool:
    """Whether an object may be deleted to be created anew (rules D5, D6)."""
    if target.aliases or live["kind"] in ("Namespace", "CustomResourceDefinition"):
        return False
    decision = decide_removal(live, claim(live, target.owner), RemovalPolicy(deletes=DELETES))
    return decision.action is Action.DELETE


async def _recreate(
    target: Target, obj: OwnedObject, configuration: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Delete an object to create it again; the new one must be acceptable first (rule D6).

    Only the round for all clusters does so: the spec of any other may be outdated by now, and the
    live object may be the one that a newer round has just created. A replacement that no edit
    requests is only recorded: the next round plans it like every other deletion (rule D8).
    """
    recorded = target.known.get(ref.key)
    uid = str(live["metadata"]["uid"])
    if recorded and recorded.mark is Mark.OUTDATED:
        return _outdated(ref, uid)
    if not target.may_create:
        message = f"{ref} must be recreated because of a changed immutable field"
        return outcome_of(ref, Finding(State.WAITING, MISSING, message, SOON))
    candidate = copy.deepcopy(configuration)
    candidate["metadata"]["generateName"] = f"{candidate['metadata'].pop('name')[:50]}-"
    await target.client.create(obj.resource, candidate, field_manager=target.manager, dry_run=True)
    if recorded is None or recorded.mark is not Mark.REPLACEABLE or recorded.uid not in ("", uid):
        return _outdated(ref, uid)
    await delete_exactly(target.client, obj.resource, live)
    message = f"{ref} is deleted, to be recreated with a changed immutable field"
    outcome = outcome_of(ref, Finding(State.WAITING, "Recreating", message, SOON))
    return replace(outcome, change=Change.DELETED)


def _outdated(ref: ObjectRef, uid: str) -> ObjectOutcome:
    message = (
        f"{ref} has a changed immutable field, and no edit requests that: it is deleted and "
        "recreated when the limits of such deletions allow it, or a person confirms it"
    )
    return ObjectOutcome(ref, State.HELD, OUTDATED, message, uid)
