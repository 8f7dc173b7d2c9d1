"""Computes the records of clusters and resources from heartbeats and providers (rules P14, P17)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.kube.connection.config import server_of
from fleetbus.process.clock import rfc3339, utc_now
from fleetbus.snapshot.records import (
    REPORTED_WITHIN,
    ClusterRecord,
    Definition,
    ResourceRecord,
    ResourceState,
    ScopeRecord,
)
from fleetbus.watchers.spec import SUSPENDED, UNUSABLE
from fleetbus_proto.events import Heartbeat, ResourceStatus

Scope = tuple[str, str]
"""The key of a resource, and the hash of a scope."""

_WORD: Final = 64
"""Characters of a name or a word that a watcher reports of a type."""
_PATH: Final = 512
"""Characters of the JSONPath of a column."""
_COLUMNS: Final = 32
"""Columns, short names or categories of one type."""
_CLOCK_SLACK: Final = timedelta(seconds=5)
_PEER_COUNTS: Final = timedelta(seconds=20)
"""Time for which the report of another replica counts: a little longer than it takes that one to
report the next time (rule W15)."""


def member_record(info: ClusterInfo, before: ClusterRecord | None) -> ClusterRecord:
    """Describe a member as its provider does; what its heartbeats reported stays."""
    record = before or ClusterRecord(name=info.name, joined_at=utc_now())
    host = server_of(info.config) if info.config is not None else ""
    changed = msgspec.structs.replace(
        record,
        labels=dict(info.labels),
        hub=info.hub,
        provider=info.provider,
        host=host,
        access=info.access,
        agent=record.agent if info.access is ClusterAccess.AGENT else None,
    )
    if info.suspended:
        return suspend_cluster(changed)
    is_over = changed.reason == SUSPENDED or (changed.reason == UNUSABLE and not info.problem)
    if is_over:  # and no heartbeat has come since
        changed = msgspec.structs.replace(changed, reason="", message="")
    # A watcher inside the cluster may do well without the access data that we lack.
    has_watcher = _parse(record.reported_at) > datetime.now(UTC) - REPORTED_WITHIN
    if info.problem and not has_watcher:
        return msgspec.structs.replace(
            changed, connected=False, reason=UNUSABLE, message=info.problem
        )
    return changed


def suspend_cluster(record: ClusterRecord) -> ClusterRecord:
    """Mark a cluster of which nothing is to be watched."""
    return msgspec.structs.replace(
        record,
        connected=False,
        reason=SUSPENDED,
        message="nothing is watched while it is suspended",
    )


def suspend(resources: Mapping[str, ResourceRecord]) -> dict[str, ResourceRecord]:
    """Mark the resources of a suspended cluster: what is known stays, as stale."""

    def mark(scope: ScopeRecord) -> ScopeRecord:
        state = ResourceState.STALE if scope.epoch else ResourceState.UNKNOWN
        return msgspec.structs.replace(scope, state=state, reason=SUSPENDED)

    return {
        key: record.with_scopes({name: mark(scope) for name, scope in record.scopes.items()})
        for key, record in resources.items()
        if record.scopes
    }


def mark_stale(
    resources: Mapping[str, ResourceRecord], limit: datetime, reason: str
) -> dict[str, ResourceRecord]:
    """Mark as stale what no heartbeat has reported since this time; answers what changed."""

    def mark(scope: ScopeRecord) -> ScopeRecord:
        if not _is_silent(scope, limit):
            return scope
        return msgspec.structs.replace(scope, state=ResourceState.STALE, reason=reason)

    return {
        key: record.with_scopes({name: mark(scope) for name, scope in record.scopes.items()})
        for key, record in resources.items()
        if any(_is_silent(scope, limit) for scope in record.scopes.values())
    }


def oldest_report(record: ResourceRecord) -> datetime | None:
    """When a scope was reported that is shown as complete: of several, the longest ago."""
    shown = (scope for scope in record.scopes.values() if _is_shown(scope))
    return min((_parse(scope.reported_at) for scope in shown), default=None)


def _is_silent(scope: ScopeRecord, limit: datetime) -> bool:
    return _is_shown(scope) and _parse(scope.reported_at) < limit


def _is_shown(scope: ScopeRecord) -> bool:
    return scope.state in (ResourceState.SYNCED, ResourceState.DEGRADED)


def update_cluster(heartbeat: Heartbeat, record: ClusterRecord) -> ClusterRecord:
    """Apply a heartbeat to the record of its cluster.

    Which UID is accepted is not the watcher's to say (`AcceptedUids`).
    """
    is_worse = not heartbeat.connected and heartbeat.reason not in (SUSPENDED, UNUSABLE)
    if not (is_worse and _counts(record.connected_by, record.connected_at, heartbeat, record)):
        record = msgspec.structs.replace(
            record,
            connected=heartbeat.connected,
            connected_by=heartbeat.replica if heartbeat.connected else "",
            connected_at=heartbeat.observed_at if heartbeat.connected else "",
            reason=heartbeat.reason,
            message=heartbeat.message,
        )
    return msgspec.structs.replace(
        record,
        server_version=heartbeat.server_version or record.server_version,
        platform=heartbeat.platform or record.platform,
        # The highest ever seen: a resync request carries it, so that no number is used twice
        # (rules W20, W23).
        incarnation=max(record.incarnation, heartbeat.incarnation.number),
        last_answer=_last_answer(record, heartbeat),
        reported_at=heartbeat.observed_at,
        invalid=heartbeat.invalid,
        overridden=heartbeat.overridden,
    )


def _counts(replica: str, at: str, heartbeat: Heartbeat, record: ClusterRecord) -> bool:
    """Whether what this replica reported is better than a heartbeat of another one (rule W15).

    A replica that starts, or cannot reach the cluster, changes nothing for those who rely on the
    other one. A later incarnation begins anew for all of them.
    """
    return (
        replica not in ("", heartbeat.replica)
        and heartbeat.incarnation.number == record.incarnation
        and _parse(heartbeat.observed_at) - _parse(at) < _PEER_COUNTS
    )


def update_resources(
    heartbeat: Heartbeat,
    record: ClusterRecord,
    stored: Mapping[str, ResourceRecord],
    degraded: Mapping[Scope, str],
) -> dict[str, ResourceRecord]:
    """Apply a heartbeat to the records of the resources that it reports.

    Args:
        heartbeat: of one replica; the scopes that another replica has reported stay.
        record: of the cluster before it.
        stored: the records of resources before it.
        degraded: scopes that need a person's attention, and why; no heartbeat knows of that.
    """
    records: dict[str, ResourceRecord] = {}
    definitions = _definitions(heartbeat)
    for status in heartbeat.resources:
        key = status.resource_key
        before = records.get(key) or stored.get(key)
        scopes = before.scopes if before is not None else {}
        known = scopes.get(status.scope) or ScopeRecord()
        scope = _update_scope(status, known, heartbeat)
        is_worse = _is_shown(known) and scope.state is ResourceState.STALE
        if is_worse and _counts(known.watched_by, known.watched_at, heartbeat, record):
            scope = known
        else:
            problem = degraded.get((key, status.scope))
            if problem and scope.state is ResourceState.SYNCED:
                scope = msgspec.structs.replace(scope, state=ResourceState.DEGRADED, reason=problem)
            scope = msgspec.structs.replace(scope, reported_at=heartbeat.observed_at)
        reported = ResourceRecord(
            group=status.group,
            version=status.version,
            plural=status.resource,
            kind=status.kind,
            namespaced=status.namespaced,
            is_declared=True,
            definition=definitions.get(key)
            if definitions is not None
            else before.definition
            if before
            else None,
        )
        records[key] = reported.with_scopes({**scopes, status.scope: scope})
    return records


def _definitions(heartbeat: Heartbeat) -> dict[str, Definition] | None:
    """The types that a heartbeat reports, cut to a sane size; None if they are as before."""
    if heartbeat.types is None:
        return None
    return {
        served.resource_key: Definition(
            singular=served.singular[:_WORD],
            short_names=[name[:_WORD] for name in served.short_names[:_COLUMNS]],
            categories=[name[:_WORD] for name in served.categories[:_COLUMNS]],
            list_kind=served.list_kind if len(served.list_kind) <= _WORD else "",
            columns=[
                column
                for column in served.columns[:_COLUMNS]
                if len(column.json_path) <= _PATH
                and max(map(len, (column.name, column.type, column.format))) <= _WORD
            ],
        )
        for served in heartbeat.types
    }


def _update_scope(status: ResourceStatus, scope: ScopeRecord, heartbeat: Heartbeat) -> ScopeRecord:
    watched_by, watched_at = scope.watched_by, scope.watched_at
    if _is_watched(status):
        watched_by, watched_at = heartbeat.replica, heartbeat.observed_at
    elif watched_by == heartbeat.replica:
        watched_by, watched_at = "", ""
    state = _state_of(status, is_listed=bool(scope.epoch))
    reason = status.message or status.reason
    if state is ResourceState.STALE and not reason:
        reason = "its watch is not open"
    return ScopeRecord(
        namespace=status.namespace,
        state=state,
        reason=reason,
        last_received=status.last_received or scope.last_received,
        watched_by=watched_by,
        watched_at=watched_at,
        resource_version=status.resource_version,
        epoch=scope.epoch,
    )


def _state_of(status: ResourceStatus, *, is_listed: bool) -> ResourceState:
    """Only a complete list and an open watch make a scope synced (rules P14, A4)."""
    if is_listed:
        return ResourceState.SYNCED if _is_watched(status) else ResourceState.STALE
    return ResourceState.UNKNOWN if status.state == "failing" else ResourceState.LISTING


def _is_watched(status: ResourceStatus) -> bool:
    return status.watch_open and status.state != "failing"


def _last_answer(record: ClusterRecord, heartbeat: Heartbeat) -> str:
    """The later time, as one of two replicas may receive less; never one that is still to come.

    A watcher whose clock runs ahead would make a server look alive that has died since. A clock
    that is behind looks like a heartbeat that was long on its way: its time stays.
    """
    reported = heartbeat.last_answer
    ahead = _parse(heartbeat.observed_at) - datetime.now(UTC)
    if reported and ahead > _CLOCK_SLACK:
        reported = _earlier(reported, ahead)
    latest = max(record.last_answer, reported, key=_parse)
    return utc_now() if _parse(latest) > datetime.now(UTC) else latest


def _earlier(time: str, by: timedelta) -> str:
    try:
        return rfc3339((_parse(time) - by).astimezone(UTC))
    except OverflowError:  # no clock shows such a time
        return ""


def is_outdated(heartbeat: Heartbeat, record: ClusterRecord) -> bool:
    """Whether a newer heartbeat was applied already: they come again, and out of order."""
    if heartbeat.incarnation.number < record.incarnation:
        return True
    last = _parse(record.reported_at)
    # A watcher whose clock ran ahead, and is gone, must not silence the one after it.
    is_ahead = last > datetime.now(UTC) + _CLOCK_SLACK
    return _parse(heartbeat.observed_at) < last and not is_ahead


def is_locked_out(heartbeat: Heartbeat, record: ClusterRecord) -> bool:
    """Whether all that a live watcher sends is dropped because of its low number (rule P2).

    Whoever claimed the higher number had a wrong clock, or no right to it, and is silent now.
    """
    if heartbeat.incarnation.number >= record.incarnation:
        return False
    now, last = datetime.now(UTC), _parse(record.reported_at)
    return not now - REPORTED_WITHIN < last < now + _CLOCK_SLACK


def _parse(time: str) -> datetime:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
