"""Asks the agents of clusters for a sign of life, and records it (rule P17).

The watcher of such a cluster usually runs beside its agent, but not always, and its heartbeats say
nothing about whether the hub's requests arrive. So each projector asks for the API server's version
through the agent. It skips a cluster that another projector has asked shortly before.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog
from prometheus_client import Gauge
from redis.exceptions import RedisError

from fleetbus.agent_calls.pending import NOT_CONNECTED, SERVER_UNREACHABLE, SILENT
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import KubeError, NotAccepted, NotEngaged
from fleetbus.kube.requests import Call
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import AgentContact
from fleetbus.snapshot.update_records import Records
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty
from fleetbus_reconciler.for_each import for_each

log = structlog.get_logger()

CONNECTED: Final = Gauge(
    "fleetbus_agent_connected",
    "Whether an agent of the cluster took the hub's last request (1) or none did (0).",
    ["cluster"],
)
_WITHIN: Final = timedelta(seconds=20)
"""Longer than the silence after which an agent counts as gone."""


class AgentChecks:
    """Records whether the agents of the fleet are connected.

    Args:
        clusters: the registry.
        reader: the snapshot.
        writer: the snapshot.
        interval: between two requests to one cluster.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        reader: SnapshotReader,
        writer: SnapshotWriter,
        interval: timedelta,
    ) -> None:
        self._clusters = clusters
        self._reader = reader
        self._writer = writer
        self._interval = interval
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        await self._clusters.known()
        while True:
            try:
                await self.check_all()
            except (RedisError, StoreEmpty) as e:
                log.warning("agents_not_checked", error=str(e) or type(e).__name__)
            await asyncio.sleep(self._interval.total_seconds())

    async def check_all(self) -> None:
        """Ask every agent that was not asked lately.

        Raises:
            RedisError, StoreEmpty: not everything was recorded; to be repeated.
        """
        infos = [
            info
            for info in self._clusters.all()
            if info.access is ClusterAccess.AGENT and not info.problem
        ]
        for name in self._shown - {info.name for info in infos}:
            CONNECTED.remove(name)
            self._shown.discard(name)
        await for_each(infos, self._check)

    async def _check(self, info: ClusterInfo) -> None:
        record = await self._reader.cluster(info.name)
        if record is None:
            return  # it has not joined yet, or has just left
        before = record.agent
        if before is None or not self._was_asked(before):
            after = await self._ask(info.name, before or AgentContact())
            if after is None:
                return  # nobody knows
            await self._record(info.name, before, after)
            before = after
        CONNECTED.labels(info.name).set(int(before.connected))
        self._shown.add(info.name)

    def _was_asked(self, agent: AgentContact) -> bool:
        """Whether another projector has just got an answer."""
        if not agent.connected or agent.reason:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(agent.answered_at)
        return timedelta() <= age < self._interval / 2

    async def _ask(self, cluster: str, before: AgentContact) -> AgentContact | None:
        """The agents as they are now; None if that cannot be seen from here."""
        reason, message = "", ""
        try:
            await self._clusters.client(cluster).request(Call("GET", "/version", within=_WITHIN))
        except NotEngaged:
            return None
        except KubeError as e:
            if e.reason in (NOT_CONNECTED, SILENT):
                return AgentContact(
                    reason=e.reason, message=e.message, answered_at=before.answered_at
                )
            is_of_agent = e.status or e.reason == SERVER_UNREACHABLE or isinstance(e, NotAccepted)
            if not is_of_agent:
                return None  # NATS is away, or the time was too short
            reason, message = e.reason, e.message
        return AgentContact(connected=True, reason=reason, message=message, answered_at=utc_now())

    async def _record(self, cluster: str, before: AgentContact | None, after: AgentContact) -> None:
        if before is None or before.connected != after.connected:
            say = log.info if after.connected else log.warning
            say("agent_connected" if after.connected else "agent_not_connected", cluster=cluster)

        def change(records: Records) -> Records:
            if records.cluster.access != ClusterAccess.AGENT:
                return records  # it has just become a direct one
            return records._replace(cluster=msgspec.structs.replace(records.cluster, agent=after))

        await self._writer.update_records(cluster, change)
