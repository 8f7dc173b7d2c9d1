"""The way to the API servers of members behind agents, which decide what a user may read there.

Only these clusters need NATS. The query API never waits for it, and connects once the fleet has one
of them; while it is not connected, they decide nothing.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.agent_calls.calls import AgentCalls, agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import connected
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError, NotEngaged
from fleetbus.kube.client import KubeClient
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()

_COMPONENT: Final = "query-api"
_RETRY: Final = timedelta(seconds=5)


class MemberAgents:
    """Makes the clients of members behind agents.

    Args:
        access: the address of NATS and the files to log in with.
        clusters: the fleet, which uses these clients from now on.
    """

    def __init__(self, access: NatsAccess, clusters: Clusters) -> None:
        self._access = access
        self._clusters = clusters
        self._needed = asyncio.Event()
        self._calls: AgentCalls | None = None
        self._trouble = "not connected yet"
        self._failing = LogOnce()
        clusters.call_agents(self._make_client)
        clusters.on_change(self._note_agents)

    async def run(self) -> None:
        """Connect once it is needed, and connect again, until cancelled."""
        await self._needed.wait()
        while True:
            try:
                async with (
                    connected(self._access, name=_COMPONENT) as bus,
                    agent_calls(bus, _COMPONENT) as calls,
                ):
                    self._calls = calls
                    await bus.failure()
            except BusError as e:
                self._trouble = str(e)
                if self._failing.should_log(self._trouble):
                    log.warning("agents_not_reached", error=self._trouble)
                self._calls = None
                self._clusters.drop_agent_clients()
            await asyncio.sleep(_RETRY.total_seconds())

    def _note_agents(self) -> None:
        if any(info.access is ClusterAccess.AGENT for info in self._clusters.all()):
            self._needed.set()

    def _make_client(self, info: ClusterInfo) -> KubeClient:
        if self._calls is None:
            raise NotEngaged(
                f"cluster {info.name!r}: its agent is called over NATS ({self._access.shown}):"
                f" {self._trouble}; set FLEETBUS_NATS_URL, and how to log in there"
            )
        return client_through_agent(self._calls, info.name)
