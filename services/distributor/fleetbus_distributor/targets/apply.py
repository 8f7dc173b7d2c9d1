"""One object onto one cluster: look, decide whose it is, apply what differs (rules D3, D4, D6).

Server-side apply under our field manager, never forced unless the author said Overwrite. The
live object's UID goes along as a precondition, so that what was decided about one object is never
done to another that took its name meanwhile.
"""

from __future__ import annotations

import copy

from fleetbus.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound
from fleetbus.kube.discovery import ApiResource
from fleetbus.ownership import set_owner
from fleetbus_distributor.plan.intent import Mark
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets.claim import (
    Standing,
    claim,
    is_marked_for_other,
    is_protected,
    may_delete,
)
from fleetbus_distributor.targets.drift import is_free_to_adopt, is_hand_made
from fleetbus_distributor.targets.managed_fields import is_applied
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.target import (
    LATER,
    RARELY,
    SOON,
    Finding,
    Target,
    finding,
    place_of,
)

MISSING = "Missing"
"""The reason of an object that is missing, or has to be replaced, where nothing may be created."""
OUTDATED = "RecreateHeld"
"""The reason of an object that has to be replaced, and no edit asks for it."""
_NAMESPACES = "v1/namespaces"
_ONLY_CREATE = "1"
"""No object can have this resourceVersion (etcd's first write gets 2): an apply that carries it
creates, and fails where somebody else created the object since we looked."""


async def apply_object(target: Target, obj: Object) -> ObjectOutcome:
    """Bring one object in line.

    Returns:
        What came of it; refusals are outcomes, not errors.

    Raises:
        ClusterUnreachable: the cluster as a whole cannot be worked on.
    """
    ref = reference(obj)
    try:
        return await _apply(target, obj, ref)
    except KubeError as error:
        return _outcome(ref, finding(error, obj, str(ref)))


async def _apply(target: Target, obj: Object, ref: ObjectRef) -> ObjectOutcome:
    api = await target.client.discover(ref.api_version, ref.kind)
    if api is None:
        message = f"{ref}: the cluster does not serve {ref.kind} of {ref.api_version}"
        return _outcome(ref, Finding(State.WAITING, "NoMatch", message, LATER))
    wanted = _marked(target, obj, api)
    live = await target.client.get(api.resource, *place_of(api, ref))
    if live is None:
        return await _create(target, api, wanted, ref)
    if obstacle := _obstacle(target, live, ref):
        return _outcome(ref, obstacle, uid=_uid_if_ours(target, live, ref))
    if is_applied(wanted, live, target.manager):
        return ObjectOutcome(ref, State.APPLIED, uid=live["metadata"]["uid"])
    if target.only_compare:
        return _drifted(target, ref, f"{ref} was changed on the cluster", live["metadata"]["uid"])
    return await _update(target, api, wanted, live, ref)


def _marked(target: Target, obj: Object, api: ApiResource) -> Object:
    """The owner mark goes on last: a patch may have replaced all annotations (T16)."""
    wanted = set_owner(copy.deepcopy(obj), target.owner)
    if not api.namespaced:
        del wanted["metadata"]["namespace"]
    return wanted


def _obstacle(target: Target, live: Object, ref: ObjectRef) -> Finding | None:
    if live["metadata"].get("deletionTimestamp"):
        message = f"{ref} is being deleted; it is applied again when it is gone"
        return Finding(State.WAITING, "Terminating", message, SOON)
    known = target.known.get(ref.key)
    standing = claim(live, target.owner, known.uid if known else "")
    may_take = target.policy.conflict is not ConflictPolicy.ABORT
    is_free = standing.standing not in (Standing.LOST, Standing.MALFORMED)
    if standing.standing is Standing.OURS or (may_take and is_free):
        return None
    message = f"{ref} exists and {standing.message}"
    return Finding(State.CONFLICT, standing.standing, message, RARELY)


def _uid_if_ours(target: Target, live: Object, ref: ObjectRef) -> str:
    """A UID is confirmed by our own mark only, or kept: a stranger's is never recorded."""
    if may_delete(live, target.owner):
        return str(live["metadata"]["uid"])
    known = target.known.get(ref.key)
    return known.uid if known else ""


async def _create(
    target: Target, api: ApiResource, wanted: Object, ref: ObjectRef
) -> ObjectOutcome:
    if target.only_compare:
        return _drifted(target, ref, f"{ref} was deleted on the cluster", "")
    if api.namespaced and (missing := await _namespace_missing(target, ref)):
        return _outcome(ref, missing)
    if not target.may_create:
        return _outcome(ref, Finding(State.WAITING, MISSING, f"{ref} is missing", SOON))
    body = copy.deepcopy(wanted)
    body["metadata"]["resourceVersion"] = _ONLY_CREATE
    try:
        made = await target.client.apply(api.resource, body, field_manager=target.manager)
    except NotFound:
        # The type went since it was discovered: ask anew next time (rule D9).
        await target.client.discovery.refresh()
        raise
    return ObjectOutcome(ref, State.APPLIED, uid=made["metadata"]["uid"], change=Change.CREATED)


