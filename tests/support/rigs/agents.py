"""Agents between emulated API servers and a real NATS, and clients that call through them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from fleetbus.agent_calls.calls import AgentCalls, agent_calls
from fleetbus.agent_calls.pending import Times as CallerTimes
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import Bus, connected
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_agent.gateway import Times
from fleetbus_agent.main import run
from fleetbus_agent.settings import AgentSettings
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from support.eventually import eventually

Connect = Callable[[dict[str, Any]], AbstractAsyncContextManager[KubeClient]]
"""A client of the API server of a kubeconfig, for the duration of a block."""
WAYS = ("http", "agent")
QUICK = Times(tick=0.05, working_every=0.2, silence=2.0)
QUICK_CALLER = CallerTimes(silence=1.0, still_waiting=0.2)


@dataclass
class AgentRig:
    """The hub's side of NATS, and any number of agents."""

    bus: Bus
    calls: AgentCalls
    nats_url: str
    folder: Path
    times: Times = QUICK
    _running: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def start(
        self, document: dict[str, Any], cluster: str = "eu1", *, nats_url: str = "", **settings: Any
    ) -> asyncio.Task[None]:
        """An agent of the API server of a kubeconfig, once it takes calls."""
        path = self.folder / f"kubeconfig-{len(self._running)}-{cluster}"
        path.write_text(json.dumps(document))
        chosen = load_settings(
            AgentSettings, **({"cluster": cluster, "kubeconfig": path} | settings)
        )
        shared = SharedSettings(nats_url=nats_url or self.nats_url, health_port=0)
        health = Health()
        task = asyncio.create_task(run(chosen, shared, health=health, times=self.times))
        self._running.append(task)
        await asyncio.sleep(0)  # its first step registers its checks
        await eventually(lambda: self._is_serving(health, task))
        return task

    @staticmethod
    def _is_serving(health: Health, task: asyncio.Task[None]) -> bool:
        if task.done():
            task.result()
        problems = health.problems()
        return not problems.keys() - {"api server"}

    def client(self, cluster: str = "eu1") -> KubeClient:
        """A client through the agents of a cluster; the caller closes it."""
        return client_through_agent(self.calls, cluster)

    async def stop(self, task: asyncio.Task[None] | None = None) -> None:
        """Stop in good order, like SIGTERM; without an argument all."""
        for each in [task] if task is not None else list(self._running):
            self._running.remove(each)
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each


@asynccontextmanager
async def agent_rig(
    nats_url: str,
    folder: Path,
    *,
    times: Times = QUICK,
    caller_times: CallerTimes = QUICK_CALLER,
) -> AsyncGenerator[AgentRig]:
    """The hub's side; agents are started by the test."""
    async with (
        connected(nats_url, name="hub") as bus,
        agent_calls(bus, "test", times=caller_times) as calls,
    ):
        rig = AgentRig(bus, calls, nats_url, folder, times)
        try:
            yield rig
        finally:
            await rig.stop()


@dataclass
class OneAgent:
    """One cluster, its agent, and a client through it."""

    rig: AgentRig
    cluster: Cluster
    servers: ApiServers
    client: KubeClient
    agent: asyncio.Task[None]


@asynccontextmanager
async def one_agent(
    nats_url: str,
    folder: Path,
    cluster: Cluster | None = None,
    *,
    user: dict[str, Any] | None = None,
    agent_url: str = "",
    times: Times = QUICK,
    caller_times: CallerTimes = QUICK_CALLER,
    **settings: Any,
) -> AsyncGenerator[OneAgent]:
    """A cluster behind one agent, whose kubeconfig has this user, and whose NATS this address."""
    own = cluster or Cluster("eu1")
    opened = agent_rig(nats_url, folder, times=times, caller_times=caller_times)
    async with serve([own]) as servers, opened as rig:
        document = servers.kubeconfig()
        document["users"][0]["user"] = user or {}
        agent = await rig.start(document, nats_url=agent_url, **settings)
        async with rig.client() as client:
            yield OneAgent(rig, own, servers, client, agent)


def connect_by(way: str, nats_url: str, folder: Path) -> Connect:
    """The ways of `WAYS` to an API server, for tests that run over each of them."""

    @asynccontextmanager
    async def over_http(document: dict[str, Any]) -> AsyncGenerator[KubeClient]:
        async with KubeClient(KubeConfig(yaml.safe_dump(document))) as client:
            yield client

    @asynccontextmanager
    async def through_agent(document: dict[str, Any]) -> AsyncGenerator[KubeClient]:
        patient = CallerTimes(silence=timedelta(seconds=15).total_seconds())
        async with agent_rig(nats_url, folder, caller_times=patient) as rig:
            await rig.start(document)
            async with rig.client() as client:
                client.cluster = ""
                yield client

    return over_http if way == "http" else through_agent
