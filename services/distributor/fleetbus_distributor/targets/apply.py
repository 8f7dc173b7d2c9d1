"""Applies one object to one cluster: read it, check its owner, apply what differs (D3, D4, D6).

Server-side apply with our field manager, forced only where the policies allow it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from fleetbus.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from fleetbus.kube.applied import is_applied, is_unchanged
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.owned_objects.claim import Ownership, claim, is_paused
from fleetbus.owned_objects.decision import Action, decide_apply
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.ownership import PAUSE_ANNOTATION, set_owner
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets.drift_report import Drift, find_drift
from fleetbus_distributor.targets.field_versions import is_outdated
from fleetbus_distributor.targets.object_outcomes import applied, drifted, outcome_of
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.run_once import outcome_of_gone, ran_after
from fleetbus_distributor.targets.target import (
    LATER,
    RARELY,
    SOON,
    Finding,
    Target,
    paused,
    to_finding,
)
from fleetbus_distributor.targets.update import MISSING, update

_NO_MATCH: Final = "NoMatch"
_NAMESPACES: Final = "v1/namespaces"
_CONFIRMED_FOR: Final = timedelta(milliseconds=250)
"""How old the reading of which cluster answers may be before something is created there: nothing
else shows that the object is absent from the right one."""
_DELETED: Final = Drift("", is_removed=True)
_OURS: Final = frozenset({Ownership.OURS, Ownership.FORMER})
_FOUGHT_OVER: Final = frozenset({Ownership.LOST, Ownership.MALFORMED})
"""Never taken, whatever the policy."""


async def apply_object(target: Target, template: Object) -> ObjectOutcome:
    """Apply one object where it differs.

    Returns:
        The outcome; a refusal is an outcome, not an error.

    Raises:
        ClusterUnreachable: the cluster as a whole cannot be worked on.
    """
    ref = reference(template)
    try:
        return await _apply(target, template, ref)
    except KubeError as error:
        finding = to_finding(error, template, str(ref))
    if finding.reason == _NO_MATCH:
        # The type was removed since it was discovered (rule D9).
        with suppress(KubeError):
            await target.client.discovery.version(ref.api_version, anew=True)
        finding = replace(finding, retry=_discover_after(target, ref))
    return outcome_of(ref, finding)


def _discover_after(target: Target, ref: ObjectRef) -> timedelta:
    return target.seen.types.note_missing(target.name, ref.api_version, ref.kind, target.owner)


async def _apply(target: Target, template: Object, ref: ObjectRef) -> ObjectOutcome:
    api = await target.client.discover(ref.api_version, ref.kind)
    if api is None and target.seen.types.take_news(target.name, ref.api_version, ref.kind):
        # The cluster may have been asked a moment before its watcher reported the type.
        await target.client.discovery.version(ref.api_version, anew=True)
        api = await target.client.discover(ref.api_version, ref.kind)
    if api is None:
        message = f"{ref}: the cluster does not serve {ref.kind} of {ref.api_version}"
        retry = _discover_after(target, ref)
        return outcome_of(ref, Finding(State.WAITING, _NO_MATCH, message, retry))
    target.seen.types.note_served(target.name, ref.api_version, ref.kind)
    obj, configuration = target.owned_object(api, ref), _marked(target, template, api)
    outcome, live = await _create_unread(target, obj, configuration, ref), None
    if outcome is None:
        live = await obj.read()
        if live is not None:
            outcome = await _apply_to(target, obj, configuration, live, ref)
        elif complete := outcome_of_gone(target, template, ref):
            return complete
        else:
            outcome = await _create(target, obj, configuration, ref)
    if live is None and outcome.change is not Change.CREATED:
        return outcome
    return replace(outcome, ran=ran_after(target, template, live, outcome))


def _marked(target: Target, template: Object, api: ApiResource) -> Object:
    """Set the owner mark last: a patch may have replaced all annotations (rule T16)."""
    marked = set_owner({**template, "metadata": {**template["metadata"]}}, target.owner)
    marked["metadata"]["annotations"].pop(PAUSE_ANNOTATION, None)  # for people on the cluster
    if not api.namespaced:
        del marked["metadata"]["namespace"]
    return marked


# --- an object that exists ----------------------------------------------------------------------


async def _apply_to(
    target: Target, obj: OwnedObject, configuration: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    if obstacle := _obstacle(target, live, ref):
        return outcome_of(ref, obstacle, target.uid_to_record(live, ref))
    if _is_up_to_date(target, configuration, live):
        return applied(target, ref, live)
    if target.only_compare and target.policy.drift is DriftPolicy.IGNORE:
        return applied(target, ref, live)
    if target.only_compare or is_paused(live):
        return await _compare(target, obj, configuration, live, ref)
    return await update(target, obj, configuration, live, ref)


def _obstacle(target: Target, live: Object, ref: ObjectRef) -> Finding | None:
    claimed = claim(live, target.owner, recorded_uid=target.recorded_uid(ref))
    may_take = target.policy.conflict is not ConflictPolicy.ABORT
    takes = frozenset(Ownership) - _FOUGHT_OVER if may_take else _OURS
    action = decide_apply(live, claimed, takes=takes).action
    if action is Action.APPLY:
        return None
    if action is Action.WAIT:
        message = f"{ref} is being deleted; it is applied again afterwards"
        return Finding(State.WAITING, "Terminating", message, SOON)
    message = f"{ref} exists and {claimed.message}"
    return Finding(State.CONFLICT, claimed.ownership, message, RARELY)


def _is_up_to_date(target: Target, configuration: Object, live: Object) -> bool:
    """Whether it is certain, without a request, that an apply would change nothing.

    That is known only where the live object shows exactly our fields and values, or the server has
    answered it before; else the server is asked, by the apply itself or by a dry run.
    """
    if is_applied(configuration, live, target.manager):
        return True
    return target.seen.answers.covers(target.name, configuration, live, target.manager)


async def _compare(
    target: Target, obj: OwnedObject, configuration: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Let the server tell, without a write, whether an object is as it should be."""
    try:
        made = await obj.try_apply(configuration, live, force=True)
    except KubeError as error:
        if not is_outdated(error, live, configuration["apiVersion"]):
            raise
        made = configuration  # only a write could move the managedFields in the way (rule D9)
    drift = find_drift(configuration, made, live, target.manager)
    if is_unchanged(live, made):
        target.note_answer(configuration, live)
        return applied(target, ref, live)
    if not drift and made["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
        return applied(target, ref, live)  # others have changed it meanwhile: an event follows
    if is_paused(live):
        return outcome_of(ref, paused(ref), str(live["metadata"]["uid"]))
    return drifted(target, ref, drift, live)


# --- an object that is missing ------------------------------------------------------------------


async def _create_unread(
    target: Target, obj: OwnedObject, configuration: Object, ref: ObjectRef
) -> ObjectOutcome | None:
    """Create an object that was never confirmed, without a read before; None if that fails.

    Whatever exists under its name is left alone: the server refuses to do anything but create.
    """
    if not target.may_create or target.only_compare or target.recorded_uid(ref):
        return None
    if obj.namespace and not await _has_namespace(target, obj.namespace):
        return None
    await target.client.confirm(within=_CONFIRMED_FOR)
    try:
        made = await obj.create(configuration)
    except Conflict:
        return None  # it exists: read it
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        return None
    return applied(target, ref, made, Change.CREATED)


async def _create(
    target: Target, obj: OwnedObject, configuration: Object, ref: ObjectRef
) -> ObjectOutcome:
    if target.only_compare:
        return drifted(target, ref, [_DELETED], None)
    if obj.namespace and (missing := await _namespace_missing(target, obj.namespace)):
        return outcome_of(ref, missing)
    if not target.may_create:
        return outcome_of(ref, Finding(State.WAITING, MISSING, f"{ref} is missing", SOON))
    try:
        made = await obj.create(configuration)
    except NotFound:
        target.seen.forget_namespace(target.name, ref.namespace)
        raise
    recorded = target.known.get(ref.key)
    was_here = recorded is not None and recorded.uid and recorded.mark is Mark.NONE
    drift = [_DELETED] if target.is_same and was_here else []
    return applied(target, ref, made, Change.CREATED, drift)


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


async def _namespace_missing(target: Target, name: str) -> Finding | None:
    """Create a missing namespace if the policy allows it, else say that it is missing (D10)."""
    if await _has_namespace(target, name):
        return None
    if not target.policy.create_namespaces:
        message = f"namespace {name!r} does not exist (spec.policy.createNamespaces is off)"
        return Finding(State.WAITING, "NamespaceMissing", message, LATER)
    if not target.may_create:
        return None  # created together with the object
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with suppress(AlreadyExists):
        await target.client.create(
            _NAMESPACES, set_owner(namespace, target.owner), field_manager=target.manager
        )
    return None