async def _namespace_missing(target: Target, ref: ObjectRef) -> Finding | None:
    """Rule D10: a namespace is made only when the policy says so; looking costs no write."""
    if await target.client.get(_NAMESPACES, "", ref.namespace) is not None:
        return None
    if not target.may_create and target.policy.create_namespaces:
        return None  # made together with the object
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
    body = copy.deepcopy(wanted)
    body["metadata"]["uid"] = live["metadata"]["uid"]
    try:
        made = await _send(target, api, body, live)
    except Invalid:
        if target.policy.recreate and _may_recreate(target, live):
            return await _recreate(target, api, wanted, live, ref)
        raise
    except Conflict as error:
        return _outcome(ref, finding(error, wanted, str(ref)), _uid_if_ours(target, live, ref))
    is_changed = made["metadata"].get("resourceVersion") != live["metadata"].get("resourceVersion")
    change = Change.UPDATED if is_changed else Change.NONE
    return ObjectOutcome(ref, State.APPLIED, uid=made["metadata"]["uid"], change=change)


async def _send(target: Target, api: ApiResource, body: Object, live: Object) -> Object:
    """Apply; take a field back only where the author or the kind of change allows it."""
    is_forced = target.policy.conflict is ConflictPolicy.OVERWRITE
    try:
        return await target.client.apply(
            api.resource, body, field_manager=target.manager, force=is_forced
        )
    except Conflict as error:
        if not _may_take(target, error, live):
            raise
    return await target.client.apply(api.resource, body, field_manager=target.manager, force=True)


def _may_take(target: Target, error: Conflict, live: Object) -> bool:
    adopts = target.policy.conflict is ConflictPolicy.ADOPT
    if adopts and is_free_to_adopt(error, live, target.manager):
        return True
    corrects = target.policy.drift is DriftPolicy.CORRECT
    if not corrects or not is_hand_made(error, live, target.manager):
        return False
    return target.corrections.may_correct(live["metadata"]["uid"])


def _may_recreate(target: Target, live: Object) -> bool:
    is_whole_world = live["kind"] in ("Namespace", "CustomResourceDefinition")
    is_here = not target.aliases and not is_marked_for_other(live, target.owner)
    may_go = may_delete(live, target.owner) and not is_protected(live)
    return is_here and may_go and not is_whole_world


async def _recreate(
    target: Target, api: ApiResource, wanted: Object, live: Object, ref: ObjectRef
) -> ObjectOutcome:
    """Policy recreate: the new object must be acceptable before the old one goes (rule D6).

    Only the round for all clusters does it: the spec of any other may be outdated by now, and the
    live object may be what the newer one has just made. What no edit asks for it only puts on
    record: the next round plans it like every other deletion (rule D8).
    """
    known = target.known.get(ref.key)
    uid = str(live["metadata"]["uid"])
    if known and known.mark is Mark.OUTDATED:
        return _outdated(ref, uid)
    if not target.may_create:
        message = f"{ref} has to be created anew with a changed immutable field"
        return _outcome(ref, Finding(State.WAITING, MISSING, message, SOON))
    trial = copy.deepcopy(wanted)
    trial["metadata"]["generateName"] = f"{trial['metadata'].pop('name')[:50]}-"
    await target.client.create(api.resource, trial, field_manager=target.manager, dry_run=True)
    if known is None or known.mark is not Mark.REPLACEABLE or known.uid not in ("", uid):
        return _outdated(ref, uid)
    await target.client.delete(api.resource, *place_of(api, ref), uid=uid)
    message = f"{ref} is deleted, to be created anew with a changed immutable field"
    return ObjectOutcome(
        ref, State.WAITING, "Recreating", message, retry=SOON, change=Change.DELETED
    )


def _outdated(ref: ObjectRef, uid: str) -> ObjectOutcome:
    message = (
        f"{ref} has a changed immutable field, and no edit asks for it: it is deleted and created "
        "anew when the limits of such deletions allow it, or a person"
    )
    return ObjectOutcome(ref, State.HELD, OUTDATED, message, uid)


def _drifted(target: Target, ref: ObjectRef, message: str, uid: str) -> ObjectOutcome:
    if target.policy.drift is DriftPolicy.IGNORE:
        return ObjectOutcome(ref, State.APPLIED, uid=uid)
    return ObjectOutcome(ref, State.DRIFTED, "Drifted", message, uid=uid)


def _outcome(ref: ObjectRef, found: Finding, uid: str = "") -> ObjectOutcome:
    return ObjectOutcome(ref, found.state, found.reason, found.message, uid, found.retry)
