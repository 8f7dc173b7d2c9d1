"""Converges one cluster: applies in stages, then prunes in reverse order (rules D1, D12).

Nothing that happens here affects another cluster's round. A failing object does not stop its
siblings; a cluster that does not answer is given up at once, and everything on record there stays
on record.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.errors import ConfigError, KubeError
from fleetbus.owned_objects.refusal import Refusal
from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets.apply import apply_object
from fleetbus_distributor.targets.drift_report import describe_corrections
from fleetbus_distributor.targets.instances import in_order_of_service, split_instances
from fleetbus_distributor.targets.outcome import (
    Change,
    ClusterOutcome,
    LeftBehind,
    ObjectOutcome,
    State,
)
from fleetbus_distributor.targets.remove import Fate, Removal, remove_object
from fleetbus_distributor.targets.target import (
    LATER,
    ClusterUnreachable,
    Target,
    to_finding,
)
from fleetbus_distributor.targets.update import MISSING, OUTDATED

log = structlog.get_logger()

OBJECT_TIMEOUT: Final = timedelta(seconds=10)
"""For one object's few requests; after it, a server that never answers is given up."""
DISCOVERY_TIMEOUT: Final = timedelta(seconds=30)
"""For the first discovery of a server, which is a request per group version of the objects."""
ALIASED: Final = "Aliased"
"""The reason of a cluster where nothing is deleted because it has two names in the fleet."""
_MAX_IN_FLIGHT: Final = 10
_REFUSED: Final = (State.CONFLICT, State.FAILED)
"""Perhaps of a definition: then its instances are not worth waiting for."""
_STAGES: Final = (
    frozenset({"CustomResourceDefinition"}),
    frozenset({"Namespace"}),
    frozenset(
        {
            "ServiceAccount",
            "Role",
            "ClusterRole",
            "RoleBinding",
            "ClusterRoleBinding",
            "ResourceQuota",
            "LimitRange",
            "PodSecurityPolicy",
            "NetworkPolicy",
            "PriorityClass",
            "StorageClass",
        }
    ),
    frozenset({"ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Service"}),
)
"""A workload that arrives before its ConfigMap starts with an error (rule D12)."""
_WORKLOADS: Final = frozenset(
    {"Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"}
)


async def converge(
    target: Target, objects: Sequence[Object], prune: Sequence[Owned], revision: str
) -> ClusterOutcome:
    """Apply and prune on one cluster.

    Args:
        target: the cluster.
        objects: everything that is to be there.
        prune: what is to be removed, if all of `objects` could be applied.
        revision: hash of `objects`; "" if there are none.
    """
    result = ClusterOutcome(target.name, inventory=dict(target.known))
    try:
        turn = await target.limits.turns.take(target.client.liveness)
        try:
            await _identify(target)
            await _discover_types(target, objects)
        finally:
            turn.end()
        result.health = ClusterHealth()
        await _apply_all(target, objects, result)
        if result.state in (State.APPLIED, State.DRIFTED):
            result.revision = revision
            await _remove_all(target, prune, result)
        elif prune:
            log.info("prune_postponed", cluster=target.name, reason=result.reason)
    except* ClusterUnreachable as group:
        first = next(_leaves(group))
        result.add(State.UNREACHABLE, first.reason, first.message, LATER)
        result.health = None
    except* ConfigError:
        log.warning("cluster_credentials_unusable", cluster=target.name)
        result.add(State.UNREACHABLE, "BadCredentials", "its credentials cannot be used", LATER)
    return result


def _leaves(group: BaseExceptionGroup[ClusterUnreachable]) -> Iterator[ClusterUnreachable]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _identify(target: Target) -> None:
    """Read the UID that the marks name, and check that it is accepted (rules D4, W13)."""
    try:
        uid = await target.client.accepted_uid()
    except KubeError as error:
        # Raises if the cluster refuses us as a whole.
        finding = to_finding(error, {}, "which cluster answers")
        if finding.reason == Refusal.THROTTLED:
            raise ClusterUnreachable(Refusal.THROTTLED, error.message) from error
        raise ClusterUnreachable("Unreachable", error.message) from error
    target.owner = target.owner.on(target.name, uid)


async def _discover_types(target: Target, objects: Sequence[Object]) -> None:
    """Discover first: on a slow cluster this takes longer than any object may."""
    versions = {reference(obj).api_version for obj in objects}
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT.total_seconds()):
            for version in sorted(versions):
                await target.client.discovery.version(version)
    except TimeoutError as error:
        waited = int(DISCOVERY_TIMEOUT.total_seconds())
        message = f"discovery did not finish within {waited} s"
        raise ClusterUnreachable("Timeout", message) from error
    except KubeError as error:
        # Raises if the cluster refuses us as a whole; else each object shows what it lacks.
        to_finding(error, {}, "discovery")


async def _apply_all(target: Target, objects: Sequence[Object], result: ClusterOutcome) -> None:
    """Apply stage by stage; instances of types that the set itself defines come last."""
    others, instances = split_instances(objects)
    for batch in _batches(others):
        await _apply_batch(target, batch, result)
    if not instances:
        return
    waits = target.may_create and not target.only_compare and result.state not in _REFUSED
    try:
        async with aclosing(in_order_of_service(target, instances, waits=waits)) as served:
            async for members in served:
                for batch in _batches(members):
                    await _apply_batch(target, batch, result)
    except KubeError as error:
        # Raises if the cluster refuses us as a whole.
        finding = to_finding(error, {}, "discovery")
        result.add(finding.state, finding.reason, finding.message, finding.retry)


