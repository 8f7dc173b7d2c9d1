"""One round on one cluster: apply in order, then prune in reverse order (rules D1, D12).

Nothing that happens here reaches another cluster's round. A failing object does not stop its
siblings; a cluster that does not answer is given up at once, and everything on record there stays
on record.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.errors import ConfigError, KubeError
from fleetbus_distributor.plan.intent import Mark, Owned
from fleetbus_distributor.render.template import Object, ObjectRef, reference
from fleetbus_distributor.targets import order
from fleetbus_distributor.targets.apply import MISSING, OUTDATED, apply_object
from fleetbus_distributor.targets.outcome import (
    Change,
    ClusterOutcome,
    LeftBehind,
    ObjectOutcome,
    State,
)
from fleetbus_distributor.targets.remove import Fate, Removal, remove_object
from fleetbus_distributor.targets.target import LATER, ClusterUnreachable, Target, finding

log = structlog.get_logger()

OBJECT_TIMEOUT: Final = timedelta(seconds=10)
"""For one object's few requests; a server that accepts and never answers is given up then."""
DISCOVERY_TIMEOUT: Final = timedelta(seconds=30)
"""For the first look at what a server serves, which is a request per group version."""
ALIASED: Final = "Aliased"
"""The reason of a cluster where nothing is deleted because it is in the fleet twice."""
_IN_FLIGHT: Final = 10


async def converge(
    target: Target, objects: Sequence[Object], prune: Sequence[Owned], revision: str
) -> ClusterOutcome:
    """Apply and prune on one cluster.

    Args:
        target: the cluster.
        objects: everything that shall be there.
        prune: what shall go; it goes only if all of `objects` could be applied.
        revision: names `objects`; "" if there are none.
    """
    result = ClusterOutcome(target.name, inventory=dict(target.known))
    try:
        await _identify(target)
        await _learn_types(target)
        await _apply_all(target, objects, result)
        if result.state in (State.APPLIED, State.DRIFTED):
            result.revision = revision
            await _remove_all(target, prune, result)
        elif prune:
            log.info("prune_waits", cluster=target.name, reason=result.reason)
    except* ClusterUnreachable as group:
        first = next(_leaves(group))
        result.note(State.UNREACHABLE, first.reason, first.message, LATER)
    except* ConfigError:
        log.warning("cluster_credentials_unusable", cluster=target.name)
        result.note(State.UNREACHABLE, "BadCredentials", "its credentials cannot be used", LATER)
    return result


def _leaves(group: BaseExceptionGroup[ClusterUnreachable]) -> Iterator[ClusterUnreachable]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


async def _identify(target: Target) -> None:
    """Learn which cluster the marks are to name, and that it is the accepted one (D4, W13)."""
    try:
        uid = await target.client.accepted_uid()
    except KubeError as error:
        finding(error, {}, "which cluster answers")  # raises, if it is none that lets us in
        raise ClusterUnreachable("Unreachable", error.message) from error
    target.owner = target.owner.on(target.name, uid)


async def _learn_types(target: Target) -> None:
    """On a slow cluster this takes longer than any object may."""
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT.total_seconds()):
            await target.client.discovery.resources()
    except TimeoutError as error:
        waited = int(DISCOVERY_TIMEOUT.total_seconds())
        message = f"no answer about what the cluster serves within {waited} s"
        raise ClusterUnreachable("Timeout", message) from error
    except KubeError as error:
        finding(
            error, {}, "discovery"
        )  # a cluster that does not let us in; the rest the objects tell


async def _apply_all(target: Target, objects: Sequence[Object], result: ClusterOutcome) -> None:
    staged = sorted(objects, key=lambda obj: order.stage(obj["kind"]))
    for _, stage in itertools.groupby(staged, key=lambda obj: order.stage(obj["kind"])):
        for batch in _batches(list(stage)):
            async with asyncio.TaskGroup() as group:
                for obj in batch:
                    group.create_task(_apply_one(target, obj, result))


def _batches(items: list[Object]) -> list[list[Object]]:
    return [items[start : start + _IN_FLIGHT] for start in range(0, len(items), _IN_FLIGHT)]


async def _apply_one(target: Target, obj: Object, result: ClusterOutcome) -> None:
    ref = reference(obj)
    try:
        async with asyncio.timeout(OBJECT_TIMEOUT.total_seconds()):
            outcome = await apply_object(target, obj)
    except TimeoutError as error:
        raise _silent(ref) from error
    _record(target, outcome, result)


def _silent(ref: ObjectRef) -> ClusterUnreachable:
    waited = int(OBJECT_TIMEOUT.total_seconds())
    return ClusterUnreachable("Timeout", f"no answer about {ref} within {waited} s")


def _record(target: Target, outcome: ObjectOutcome, result: ClusterOutcome) -> None:
    known = target.known.get(outcome.ref.key)
    uid = outcome.uid or (known.uid if known else "")
    mark = _mark_after(outcome, known.mark if known else Mark.NONE)
    result.inventory[outcome.ref.key] = Owned(outcome.ref, uid, mark)
    if outcome.change is not Change.NONE:
        result.changes.append((outcome.change, outcome.ref))
        log.info(
            "object_written", cluster=target.name, object=str(outcome.ref), what=outcome.change.name
        )
    result.lacks_objects |= outcome.reason == MISSING
    result.note(outcome.state, outcome.reason or "Applied", outcome.message, outcome.retry)


def _mark_after(outcome: ObjectOutcome, mark: Mark) -> Mark:
    """A judgement ends when it was carried out, or when there was nothing to carry out."""
    if outcome.reason == OUTDATED:
        return Mark.OUTDATED
    is_done = outcome.state in (State.APPLIED, State.DRIFTED) or outcome.change is not Change.NONE
    return Mark.NONE if is_done else mark


async def _remove_all(target: Target, prune: Sequence[Owned], result: ClusterOutcome) -> None:
    if prune and target.aliases:
        names = ", ".join(target.aliases)
        message = (
            f"the same cluster is in the fleet as {names}, too: nothing is deleted there until one"
            " of the names leaves (fleetbus unjoin NAME)"
        )
        result.note(State.HELD, ALIASED, message, LATER)
        return
    going = {owned.ref.key for owned in prune}
    kept = {one.uid for key, one in result.inventory.items() if key not in going} - {""}
    for owned in order.for_delete(prune):
        try:
            async with asyncio.timeout(OBJECT_TIMEOUT.total_seconds()):
                removal = await remove_object(target, owned, kept)
        except TimeoutError as error:
            raise _silent(owned.ref) from error
        _record_removal(target, owned, removal, result)


def _record_removal(target: Target, owned: Owned, removal: Removal, result: ClusterOutcome) -> None:
    if removal.is_deleted:
        result.changes.append((Change.DELETED, owned.ref))
        log.info("object_deleted", cluster=target.name, object=str(owned.ref))
    if removal.found:
        result.inventory[owned.ref.key] = removal.found
    if removal.fate is Fate.KEPT:
        result.note(removal.state, removal.reason, removal.message, removal.retry)
        return
    result.inventory.pop(owned.ref.key, None)
    if removal.fate is Fate.RELEASED:
        result.left_behind.append(LeftBehind(target.name, owned.ref, removal.reason))
