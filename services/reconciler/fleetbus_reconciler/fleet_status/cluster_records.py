"""What heartbeats and providers make of the records of a cluster (rules P14, P17); pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube.connection.config import server_of
from fleetbus.process.clock import rfc3339, utc_now
from fleetbus.snapshot.records import (
    HEARD_WITHIN,
    ClusterRecord,
    ResourceRecord,
    ResourceState,
    ScopeRecord,
)
from fleetbus.watchers.spec import SUSPENDED, UNUSABLE
from fleetbus_proto.events import Heartbeat, ResourceStatus

_CLOCK_SLACK: Final = timedelta(seconds=5)


def cluster_record(info: ClusterInfo, held: ClusterRecord | None) -> ClusterRecord:
    """The record of a member as its provider describes it; what was heard of it stays."""
    record = held or ClusterRecord(name=info.name, joined_at=utc_now())
    host = server_of(info.config) if info.config is not None else ""
    changed = msgspec.structs.replace(
        record, labels=dict(info.labels), hub=info.hub, provider=info.provider, host=host
    )
    if info.suspended:
        return suspended_cluster(changed)
    is_over = changed.reason == SUSPENDED or (changed.reason == UNUSABLE and not info.problem)
    if is_over:  # and no watcher has spoken since
        changed = msgspec.structs.replace(changed, reason="", message="")
    # A watcher inside the cluster may do well without the access data that we lack.
    is_heard = _parse(record.last_heard) > datetime.now(UTC) - HEARD_WITHIN
    if info.problem and not is_heard:
        return msgspec.structs.replace(
            changed, connected=False, reason=UNUSABLE, message=info.problem
        )
    return changed


def suspended(resources: Mapping[str, ResourceRecord]) -> dict[str, ResourceRecord]:
    """The same resources of a cluster that is suspended: what is known stays, as stale."""

    def mark(scope: ScopeRecord) -> ScopeRecord:
        state = ResourceState.STALE if scope.epoch else ResourceState.UNKNOWN
        return msgspec.structs.replace(scope, state=state, reason=SUSPENDED)

    return {
        key: record.with_scopes({name: mark(scope) for name, scope in record.scopes.items()})
        for key, record in resources.items()
        if record.scopes
    }


def stale(
    resources: Mapping[str, ResourceRecord], limit: datetime, reason: str
) -> dict[str, ResourceRecord]:
    """Those of the resources of which nobody has spoken since this time, as stale."""

    def mark(scope: ScopeRecord) -> ScopeRecord:
        if not is_silent(scope, limit):
            return scope
        return msgspec.structs.replace(scope, state=ResourceState.STALE, reason=reason)

    return {
        key: record.with_scopes({name: mark(scope) for name, scope in record.scopes.items()})
        for key, record in resources.items()
        if has_silent(record, limit)
    }


def suspended_cluster(held: ClusterRecord) -> ClusterRecord:
    """The same cluster, of which nothing is to be watched."""
    return msgspec.structs.replace(
        held, connected=False, reason=SUSPENDED, message="nothing is watched while it is suspended"
    )


def heard_cluster(heartbeat: Heartbeat, held: ClusterRecord) -> ClusterRecord:
    """The record of a cluster after a heartbeat of one of its watchers.

    Which UID is accepted is not the watcher's to say (`Identities`).
    """
    return msgspec.structs.replace(
        held,
        connected=heartbeat.connected,
        reason=heartbeat.reason,
        message=heartbeat.message,
        server_version=heartbeat.server_version or held.server_version,
        # The highest ever seen: a wish carries it, so that no number is used twice (W20, W23).
        incarnation=max(held.incarnation, heartbeat.incarnation.number),
        last_answer=_last_answer(held, heartbeat),
        last_heard=heartbeat.observed_at,
        invalid=heartbeat.invalid,
    )


def _last_answer(held: ClusterRecord, heartbeat: Heartbeat) -> str:
    """The later one, for of two replicas one may hear less; never one that is still to come.

    A watcher whose clock runs ahead would make a server look alive that has died since. A clock
    that is behind cannot be told from a heartbeat that was long on its way: its word stays.
    """
    told = heartbeat.last_answer
    ahead = _parse(heartbeat.observed_at) - datetime.now(UTC)
    if told and ahead > _CLOCK_SLACK:
        told = _earlier(told, ahead)
    latest = max(held.last_answer, told, key=_parse)
    return utc_now() if _parse(latest) > datetime.now(UTC) else latest


def _earlier(time: str, by: timedelta) -> str:
    try:
        return rfc3339((_parse(time) - by).astimezone(UTC))
    except OverflowError:  # nobody's clock said that
        return ""


def is_outdated(heartbeat: Heartbeat, held: ClusterRecord) -> bool:
    """Whether something newer was heard already: heartbeats come again, and out of order."""
    if heartbeat.incarnation.number < held.incarnation:
        return True
    last = _parse(held.last_heard)
    # A watcher whose clock ran ahead, and is gone, must not silence the one after it.
    is_ahead = last > datetime.now(UTC) + _CLOCK_SLACK
    return _parse(heartbeat.observed_at) < last and not is_ahead


def is_silenced(heartbeat: Heartbeat, held: ClusterRecord) -> bool:
    """Whether all that a live watcher sends is dropped for its number (P2), and for nobody's sake.

    Whoever claimed the higher number had a wrong clock, or no right to it, and is silent now.
    """
    if heartbeat.incarnation.number >= held.incarnation:
        return False
    now, last = datetime.now(UTC), _parse(held.last_heard)
    return not now - HEARD_WITHIN < last < now + _CLOCK_SLACK


def state_of(status: ResourceStatus, *, is_listed: bool) -> ResourceState:
    """What a watcher's word makes of a scope.

    Only a complete list and a watch that stands make it synced (P14, A4).
    """
    if is_listed:
        is_watched = status.watch_open and status.state != "failing"
        return ResourceState.SYNCED if is_watched else ResourceState.STALE
    return ResourceState.UNKNOWN if status.state == "failing" else ResourceState.LISTING


def has_silent(record: ResourceRecord, limit: datetime) -> bool:
    """Whether a scope was last spoken of before this time, and is not shown as stale yet."""
    return any(is_silent(scope, limit) for scope in record.scopes.values())


def is_silent(scope: ScopeRecord, limit: datetime) -> bool:
    """Whether this scope is one of those."""
    is_shown = scope.state in (ResourceState.SYNCED, ResourceState.DEGRADED)
    return is_shown and _parse(scope.reported_at) < limit


def _parse(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