async def _apply_batch(target: Target, batch: Sequence[Object], result: ClusterOutcome) -> None:
    async with asyncio.TaskGroup() as group:
        for obj in batch:
            turn = await target.limits.turns.take(target.client.liveness)
            task = group.create_task(_apply_one(target, obj, result))
            # Also if it is cancelled before it begins.
            task.add_done_callback(lambda _, turn=turn: turn.end())


def _batches(objects: Sequence[Object]) -> Iterator[list[Object]]:
    """Parts that are applied side by side: of one stage, and of bounded size."""
    staged = sorted(objects, key=lambda obj: stage_of(obj["kind"]))
    for _, group in itertools.groupby(staged, key=lambda obj: stage_of(obj["kind"])):
        members = list(group)
        for start in range(0, len(members), _MAX_IN_FLIGHT):
            yield members[start : start + _MAX_IN_FLIGHT]


async def _apply_one(target: Target, obj: Object, result: ClusterOutcome) -> None:
    ref = reference(obj)
    try:
        async with target.limits.in_flight, asyncio.timeout(OBJECT_TIMEOUT.total_seconds()):
            outcome = await apply_object(target, obj)
    except TimeoutError as error:
        raise _timed_out(ref) from error
    _record(target, outcome, result)


def _timed_out(ref: ObjectRef) -> ClusterUnreachable:
    waited = int(OBJECT_TIMEOUT.total_seconds())
    return ClusterUnreachable("Timeout", f"no answer about {ref} within {waited} s")


def _record(target: Target, outcome: ObjectOutcome, result: ClusterOutcome) -> None:
    recorded = target.known.get(outcome.ref.key)
    uid = outcome.uid or (recorded.uid if recorded else "")
    mark = _mark_after(outcome, recorded.mark if recorded else Mark.NONE)
    ran = outcome.ran if outcome.ran is not None else (recorded.ran if recorded else "")
    result.inventory[outcome.ref.key] = Owned(outcome.ref, uid, mark, ran)
    if outcome.change is not Change.NONE:
        result.changes.append((outcome.change, outcome.ref))
        log.info(
            "object_written",
            cluster=target.name,
            object=str(outcome.ref),
            change=outcome.change.name,
        )
    result.lacks_objects |= outcome.reason == MISSING
    if result.health is not None:
        result.health = result.health.with_object(
            str(outcome.ref), _health_of(outcome), outcome.values
        )
    if outcome.state is not State.APPLIED:
        result.findings.append(outcome)
    elif outcome.drift and outcome.change is not Change.NONE:
        result.corrected.append(outcome)
        result.last_correction = describe_corrections(
            [(str(correction.ref), correction.drift) for correction in result.corrected]
        )
        log.info("drift_corrected", cluster=target.name, drift=result.last_correction)
    result.add(outcome.state, outcome.reason or "Applied", outcome.message, outcome.retry)


def _health_of(outcome: ObjectOutcome) -> Health:
    """The health of an object; of one that could not be applied, why."""
    if outcome.state in (State.APPLIED, State.DRIFTED):
        return outcome.health
    return Health(HealthState.UNKNOWN, outcome.reason, outcome.message)


def _mark_after(outcome: ObjectOutcome, mark: Mark) -> Mark:
    """A mark ends when it was acted on, or when there was nothing to do."""
    if outcome.reason == OUTDATED:
        return Mark.OUTDATED
    is_done = outcome.state in (State.APPLIED, State.DRIFTED) or outcome.change is not Change.NONE
    return Mark.NONE if is_done else mark


async def _remove_all(target: Target, prune: Sequence[Owned], result: ClusterOutcome) -> None:
    if prune and target.aliases:
        names = ", ".join(target.aliases)
        message = (
            f"the same cluster is also in the fleet as {names}: nothing is deleted there until one"
            " of the names leaves (fleetbus unjoin NAME)"
        )
        result.add(State.HELD, ALIASED, message, LATER)
        return
    going = {owned.ref.key for owned in prune}
    kept_uids = {
        owned_object.uid for key, owned_object in result.inventory.items() if key not in going
    } - {""}
    for owned in deletion_order(prune):
        try:
            async with target.limits.in_flight, asyncio.timeout(OBJECT_TIMEOUT.total_seconds()):
                removal = await remove_object(target, owned, kept_uids)
        except TimeoutError as error:
            raise _timed_out(owned.ref) from error
        _record_removal(target, owned, removal, result)


def _record_removal(target: Target, owned: Owned, removal: Removal, result: ClusterOutcome) -> None:
    if removal.is_deleted:
        result.changes.append((Change.DELETED, owned.ref))
        log.info("object_deleted", cluster=target.name, object=str(owned.ref))
    if removal.successor:
        result.inventory[owned.ref.key] = removal.successor
    if removal.fate is Fate.KEPT:
        result.add(removal.state, removal.reason, removal.message, removal.retry)
        finding = ObjectOutcome(owned.ref, removal.state, removal.reason, removal.message)
        result.findings.append(finding)
        return
    result.inventory.pop(owned.ref.key, None)
    if removal.fate is Fate.RELEASED:
        result.left_behind.append(LeftBehind(target.name, owned.ref, removal.reason))


def stage_of(kind: str) -> int:
    """The stage in which a kind is applied; unknown kinds come after workloads.

    Custom resources, webhooks and ingresses refer to workloads more often than the reverse.
    """
    for number, kinds in enumerate(_STAGES):
        if kind in kinds:
            return number
    return len(_STAGES) if kind in _WORKLOADS else len(_STAGES) + 1


def deletion_order(items: Sequence[Owned]) -> list[Owned]:
    """The reverse of the order in which they are applied: a CRD takes its instances along."""
    return sorted(items, key=lambda owned: stage_of(owned.kind))[::-1]
