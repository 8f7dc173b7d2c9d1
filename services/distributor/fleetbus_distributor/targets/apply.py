"""Applies one object to one cluster: read it, check its owner, apply what differs (D3, D4, D6).

Server-side apply with our field manager, forced only where the policies allow it. The live object's
UID is a precondition, so that what was decided about one object is never done to another that took
its name meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from fleetbus.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound
from fleetbus.kube.applied import is_unchanged
from fleetbus.kube.discovery import ApiResource
from fleetbus.ownership import PAUSE_ANNOTATION, set_owner
from fleetbus_distributor.health.health import Health, HealthState
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets.claim import Ownership, claim, is_paused, may_delete
from fleetbus_distributor.targets.drift import KEEPS_CHANGING, fields_in_conflict
from fleetbus_distributor.targets.drift_report import Drift, describe_drift, find_drift
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.run_once import outcome_of_gone, ran_after
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
from fleetbus_distributor.targets.update import (
    MISSING,
    is_up_to_date,
    may_recreate,
    note_answer,
    order_of,
    recreate,
    send_apply,
    try_apply,
    update,
)

_NO_MATCH = "NoMatch"
_NAMESPACES = "v1/namespaces"
_CONFIRMED_FOR = timedelta(milliseconds=250)
"""How old the reading of which cluster answers may be before something is created there: nothing
else shows that the object is absent from the right one."""
_DELETED = Drift("", is_removed=True)
_UNTIL = "nothing is written until the MultiClusterResource or the object changes"
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
        return _recorded(target, obj, None, created)
    live = await target.client.get(api.resource, *namespaced_name(api, ref))
    if live is not None:
        outcome = await _apply_to(target, api, wanted, live, ref)
        return _recorded(target, obj, live, outcome)
    if ended := outcome_of_gone(target, obj, ref):
        return ended
    return _recorded(target, obj, None, await _create(target, api, wanted, ref))


def _recorded(
    target: Target, obj: Object, live: Object | None, outcome: ObjectOutcome
) -> ObjectOutcome:
    """Add what is to be recorded of an object that exists; `live` as it was before."""
    if live is None and outcome.change is not Change.CREATED:
        return outcome
    return replace(outcome, ran=ran_after(target, obj, live, outcome))


async def _apply_to(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    if obstacle := _obstacle(target, live, ref):
        return _outcome(ref, obstacle, uid=_uid_if_ours(target, live, ref))
    if is_up_to_date(target, wanted, live):
        return _applied(target, ref, live)
    if target.only_compare and target.policy.drift is DriftPolicy.IGNORE:
        return _applied(target, ref, live)
    if target.only_compare or is_paused(live):
        return await _compare(target, api, wanted, live, ref)
    return await _update(target, api, wanted, live, ref)


async def _compare(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Let the server tell, without a write, whether an object is as it should be."""
    made = await try_apply(target, api, wanted, live)
    drift = find_drift(wanted, made, live, target.manager)
    if is_unchanged(live, made):
        note_answer(target, wanted, live)
        return _applied(target, ref, live)
    if not drift and made["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
        return _applied(target, ref, live)  # others have changed it meanwhile: an event follows
    if is_paused(live):
        return _outcome(ref, paused(ref), str(live["metadata"]["uid"]))
    return _drifted(target, ref, drift, live)


async def _update(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    order = order_of(target, wanted)
    if stopped := target.corrections.stopped(target.name, order, live, target.manager):
        return stopped
    try:
        made, drift = await update(target, api, wanted, live)
    except Invalid:
        if target.policy.recreate and may_recreate(target, live):
            return await recreate(target, api, wanted, live, ref)
        raise
    except Conflict as error:
        return _conflict(target, wanted, live, ref, error)
    if made is None:
        message = f"{ref}: {describe_drift(drift)}, once more after each correction; {_UNTIL}"
        found = Finding(State.CONFLICT, KEEPS_CHANGING, message, RARELY)
        outcome = replace(_outcome(ref, found, _uid_if_ours(target, live, ref)), drift=drift)
        target.corrections.stop(target.name, order, live, target.manager, outcome)
        return outcome
    is_written = made["metadata"].get("resourceVersion") != live["metadata"].get("resourceVersion")
    return _applied(target, ref, made, Change.UPDATED if is_written else Change.NONE, drift)


def _conflict(
    target: Target, wanted: Object, live: Object, ref: ObjectRef, error: Conflict
) -> ObjectOutcome:
    found = to_finding(error, wanted, str(ref))
    outcome = _outcome(ref, found, _uid_if_ours(target, live, ref))
    held = fields_in_conflict(error)
    shown = [replace(one, field=redact_secrets(one.field, wanted)) for one in held]
    outcome = replace(outcome, drift=shown)
    order = order_of(target, wanted)
    if held and not target.corrections.has_room(target.name, order, live):
        target.corrections.stop(target.name, order, live, target.manager, outcome)
    return outcome


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
        made = await send_apply(target, api, _only_create(wanted))
    except Conflict:
        return None  # it exists: read it
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        return None
    note_answer(target, wanted, made)
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
        made = await send_apply(target, api, _only_create(wanted))
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        raise
    note_answer(target, wanted, made)
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
