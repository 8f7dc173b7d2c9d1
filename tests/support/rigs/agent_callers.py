"""Callers of agents that go on during losses, and note the reported outcome of each write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from fleetbus.agent_calls.pending import NOT_CONNECTED
from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus_emulator.apiserver import Cluster
from support.objects import config_map

MAPS = "v1/configmaps"
_NOT_SENT = "no connection to NATS"
_PAUSE = 0.02
_RETRY = 0.05


@dataclass
class Outcomes:
    """Names of the objects that were created in one cluster, by the reported outcome."""

    begun: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    not_sent: set[str] = field(default_factory=set[str])
    unknown: set[str] = field(default_factory=set[str])

    @property
    def failed(self) -> set[str]:
        """Those without an answer."""
        return self.not_sent | self.unknown

    def check(self, cluster: Cluster) -> None:
        """Each call has one outcome, and it is true of the cluster.

        Raises:
            AssertionError: it is not.
        """
        assert self.begun == self.answered | self.failed
        statuses = {each.status for each in cluster.requests if each.verb == "create"}
        assert HTTPStatus.CONFLICT not in statuses, "a call ran twice"
        names = {name for _, name in cluster.names(MAPS)}
        assert self.answered <= names
        assert not self.not_sent & names


async def create(client: KubeClient, name: str, outcomes: Outcomes) -> bool:
    """Create an object and note the outcome; whether there was an answer."""
    outcomes.begun.add(name)
    try:
        await client.create(MAPS, config_map(name))
    except Unreachable as e:
        was_sent = e.reason != NOT_CONNECTED and _NOT_SENT not in e.message
        (outcomes.unknown if was_sent else outcomes.not_sent).add(name)
        return False
    outcomes.answered.add(name)
    return True


@asynccontextmanager
async def calling(
    clients: Mapping[str, KubeClient], prefix: str, *, pause: float = _PAUSE
) -> AsyncGenerator[dict[str, Outcomes]]:
    """One caller for each cluster, which creates objects one after the other.

    Args:
        clients: the clusters.
        prefix: of the names of the objects.
        pause: seconds between an answer and the next call.

    Yields:
        The outcomes by cluster; complete after the block.
    """
    outcomes = {cluster: Outcomes() for cluster in clients}
    is_over = asyncio.Event()

    async def call(cluster: str) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            is_answered = await create(clients[cluster], f"{prefix}-{number}", outcomes[cluster])
            await asyncio.sleep(pause if is_answered else _RETRY)  # others need the machine, too

    async with asyncio.TaskGroup() as group:
        for cluster in clients:
            group.create_task(call(cluster), name=f"caller of {cluster}")
        try:
            yield outcomes
        finally:
            is_over.set()
