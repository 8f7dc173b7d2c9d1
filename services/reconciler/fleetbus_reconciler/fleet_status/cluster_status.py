"""Writes the status of Cluster objects on the hub, from the records of the snapshot (rule P17).

The projector is its only writer, because a watcher inside a member cluster has no rights here and
two writers would flap. It is written when something changed: an idle fleet sees no writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import structlog
from prometheus_client import Gauge

from fleetbus.clusters.leaving import NAMESPACE, LeaveRecords
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import FleetbusError, NotFound
from fleetbus.kube.client import KubeClient, Object
from fleetbus.process.clock import rfc3339
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.accepted import aliases_of
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import (
    AgentContact,
    ClusterRecord,
    ResourceRecord,
    ResourceState,
)
from fleetbus.watchers.spec import SUSPENDED, UNUSABLE
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

ALIASES: Final = Gauge(
    "fleetbus_cluster_aliases",
    "Other names under which the same cluster is in the fleet; 0 unless somebody made a mistake.",
    ["cluster"],
)
_COUNT_EVERY: Final = timedelta(seconds=30)
"""Objects come and go all the time: their number alone is written no more often than this."""
_MAX_NAMED: Final = 3
_PROVIDER: Final = "cluster"


class ClusterStatus:
    """Keeps the status of all Cluster objects in line with the records.

    Args:
        clusters: the registry, and the client of the hub.
        reader: the snapshot.
        stale_after: how long a cluster without heartbeats is not stale.
        namespace: of fleetbus on the hub, where the leave records are.
        interval: between two writes.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        reader: SnapshotReader,
        stale_after: timedelta,
        namespace: str = NAMESPACE,
        interval: timedelta,
    ) -> None:
        self._clusters = clusters
        self._reader = reader
        self._stale_after = stale_after
        self._interval = interval
        # Cluster → its other names, at the last look.
        self._aliases: Mapping[str, tuple[str, ...]] = {}
        self._leave_records = LeaveRecords(namespace)
        # The status last written, or found written: cluster → status without its times.
        self._written: dict[str, Object] = {}
        self._counted_at: dict[str, float] = {}
        self._log_once = LogOnce()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._interval.total_seconds())
            try:
                await self.write_all()
            except Exception as e:  # noqa: BLE001 -- the hub or Redis is away: try again
                if self._log_once.should_log(str(e)):
                    log.warning("cluster_status_not_written", error=str(e))

    async def write_all(self) -> None:
        """Write the status of every Cluster object where it has changed."""
        fleet = await self._reader.available_clusters()
        if not fleet.away:  # else a name may be missing
            self._aliases = self._compare_names(fleet.records)
        hub = self._clusters.hub
        names = {info.name for info in self._clusters.all() if info.provider == _PROVIDER}
        for name in self._written.keys() - names:
            del self._written[name]
            self._counted_at.pop(name, None)
            self._log_once.reset(name)
        if not hub:
            return
        client = self._clusters.client(hub)
        # Whatever the providers are: controllers ignore stale records, but may not delete them.
        with suppress(FleetbusError):  # unreadable records are read again by whoever needs them
            await self._leave_records.clear(client, self._clusters.all())
        if not names:
            return
        await for_each(
            [record for record in fleet.records if record.name in names],
            lambda record: self._write(client, record, self._aliases.get(record.name, ())),
        )
        await for_each(filter(fleet.is_away, names), lambda name: self._mark_away(client, name))

    def _compare_names(self, records: Iterable[ClusterRecord]) -> Mapping[str, tuple[str, ...]]:
        """The other names of each cluster; new ones are logged.

        Whoever works through one name undoes what is done through the other.
        """
        aliases = aliases_of(records)
        for name in self._aliases.keys() - aliases.keys():
            with suppress(KeyError):
                ALIASES.remove(name)
        for name, others in aliases.items():
            ALIASES.labels(name).set(len(others))
            if others and others != self._aliases.get(name):
                log.warning("cluster_has_two_names", cluster=name, others=others)
        return aliases

    async def _write(
        self, client: KubeClient, record: ClusterRecord, aliases: Sequence[str]
    ) -> None:
        resources = await self._reader.resources(record.name)
        status = cluster_status(record, resources, self._is_silent(record), aliases)
        counted = await self._count(record.name, resources)
        status["objects"] = counted
        if status == self._written.get(record.name):
            return
        try:
            await self._patch(client, record, status)
        except FleetbusError as e:
            self._warn(record.name, e)

    async def _mark_away(self, client: KubeClient, name: str) -> None:
        """Show that nobody knows the state of a cluster, because its shard does not answer."""
        if self._written.get(name) == _STORE_AWAY:
            return
        try:
            obj = await client.get(CLUSTERS, "", name)
            if obj is None:
                return  # it has just left
            stored = cast("list[Object]", (obj.get("status") or {}).get("conditions") or [])
            others = [condition for condition in stored if condition.get("type") != "Synced"]
            conditions = _with_times([*others, _STORE_AWAY], stored)
            status = {"status": {"conditions": conditions}}
            await client.patch(CLUSTERS, "", name, status, subresource="status")
        except FleetbusError as e:
            self._warn(name, e)
        else:
            self._written[name] = _STORE_AWAY

    def _warn(self, cluster: str, error: FleetbusError) -> None:
        if self._log_once.should_log(str(error), key=cluster):
            log.warning("cluster_status_not_written", cluster=cluster, error=str(error))

    async def _patch(self, client: KubeClient, record: ClusterRecord, status: Object) -> None:
        try:
            obj = await client.get(CLUSTERS, "", record.name)
        except NotFound:
            return  # this hub has no Cluster objects: another provider defines the fleet
        if obj is None:
            return  # it has just left
        stored = cast("Object", obj.get("status") or {})
        conditions = _with_times(
            status["conditions"], cast("list[Object]", stored.get("conditions") or [])
        )
        # A store that was lost knows no UID; until it does again, this one counts (rule W13).
        uid = status["uid"] or stored.get("uid", "")
        changed = status | {"conditions": conditions, "uid": uid}
        if {key: stored.get(key) for key in changed} != changed:
            # While the cluster answers, the time would have to be written over and over.
            is_connected = conditions[0]["status"] == "True"
            changed["lastAnswer"] = None if is_connected else record.last_answer or None
            await client.patch(CLUSTERS, "", record.name, {"status": changed}, subresource="status")
        self._written[record.name] = status

    async def _count(self, cluster: str, resources: Sequence[ResourceRecord]) -> int:
        """The number of known objects, or the one written before until `_COUNT_EVERY` is over."""
        written = self._written.get(cluster)
        now = time.monotonic()
        due = self._counted_at.get(cluster, float("-inf")) + _COUNT_EVERY.total_seconds()
        if written is not None and "objects" in written and now < due:
            return int(written["objects"])
        self._counted_at[cluster] = now
        return sum(await self._reader.counts(cluster, [resource.key for resource in resources]))

    def _is_silent(self, record: ClusterRecord) -> bool:
        try:
            last = datetime.fromisoformat(record.reported_at)
        except ValueError:
            return False  # without any heartbeat it is "not connected", not stale
        return datetime.now(UTC) - last > self._stale_after


