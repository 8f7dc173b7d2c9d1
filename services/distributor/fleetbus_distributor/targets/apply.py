"""Applies one object to one cluster: read it, check its owner, apply what differs (D3, D4, D6).

Server-side apply with our field manager, forced only where the policies allow it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from fleetbus.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound
from fleetbus.kube.applied import is_unchanged
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.owned_objects.claim import Ownership, claim, is_paused
from fleetbus.owned_objects.decision import Decision, decide_apply
from fleetbus.owned_objects.refusal import Refusal, is_inconvertible
from fleetbus.ownership import PAUSE_ANNOTATION, set_owner
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef, reference, similar
from fleetbus_distributor.targets.drift_report import Drift, find_drift
from fleetbus_distributor.targets.field_versions import is_outdated
from fleetbus_distributor.targets.illegal_names import illegal_name
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.placed_object import PlacedObject, outcome_of
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
from fleetbus_distributor.targets.wrong_value import find_wrong_value

_NAMESPACES: Final = "v1/namespaces"
_UNPROCESSABLE: Final = 422
_CONFIRMED_FOR: Final = timedelta(milliseconds=250)
"""Maximum age of the cluster's identity check before something is created there: nothing else shows
that the object is absent from the right one."""
_UNCHANGEABLE: Final = re.compile(
    r"\b(is|are) immutable\b|\bimmutable after\b|may not change|updates to [a-z]+ spec for fields"
)
"""API servers say it in these words of a field that cannot be changed; Secrets and ConfigMaps have
a field of the name `immutable`."""
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
        is_unnamed = is_inconvertible(error)
    if is_unnamed and (field := await find_wrong_value(target, template, ref)):
        finding = replace(
            finding, message=f"{ref}: {field}: {finding.message.removeprefix(f'{ref}: ')}"
        )
    if not target.policy.recreate and finding.reason == Refusal.INVALID:
        finding = _with_remedy(finding)
    if finding.reason == Refusal.TYPE_MISSING:
        # The type was removed since it was discovered (rule D9).
        with suppress(KubeError):
            await target.client.discovery.version(ref.api_version, anew=True)
        finding = replace(finding, retry=_discover_after(target, ref))
    return outcome_of(ref, finding)


def _with_remedy(finding: Finding) -> Finding:
    """Name the policy that replaces an object whose field cannot be changed."""
    if not _UNCHANGEABLE.search(finding.message):
        return finding
    return replace(finding, message=f"{finding.message} (spec.policy.recreate is off)")


def _discover_after(target: Target, ref: ObjectRef) -> timedelta:
    return target.memory.types.note_missing(target.name, ref.api_version, ref.kind, target.owner)


async def _apply(target: Target, template: Object, ref: ObjectRef) -> ObjectOutcome:
    api = await target.client.discover(ref.api_version, ref.kind)
    if api is None and target.memory.types.take_news(target.name, ref.api_version, ref.kind):
        # The cluster may have been asked a moment before its watcher reported the type.
        await target.client.discovery.version(ref.api_version, anew=True)
        api = await target.client.discover(ref.api_version, ref.kind)
    if api is None:
        missing = f"the cluster does not serve {ref.kind} of {ref.api_version}"
        message = f"{ref}: {missing}{await _kind_meant(target, ref)}"
        retry = _discover_after(target, ref)
        return outcome_of(ref, Finding(State.WAITING, Refusal.TYPE_MISSING, message, retry))
    target.memory.types.note_served(target.name, ref.api_version, ref.kind)
    if problem := illegal_name(template, api):
        raise Invalid(_UNPROCESSABLE, "Invalid", problem)
    obj = PlacedObject(target, target.owned_object(api, ref), ref, _marked(target, template, api))
    outcome, live = await _create_unread(obj), None
    if outcome is None:
        live = await obj.place.read()
        if live is not None:
            outcome = await _apply_to(obj, live)
        elif complete := outcome_of_gone(target, template, ref):
            return complete
        else:
            outcome = await _create(obj)
    if live is None and outcome.change is not Change.CREATED:
        return outcome
    return replace(outcome, ran=ran_after(target, template, live, outcome))


async def _kind_meant(target: Target, ref: ObjectRef) -> str:
    """The kind that the cluster serves and the author may have meant, for a message; else empty."""
    served = await target.client.discovery.version(ref.api_version)
    return similar(ref.kind, sorted({api.kind for api in served}))


def _marked(target: Target, template: Object, api: ApiResource) -> Object:
    """Set the owner mark last: a patch may have replaced all annotations (rule T16)."""
    marked = set_owner({**template, "metadata": {**template["metadata"]}}, target.owner)
    marked["metadata"]["annotations"].pop(PAUSE_ANNOTATION, None)  # for people on the cluster
    if not api.namespaced:
        del marked["metadata"]["namespace"]
    return marked


# --- an object that exists ----------------------------------------------------------------------


async def _apply_to(obj: PlacedObject, live: Object) -> ObjectOutcome:
    target = obj.target
    if obstacle := _obstacle(obj, live):
        return obj.unwritten(obstacle, live)
    if obj.is_up_to_date(live):
        return obj.applied(live)
    if target.only_compare and target.policy.drift is DriftPolicy.IGNORE:
        return obj.applied(live)
    if target.only_compare or is_paused(live):
        return await _compare(obj, live)
    return await update(obj, live)


def _obstacle(obj: PlacedObject, live: Object) -> Finding | None:
    target = obj.target
    claimed = claim(live, target.owner, recorded_uid=target.recorded_uid(obj.ref))
    may_take = target.policy.conflict is not ConflictPolicy.ABORT
    takes = frozenset(Ownership) - _FOUGHT_OVER if may_take else _OURS
    decision = decide_apply(live, claimed, takes=takes)
    if decision is Decision.APPLY:
        return None
    if decision is Decision.WAIT:
        message = f"{obj.ref} is being deleted; it is applied again afterwards"
        return Finding(State.WAITING, "Terminating", message, SOON)
    message = f"{obj.ref} exists and {claimed.message}"
    return Finding(State.CONFLICT, claimed.ownership, message, RARELY)


async def _compare(obj: PlacedObject, live: Object) -> ObjectOutcome:
    """Let the server tell, without a write, whether an object is as it should be."""
    configuration = applied = obj.configuration
    try:
        applied = await obj.place.try_apply(configuration, live, force=True)
    except KubeError as error:
        # Only a write could move the managedFields that are in the way (rule D9).
        if not is_outdated(error, live, configuration["apiVersion"]):
            raise
    drift = find_drift(configuration, applied, live, obj.target.manager)
    if is_unchanged(live, applied):
        obj.target.note_answer(configuration, live)
        return obj.applied(live)
    if (
        not drift
        and applied["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]
    ):
        return obj.applied(live)  # others have changed it meanwhile: an event follows
    if is_paused(live):
        return replace(outcome_of(obj.ref, paused(obj.ref)), uid=str(live["metadata"]["uid"]))
    return obj.drifted(drift, live)


# --- an object that is missing ------------------------------------------------------------------


async def _create_unread(obj: PlacedObject) -> ObjectOutcome | None:
    """Create an object that was never confirmed, without a read before; None if that fails.

    Whatever exists under its name is left alone: the server refuses to do anything but create.
    """
    target, namespace = obj.target, obj.place.namespace
    if not target.may_create or target.only_compare or target.recorded_uid(obj.ref):
        return None
    if namespace and not await _has_namespace(target, namespace):
        return None
    await target.client.confirm(within=_CONFIRMED_FOR)
    try:
        applied = await obj.place.create(obj.configuration)
    except Conflict:
        return None  # it exists: read it
    except NotFound:
        target.memory.forget_namespace(target.name, obj.ref.namespace)
        return None
    return obj.applied(applied, Change.CREATED)


async def _create(obj: PlacedObject) -> ObjectOutcome:
    target, namespace = obj.target, obj.place.namespace
    if target.only_compare:
        return obj.drifted([_DELETED], None)
    if namespace and (missing := await _namespace_missing(target, namespace)):
        return obj.unwritten(missing)
    if not target.may_create:
        return obj.unwritten(Finding(State.WAITING, MISSING, f"{obj.ref} is missing", SOON))
    try:
        applied = await obj.place.create(obj.configuration)
    except NotFound:
        target.memory.forget_namespace(target.name, obj.ref.namespace)
        raise
    was_here = obj.recorded is not None and obj.recorded.uid and obj.recorded.mark is Mark.NONE
    return obj.applied(applied, Change.CREATED, [_DELETED] if target.is_same and was_here else [])


async def _has_namespace(target: Target, name: str) -> bool:
    """Whether a namespace exists; where it once did, the server refuses what comes too late."""
    if target.memory.has_namespace(target.name, name):
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
    target.memory.note_namespace(target.name, name)
    return True


async def _namespace_missing(target: Target, name: str) -> Finding | None:
    """Create a missing namespace if the policy allows it, else say that it is missing (D10).

    It gets no owner mark: whoever writes into it next needs it as much, and it outlives them all.
    """
    if await _has_namespace(target, name):
        return None
    if not target.policy.create_namespaces:
        message = f"namespace {name!r} does not exist (spec.policy.createNamespaces is off)"
        return Finding(State.WAITING, Refusal.NAMESPACE_MISSING, message, LATER)
    if not target.may_create:
        return None  # created together with the object
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with suppress(AlreadyExists):
        await target.client.create(_NAMESPACES, namespace, field_manager=target.manager)
    return None
