"""Changes an object that exists: by an apply, a dry run of one, or its replacement (D3, D6, D13).

Whether an apply changes anything is known only where the live object shows exactly our fields and
values, or the server has answered that before; else the server is asked, by the apply itself or,
where nothing may be written, by a dry run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from fleetbus.errors import Conflict, KubeError
from fleetbus.kube.applied import is_applied, is_unchanged
from fleetbus.kube.discovery import ApiResource
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.claim import is_marked_for_other, is_protected, may_delete
from fleetbus_distributor.targets.drift import is_free_to_adopt, is_hand_made, was_applied
from fleetbus_distributor.targets.drift_report import Drift, find_drift, find_updated
from fleetbus_distributor.targets.field_versions import is_outdated, move_fields
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.target import SOON, Target, namespaced_name

MISSING: Final = "Missing"
"""The reason of an object that is missing, or must be replaced, where nothing may be created."""
OUTDATED: Final = "RecreateHeld"
"""The reason of an object that must be replaced although no edit requests it."""


def is_up_to_date(target: Target, wanted: Object, live: Object) -> bool:
    """Whether it is certain, without a request, that an apply would change nothing."""
    if is_applied(wanted, live, target.manager):
        return True
    return target.seen.answers.covers(target.name, wanted, live, target.manager)


def note_answer(target: Target, wanted: Object, made: Object) -> None:
    """Remember that the server has nothing to change about an object as it is now."""
    target.seen.answers.note(target.name, wanted, made, target.manager)


def order_of(target: Target, wanted: Object) -> Object:
    """A configuration with the policies that decide how it is written: another order may work."""
    policy = [target.policy.conflict.value, target.policy.drift.value]
    return {**wanted, "fleetbus.dev/policy": policy}


async def try_apply(target: Target, api: ApiResource, wanted: Object, live: Object) -> Object:
    """The object as an apply that takes every field would make it; nothing is written.

    Raises:
        KubeError: the cluster refuses.
    """
    try:
        return await target.client.apply(
            api.resource,
            _of_live(wanted, live),
            field_manager=target.manager,
            force=True,
            dry_run=True,
        )
    except KubeError as error:
        if not is_outdated(error, live, wanted["apiVersion"]):
            raise
    return wanted  # only a write could move the managedFields that are in the way (rule D9)


async def update(
    target: Target, api: ApiResource, wanted: Object, live: Object
) -> tuple[Object | None, Sequence[Drift]]:
    """Apply to an object that exists, unless that has been of no use lately.

    Returns:
        The object, with the changes of others that were taken back; None instead of the object if
        the same was applied too often: then nothing is written, and the changes are still there.

    Raises:
        KubeError: the cluster refuses, or another manager holds fields.
    """
    order = order_of(target, wanted)
    if not target.corrections.has_room(target.name, order, live):
        return await _try_once_more(target, api, wanted, live)
    made = await _send_as_current(target, api, _of_live(wanted, live), live)
    note_answer(target, wanted, made)
    if made["metadata"].get("resourceVersion") == live["metadata"].get("resourceVersion"):
        return made, ()
    target.corrections.count(target.name, order, live, target.manager, is_same=target.is_same)
    return made, _taken_back(target, wanted, made, live)


async def _try_once_more(
    target: Target, api: ApiResource, wanted: Object, live: Object
) -> tuple[Object | None, Sequence[Drift]]:
    """Ask what an apply would change; a conflict is an error as it is without a dry run."""
    made = await target.client.apply(
        api.resource,
        _of_live(wanted, live),
        field_manager=target.manager,
        force=target.policy.conflict is ConflictPolicy.OVERWRITE,
        dry_run=True,
    )
    if is_unchanged(live, made):
        note_answer(target, wanted, live)
        return live, ()
    return None, find_drift(wanted, made, live, target.manager)


def _of_live(wanted: Object, live: Object) -> Object:
    """The configuration for this very object, whatever takes its name meanwhile."""
    return {**wanted, "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]}}


def _taken_back(target: Target, wanted: Object, made: Object, live: Object) -> list[Drift]:
    """The changes of others that an apply has undone; what an edit has changed is none (D13)."""
    if target.is_same:
        return find_drift(wanted, made, live, target.manager)
    if not was_applied(live, target.manager):
        return []
    return find_updated(wanted, made, live, target.manager)


async def _send_as_current(target: Target, api: ApiResource, body: Object, live: Object) -> Object:
    """Apply; if managedFields of another version are in the way, move them first (rule D9)."""
    try:
        return await _send(target, api, body, live)
    except KubeError as error:
        if not is_outdated(error, live, body["apiVersion"]):
            raise
    return await _send(target, api, body, await move_fields(target, api, live, body["apiVersion"]))


async def _send(target: Target, api: ApiResource, body: Object, live: Object) -> Object:
    """Apply; take a field back only where the policy or the kind of change allows it."""
    is_forced = target.policy.conflict is ConflictPolicy.OVERWRITE
    try:
        return await send_apply(target, api, body, force=is_forced)
    except Conflict as error:
        if not _may_take(target, error, live):
            raise
    return await send_apply(target, api, body, force=True)


async def send_apply(
    target: Target, api: ApiResource, body: Object, *, force: bool = False
) -> Object:
    """Apply, and remember the version that this makes.

    Raises:
        KubeError: the cluster refuses.
    """
    made = await target.client.apply(api.resource, body, field_manager=target.manager, force=force)
    target.seen.note_write(target.name, made)
    return made


def _may_take(target: Target, error: Conflict, live: Object) -> bool:
    adopts = target.policy.conflict is ConflictPolicy.ADOPT
    if adopts and is_free_to_adopt(error, live, target.manager):
        return True
    corrects = target.policy.drift is DriftPolicy.CORRECT
    return corrects and is_hand_made(error, live, target.manager)


def may_recreate(target: Target, live: Object) -> bool:
    """Whether an object may be deleted to be created anew (rules D5, D6)."""
    has_dependents = live["kind"] in ("Namespace", "CustomResourceDefinition")
    is_here = not target.aliases and not is_marked_for_other(live, target.owner)
    may_go = may_delete(live, target.owner) and not is_protected(live)
    return is_here and may_go and not has_dependents


async def recreate(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Delete an object to create it again; the new one must be acceptable first (rule D6).

    Only the round for all clusters does so: the spec of any other may be outdated by now, and the
    live object may be the one that a newer round has just created. A replacement that no edit
    requests is only recorded: the next round plans it like every other deletion (rule D8).

    Raises:
        KubeError: the cluster refuses.
    """
    known = target.known.get(ref.key)
    uid = str(live["metadata"]["uid"])
    if known and known.mark is Mark.OUTDATED:
        return _outdated(ref, uid)
    if not target.may_create:
        message = f"{ref} must be recreated because of a changed immutable field"
        return ObjectOutcome(ref, State.WAITING, MISSING, message, retry=SOON)
    candidate = copy.deepcopy(wanted)
    candidate["metadata"]["generateName"] = f"{candidate['metadata'].pop('name')[:50]}-"
    await target.client.create(api.resource, candidate, field_manager=target.manager, dry_run=True)
    if known is None or known.mark is not Mark.REPLACEABLE or known.uid not in ("", uid):
        return _outdated(ref, uid)
    await target.client.delete(api.resource, *namespaced_name(api, ref), uid=uid)
    message = f"{ref} is deleted, to be recreated with a changed immutable field"
    return ObjectOutcome(
        ref, State.WAITING, "Recreating", message, retry=SOON, change=Change.DELETED
    )


def _outdated(ref: ObjectRef, uid: str) -> ObjectOutcome:
    message = (
        f"{ref} has a changed immutable field, and no edit requests that: it is deleted and "
        "recreated when the limits of such deletions allow it, or a person confirms it"
    )
    return ObjectOutcome(ref, State.HELD, OUTDATED, message, uid)