def cluster_status(
    record: ClusterRecord,
    resources: Sequence[ResourceRecord],
    is_silent: bool,
    aliases: Sequence[str] = (),
) -> Object:
    """The status a Cluster should show, without times and object count.

    Args:
        record: of the cluster.
        resources: what is watched of it.
        is_silent: no heartbeat has come for too long.
        aliases: other names of the same cluster.
    """
    stale = [r for r in resources if r.state is ResourceState.STALE]
    return {
        "version": record.server_version,
        "uid": record.uid,
        "conditions": [
            _connected(record, is_silent=is_silent),
            _synced(record, resources),
            _stale(record, stale, is_silent=is_silent),
            *([_agent_connected(record.agent)] if record.agent is not None else []),
            *([_aliased(aliases)] if aliases else []),
        ],
    }


def _connected(record: ClusterRecord, *, is_silent: bool) -> Object:
    if replaced := record.why_replaced(datetime.now(UTC)):
        return _condition("Connected", False, "ClusterReplaced", replaced)
    if not record.reported_at:
        reason = record.reason or "NoHeartbeat"
        return _condition("Connected", False, reason, record.message or "no heartbeat has come yet")
    if is_silent and record.reason not in (SUSPENDED, UNUSABLE):
        message = record.why_refused(datetime.now(UTC)) or "its watcher sends no heartbeats"
        return _condition("Connected", False, "WatcherSilent", message)
    reason = record.reason or ("Connected" if record.connected else "Unknown")
    return _condition("Connected", record.connected, reason, record.message)


def _agent_connected(agent: AgentContact) -> Object:
    reason = agent.reason or "Connected"
    return _condition("AgentConnected", agent.connected, reason, agent.message)


def _stale(record: ClusterRecord, stale: Sequence[ResourceRecord], *, is_silent: bool) -> Object:
    if not is_silent and not stale:
        return _condition("Stale", False, "Reported", "")
    reason = SUSPENDED if record.reason == SUSPENDED else "NotReported"
    return _condition("Stale", True, reason, _names("not reported lately", stale))


def _aliased(aliases: Sequence[str]) -> Object:
    message = f"the same cluster is also in the fleet as {', '.join(aliases)}"
    return _condition("Aliased", True, "SameCluster", message)


def _synced(record: ClusterRecord, resources: Sequence[ResourceRecord]) -> Object:
    degraded = [r for r in resources if r.state is ResourceState.DEGRADED]
    missing = [r for r in resources if r.state in (ResourceState.UNKNOWN, ResourceState.LISTING)]
    refused = f"not watched: {'; '.join(record.invalid[:_MAX_NAMED])}" if record.invalid else ""
    if missing or not resources:
        message = _names("not listed completely yet", missing) or "nothing is watched"
        message = "; ".join(filter(None, (message, refused)))  # a condition has a single reason
        return _condition("Synced", False, "NotListed", message)
    if refused:
        return _condition("Synced", False, "InvalidResources", refused)
    if degraded:
        message = f"{_names('degraded', degraded[:1])}: {degraded[0].reason}"
        return _condition("Synced", False, "Degraded", message)
    return _condition("Synced", True, "AllListed", "")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
    }


def _names(label: str, resources: Sequence[ResourceRecord]) -> str:
    if not resources:
        return ""
    names = [f"{r.plural}.{r.group}" if r.group != "core" else r.plural for r in resources]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{label}: {', '.join(names[:_MAX_NAMED])}{more}"


def _with_times(conditions: Sequence[Object], previous: Sequence[Object]) -> list[Object]:
    """Conditions with the time of their last change, kept where the status is the same."""
    now = rfc3339(datetime.now(UTC), timespec="seconds")
    before = {str(condition.get("type")): condition for condition in previous}
    timed: list[Object] = []
    for condition in conditions:
        old = before.get(condition["type"], {})
        same = old.get("status") == condition["status"] and "lastTransitionTime" in old
        timed.append(condition | {"lastTransitionTime": old["lastTransitionTime"] if same else now})
    return timed


_STORE_AWAY: Final = _condition(
    "Synced", False, "StoreAway", "the server of the store that holds this cluster does not answer"
)
"""Reason for a cluster whose shard of the snapshot is away."""
