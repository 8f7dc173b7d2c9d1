"""Applies one object to one cluster: read it, check its owner, apply what differs (D3, D4, D6).

Server-side apply with our field manager, forced only where the policies allow it. The live object's
UID is a precondition, so that what was decided about one object is never done to another that took
its name meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from fleetbus.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound
from fleetbus.kube.discovery import ApiResource
from fleetbus.ownership import PAUSE_ANNOTATION, set_owner
from fleetbus_distributor.health.health import Health, HealthState
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets.claim import (
    Ownership,
    claim,
    is_marked_for_other,
    is_paused,
    is_protected,
    may_delete,
)
from fleetbus_distributor.targets.drift import (
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
from fleetbus_distributor.targets.managed_fields import is_applied
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.target import (
    LATER,
    RARELY,
    SOON,
    Finding,
    Target,
    namespaced_name,
    paused,
    redact_secrets,
    to_finding,
)

MISSING = "Missing"
"""The reason of an object that is missing, or must be replaced, where nothing may be created."""
_NO_MATCH = "NoMatch"
OUTDATED = "RecreateHeld"
"""The reason of an object that must be replaced although no edit requests it."""
_NAMESPACES = "v1/namespaces"
_CONFIRMED_FOR = timedelta(milliseconds=250)
"""How old the reading of which cluster answers may be before something is created there: nothing
else shows that the object is absent from the right one."""
_DELETED = Drift("", is_removed=True)
_ONLY_CREATE = "1"
"""No object can have this resourceVersion (etcd's first write gets 2): an apply that carries it
creates, and fails where somebody else created the object since we looked."""


async def apply_object(target: Target, obj: Object) -> ObjectOutcome:
    """Apply one object where it differs.

    Returns:
        The outcome; a refusal is an outcome, not an error.

    Raises:
        ClusterUnreachable: the cluster as a whole cannot be worked on.
    """
    ref = reference(obj)
    try:
        return await _apply(target, obj, ref)
    except KubeError as error:
        found = to_finding(error, obj, str(ref))
    if found.reason == _NO_MATCH:
        # The type was removed since it was discovered (rule D9).
        with suppress(KubeError):
            await target.client.discovery.version(ref.api_version, anew=True)
        found = replace(found, retry=_discover_after(target, ref))
    return _outcome(ref, found)


def _discover_after(target: Target, ref: ObjectRef) -> timedelta:
    return target.seen.types.note_missing(target.name, ref.api_version, ref.kind, target.owner)


async def _apply(target: Target, obj: Object, ref: ObjectRef) -> ObjectOutcome:
    api = await target.client.discover(ref.api_version, ref.kind)
    if api is None and target.seen.types.take_news(target.name, ref.api_version, ref.kind):
        # The cluster may have been asked a moment before its watcher reported the type.
        await target.client.discovery.version(ref.api_version, anew=True)
        api = await target.client.discover(ref.api_version, ref.kind)
    if api is None:
        message = f"{ref}: the cluster does not serve {ref.kind} of {ref.api_version}"
        retry = _discover_after(target, ref)
        return _outcome(ref, Finding(State.WAITING, _NO_MATCH, message, retry))
    target.seen.types.note_served(target.name, ref.api_version, ref.kind)
    wanted = _marked(target, obj, api)
    if created := await _create_unread(target, api, wanted, ref):
        return created
    live = await target.client.get(api.resource, *namespaced_name(api, ref))
    if live is None:
        return await _create(target, api, wanted, ref)
    return await _apply_to(target, api, wanted, live, ref)


async def _apply_to(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    if obstacle := _obstacle(target, live, ref):
        return _outcome(ref, obstacle, uid=_uid_if_ours(target, live, ref))
    if is_applied(wanted, live, target.manager):
        return _applied(target, ref, live)
    if is_paused(live):
        return _outcome(ref, paused(ref), str(live["metadata"]["uid"]))
    if target.only_compare:
        return _drifted(target, ref, find_drift(wanted, live, target.manager), live)
    return await _update(target, api, wanted, live, ref)


def _marked(target: Target, obj: Object, api: ApiResource) -> Object:
    """Set the owner mark last: a patch may have replaced all annotations (rule T16)."""
    wanted = set_owner({**obj, "metadata": {**obj["metadata"]}}, target.owner)
    wanted["metadata"]["annotations"].pop(PAUSE_ANNOTATION, None)  # for people on the cluster
    if not api.namespaced:
        del wanted["metadata"]["namespace"]
    return wanted


def _obstacle(target: Target, live: Object, ref: ObjectRef) -> Finding | None:
    if live["metadata"].get("deletionTimestamp"):
        message = f"{ref} is being deleted; it is applied again afterwards"
        return Finding(State.WAITING, "Terminating", message, SOON)
    known = target.known.get(ref.key)
    found = claim(live, target.owner, known.uid if known else "")
    may_take = target.policy.conflict is not ConflictPolicy.ABORT
    is_free = found.ownership not in (Ownership.LOST, Ownership.MALFORMED)
    if found.ownership is Ownership.OURS or (may_take and is_free):
        return None
    message = f"{ref} exists and {found.message}"
    return Finding(State.CONFLICT, found.ownership, message, RARELY)


def _uid_if_ours(target: Target, live: Object, ref: ObjectRef) -> str:
    """The UID to record: only our own mark confirms one, that of a stranger is never recorded."""
    if may_delete(live, target.owner):
        return str(live["metadata"]["uid"])
    known = target.known.get(ref.key)
    return known.uid if known else ""


async def _create_unread(
    target: Target, api: ApiResource, wanted: Object, ref: ObjectRef
) -> ObjectOutcome | None:
    """Create an object that was never confirmed, without a read before; None if that fails.

    Whatever exists under its name is left alone: the server refuses to do anything but create.
    """
    known = target.known.get(ref.key)
    if not target.may_create or target.only_compare or (known is not None and known.uid):
        return None
    if api.namespaced and not await _has_namespace(target, ref.namespace):
        return None
    await target.client.confirm(within=_CONFIRMED_FOR)
    try:
        made = await _apply_body(target, api, _only_create(wanted))
    except Conflict:
        return None  # it exists: read it
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        return None
    return _applied(target, ref, made, Change.CREATED)


def _only_create(wanted: Object) -> Object:
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": _ONLY_CREATE}}


async def _create(
    target: Target, api: ApiResource, wanted: Object, ref: ObjectRef
) -> ObjectOutcome:
    if target.only_compare:
        return _drifted(target, ref, [_DELETED], None)
    if api.namespaced and (missing := await _namespace_missing(target, ref)):
        return _outcome(ref, missing)
    if not target.may_create:
        return _outcome(ref, Finding(State.WAITING, MISSING, f"{ref} is missing", SOON))
    try:
        made = await _apply_body(target, api, _only_create(wanted))
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        raise
    known = target.known.get(ref.key)
    was_here = known is not None and known.uid and known.mark is Mark.NONE
    drift = [_DELETED] if target.is_same and was_here else []
    return _applied(target, ref, made, Change.CREATED, drift)


async def _has_namespace(target: Target, name: str) -> bool:
    """Whether a namespace exists; where it once did, the server refuses what comes too late."""
    if target.seen.has_namespace(target.name, name):
        return True
    try:
        if await target.client.get(_NAMESPACES, "", name) is None:
            return False
    except Forbidden:
        # A ServiceAccount with rights in the namespace only need not be able to read it: then the
        # server says with the write whether it exists. Creating it needs more rights.
        if not target.service_account or target.policy.create_namespaces:
            raise
        return True
    target.seen.note_namespace(target.name, name)
    return True


async def _namespace_missing(target: Target, ref: ObjectRef) -> Finding | None:
    """Create a missing namespace if the policy allows it, else say that it is missing (D10)."""
    if await _has_namespace(target, ref.namespace):
        return None
    if not target.may_create and target.policy.create_namespaces:
        return None  # created together with the object
    if not target.policy.create_namespaces:
        message = (
            f"namespace {ref.namespace!r} does not exist (spec.policy.createNamespaces is off)"
        )
        return Finding(State.WAITING, "NamespaceMissing", message, LATER)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ref.namespace}}
    try:
        await target.client.create(
            _NAMESPACES, set_owner(namespace, target.owner), field_manager=target.manager
        )
    except AlreadyExists:
        return None
    return None


async def _update(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    body = {**wanted, "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]}}
    try:
        made = await _send_as_current(target, api, body, live)
    except Invalid:
        if target.policy.recreate and _may_recreate(target, live):
            return await _recreate(target, api, wanted, live, ref)
        raise
    except Conflict as error:
        found = to_finding(error, wanted, str(ref))
        outcome = _outcome(ref, found, _uid_if_ours(target, live, ref))
        held = fields_in_conflict(error)
        shown = [replace(one, field=redact_secrets(one.field, wanted)) for one in held]
        return replace(outcome, drift=shown)
    if made["metadata"].get("resourceVersion") == live["metadata"].get("resourceVersion"):
        return _applied(target, ref, made)
    return _applied(target, ref, made, Change.UPDATED, _taken_back(target, wanted, live))


def _taken_back(target: Target, wanted: Object, live: Object) -> list[Drift]:
    """The changes of others that an apply has undone; what an edit has changed is none (D13)."""
    if target.is_same:
        return find_drift(wanted, live, target.manager)
    if not was_applied(live, target.manager):
        return []
    return find_updated(wanted, live, target.manager)


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
        return await _apply_body(target, api, body, force=is_forced)
    except Conflict as error:
        if not _may_take(target, error, live):
            raise
    return await _apply_body(target, api, body, force=True)


async def _apply_body(
    target: Target, api: ApiResource, body: Object, *, force: bool = False
) -> Object:
    made = await target.client.apply(api.resource, body, field_manager=target.manager, force=force)
    target.seen.note_write(target.name, made)
    return made


def _may_take(target: Target, error: Conflict, live: Object) -> bool:
    adopts = target.policy.conflict is ConflictPolicy.ADOPT
    if adopts and is_free_to_adopt(error, live, target.manager):
        return True
    corrects = target.policy.drift is DriftPolicy.CORRECT
    if not corrects or not is_hand_made(error, live, target.manager):
        return False
    return target.corrections.may_correct(live["metadata"]["uid"])


def _may_recreate(target: Target, live: Object) -> bool:
    has_dependents = live["kind"] in ("Namespace", "CustomResourceDefinition")
    is_here = not target.aliases and not is_marked_for_other(live, target.owner)
    may_go = may_delete(live, target.owner) and not is_protected(live)
    return is_here and may_go and not has_dependents


async def _recreate(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Delete an object to create it again; the new one must be acceptable first (rule D6).

    Only the round for all clusters does so: the spec of any other may be outdated by now, and the
    live object may be the one that a newer round has just created. A replacement that no edit
    requests is only recorded: the next round plans it like every other deletion (rule D8).
    """
    known = target.known.get(ref.key)
    uid = str(live["metadata"]["uid"])
    if known and known.mark is Mark.OUTDATED:
        return _outdated(ref, uid)
    if not target.may_create:
        message = f"{ref} must be recreated because of a changed immutable field"
        return _outcome(ref, Finding(State.WAITING, MISSING, message, SOON))
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


def _applied(
    target: Target,
    ref: ObjectRef,
    live: Object,
    change: Change = Change.NONE,
    drift: Sequence[Drift] = (),
) -> ObjectOutcome:
    return replace(_observed(target, ref, live), change=change, drift=drift)


def _drifted(
    target: Target, ref: ObjectRef, drift: Sequence[Drift], live: Object | None
) -> ObjectOutcome:
    found = _observed(target, ref, live)
    if target.policy.drift is DriftPolicy.IGNORE:
        return found
    described = describe_drift(drift)
    message = f"{ref}: {described}" if described else f"{ref} was changed on the cluster"
    if live is None:
        message = f"{ref} was deleted on the cluster"
    return replace(found, state=State.DRIFTED, reason="Drifted", message=message, drift=drift)


def _observed(target: Target, ref: ObjectRef, live: Object | None) -> ObjectOutcome:
    """The health of an object, and the chosen fields of its status, as it was read just now."""
    if live is None:
        missing = Health(HealthState.MISSING, "Missing", "it is missing")
        return ObjectOutcome(ref, State.APPLIED, health=missing)
    health = target.status_rules.health_of(live)
    if health.message:
        # Its controller may quote what it refuses (rule D14).
        health = replace(health, message=redact_secrets(health.message, live))
    uid, values = str(live["metadata"]["uid"]), target.status_rules.collect(live)
    return ObjectOutcome(ref, State.APPLIED, uid=uid, health=health, values=values)


def _outcome(ref: ObjectRef, found: Finding, uid: str = "") -> ObjectOutcome:
    return ObjectOutcome(ref, found.state, found.reason, found.message, uid, found.retry)
