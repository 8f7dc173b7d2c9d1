"""Delete: preconditions, propagation, grace, finalizers.

The garbage collector, the namespace controller and the kubelet are simulated `controllers`; custom
resources of a deleted definition are removed by `definitions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.definitions import CLEANUP_FINALIZER
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.builtin import CRDS, NAMESPACES, PODS
from fleetbus_emulator.apiserver.write.target import Target

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.storage.store import Stored

JsonObject = dict[str, Any]
PROPAGATION_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
POLICIES = ("Foreground", "Background", "Orphan")
OPTIONS = "DeleteOptions"
LONGEST_GRACE = 10**9  # seconds, thirty years: dates end in the year 9999


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The parameters of a delete, from its query and its body."""

    policy: str | None = None
    grace: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def parse_options(
    query: dict[str, str], body: JsonObject, grace: int | None = None, *, dry_run: bool
) -> DeleteOptions:
    """Read the options; the body, which has the form of DeleteOptions, wins over the query.

    Args:
        query: propagationPolicy, orphanDependents.
        body: The document.
        grace: The seconds that the query gives.
        dry_run: Nothing shall be stored, whatever the body says.

    Raises:
        ApiError: 422, they cannot be combined, or one has a value that it cannot have.
    """
    policy = _policy(query, body)
    values: list[str] = listing(body, "dryRun")
    if any(value != "All" for value in values):
        text = orjson.dumps(values).decode()
        why = f'Unsupported value: {text}: supported values: "All"'
        raise errors.invalid_option(OPTIONS, Cause("dryRun", why, "FieldValueNotSupported"))
    preconditions = mapping(body, "preconditions")
    return DeleteOptions(
        policy=policy,
        grace=body.get("gracePeriodSeconds", grace),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=dry_run or bool(values),
    )


def _policy(query: dict[str, str], body: JsonObject) -> str | None:
    policy = body.get("propagationPolicy") or query.get("propagationPolicy")
    orphan = body.get("orphanDependents")
    if orphan is None and "orphanDependents" in query:
        orphan = query["orphanDependents"].lower() not in ("0", "false")
    if policy and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        cause = Cause("propagationPolicy", f'Invalid value: "{policy}": {why}')
        raise errors.invalid_option(OPTIONS, cause)
    if policy and policy not in POLICIES:
        supported = ", ".join(f'"{name}"' for name in (*POLICIES, "nil"))
        why = f'Unsupported value: "{policy}": supported values: {supported}'
        cause = Cause("propagationPolicy", why, "FieldValueNotSupported")
        raise errors.invalid_option(OPTIONS, cause)
    if orphan is not None:
        return "Orphan" if orphan else "Background"
    return policy


@dataclass(frozen=True, slots=True)
class Deleted:
    """The outcome of a delete: the last object, and whether it was removed."""

    stored: Stored
    gone: bool


def delete(state: State, target: Target, options: DeleteOptions) -> Deleted:
    """Delete an object, or begin to."""
    old = state.store(target.rtype).get(target.key)
    if old is None:
        raise errors.not_found(target.rtype, target.name)
    _check_preconditions(target, old, options)
    finalizers = _finalizers(target, old, options)
    grace = _grace(target, old, options)
    meta = old.obj["metadata"]
    is_held = bool(finalizers) or grace > 0
    if target.rtype is NAMESPACES:
        is_held = is_held or bool(mapping(old.obj, "spec").get("finalizers"))
        grace = None
    if options.dry_run:
        return Deleted(old, gone=not is_held)
    if is_held:
        return Deleted(_mark(state, target, old, finalizers, grace), gone=False)
    is_pods_first = target.rtype is PODS and "deletionTimestamp" not in meta
    if is_pods_first or meta.get("deletionGracePeriodSeconds"):
        # Watchers see a pod's grace period end before the pod is removed: at once for one that has
        # no node or has ended, with the kubelet's second delete for others.
        _mark(state, target, old, finalizers, 0)
        old = state.store(target.rtype).get(target.key) or old
    return Deleted(state.remove(target.rtype, old), gone=True)


def _check_preconditions(target: Target, old: Stored, options: DeleteOptions) -> None:
    meta = old.obj["metadata"]
    if options.uid is not None and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({meta['uid']}). The object might have been deleted and then recreated"
        )
        raise errors.conflict(target.rtype, target.name, why, by_kind=True)
    version, present = options.resource_version, meta["resourceVersion"]
    if version is not None and version != present:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the "
            f"ResourceVersion in record ({present}). The object might have been modified"
        )
        raise errors.conflict(target.rtype, target.name, why, by_kind=True)


def _finalizers(target: Target, old: Stored, options: DeleteOptions) -> list[str]:
    present: list[str] = list(listing(old.obj["metadata"], "finalizers"))
    policy = options.policy
    if target.rtype is CRDS and CLEANUP_FINALIZER not in present:
        present.append(CLEANUP_FINALIZER)
    if policy is None:
        is_job = (target.rtype.group, target.rtype.plural) == ("batch", "jobs")
        policy = "Orphan" if is_job and not _decided(present) else None  # the server's default
    if policy is None:
        return present
    remaining = [name for name in present if name not in PROPAGATION_FINALIZERS.values()]
    finalizer = PROPAGATION_FINALIZERS.get(policy)
    return [*remaining, finalizer] if finalizer else remaining


def _decided(finalizers: list[str]) -> bool:
    return any(name in finalizers for name in PROPAGATION_FINALIZERS.values())


def _grace(target: Target, old: Stored, options: DeleteOptions) -> int:
    """Seconds until the object may go; only a pod on a node has any."""
    if target.rtype is not PODS:
        return 0
    spec, status = mapping(old.obj, "spec"), mapping(old.obj, "status")
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    present: int | None = old.obj["metadata"].get("deletionGracePeriodSeconds")
    seconds = options.grace
    if seconds is None:
        seconds = present if present is not None else spec.get("terminationGracePeriodSeconds", 30)
    seconds = 1 if seconds < 0 else seconds  # a negative period counts as one second
    return seconds if present is None else min(present, seconds)


def _mark(
    state: State, target: Target, old: Stored, finalizers: list[str], grace: int | None
) -> Stored:
    new = old.copy()
    meta = new["metadata"]
    if finalizers:
        meta["finalizers"] = finalizers
    if "deletionTimestamp" not in meta:
        meta["deletionTimestamp"] = _deadline(state, grace or 0)
        if "generation" in meta:
            meta["generation"] += 1
    if grace is not None:
        if grace != meta.get("deletionGracePeriodSeconds"):
            meta["deletionTimestamp"] = _deadline(state, grace)
        meta["deletionGracePeriodSeconds"] = grace
    if target.rtype is NAMESPACES:
        new["status"] = {**(mapping(new, "status")), "phase": "Terminating"}
    if new == old.obj:
        return old
    return state.put(target.rtype, target.key, new, old)


def _deadline(state: State, grace: int) -> str:
    moment = state.clock() + timedelta(seconds=min(grace, LONGEST_GRACE))
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(target: Target, deleted: Deleted) -> JsonObject:
    """The Status document that answers a delete."""
    details = {
        "name": target.name,
        "group": target.rtype.group,
        "kind": target.rtype.plural,
        "uid": deleted.stored.obj["metadata"]["uid"],
    }
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
