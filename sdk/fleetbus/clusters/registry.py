"""The fleet as this process knows it: compares the providers' clusters with the engaged ones.

new → engage; gone → disengage; equal → nothing; different → replace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterAccess, ClusterInfo, Provider
from fleetbus.errors import ClusterNotFound, NotEngaged
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.breaker import ApiBreaker
from fleetbus.kube.connection.config import is_same_server
from fleetbus.kube.connection.identity import AcceptedUidSource, IdentityCheck
from fleetbus.process.close_names import close_names

log = structlog.get_logger()

Listener = Callable[[], None]
MakeClient = Callable[[ClusterInfo], KubeClient]

_FEW: Final = 50
"""The most names that are searched for a suggestion."""


class Clusters:
    """All clusters of the fleet and a client for each.

    Args:
        providers: where clusters come from; on a clash of names the earlier provider wins.
        hub: the hub; a provider may also mark it.
        make_client: creates the client of a usable cluster.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        *,
        hub: ClusterInfo | None = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._providers = list(providers)
        self._hub = hub
        self._make_client = make_client or _client_of
        self._wanted: dict[int, list[ClusterInfo]] = {}
        self._engaged: dict[str, ClusterInfo] = {}
        self._clients: dict[str, KubeClient] = {}
        self._listeners: list[Listener] = []
        self._known = asyncio.Event()
        self._accepted: AcceptedUidSource | None = None
        self._make_agent_client: MakeClient | None = None
        # Clients of clusters that left, closed by `run`, because disengaging itself never waits.
        self._leaving: asyncio.Queue[KubeClient] = asyncio.Queue()
        if not self._providers:
            self._converge()

    def verify_identities(self, accepted: AcceptedUidSource) -> None:
        """Let responses count only while the accepted cluster gives them (rule W13).

        Args:
            accepted: looks up the accepted UIDs; to be set before any client is created.
        """
        self._accepted = accepted

    def call_agents(self, make_client: MakeClient) -> None:
        """Use clusters whose access is `Agent`.

        Args:
            make_client: creates the client of one; to be set before any client is created.
        """
        self._make_agent_client = make_client

    def drop_agent_clients(self) -> None:
        """Make the clients of clusters with agents anew when they are next used."""
        for name, info in self._engaged.items():
            if info.access is ClusterAccess.AGENT:
                self._drop_client(name)

    async def run(self) -> None:
        """Follow the providers until cancelled; then close all clients."""
        try:
            async with asyncio.TaskGroup() as group:
                for index, provider in enumerate(self._providers):
                    group.create_task(self._follow(index, provider), name=provider.name)
                group.create_task(self._close_leaving(), name="close-clients")
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close every client."""
        while not self._leaving.empty():
            await self._leaving.get_nowait().aclose()
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def known(self) -> None:
        """Wait until every provider has yielded its first set: before, absence means nothing."""
        await self._known.wait()

    @property
    def is_known(self) -> bool:
        """Whether every provider has yielded its first set."""
        return self._known.is_set()

    @property
    def hub(self) -> str:
        """Name of the hub; empty if the fleet has none."""
        return next((info.name for info in self._engaged.values() if info.hub), "")

    def all(self) -> list[ClusterInfo]:
        """Every cluster of the fleet, by name."""
        return sorted(self._engaged.values(), key=lambda info: info.name)

    def get(self, name: str) -> ClusterInfo | None:
        """One cluster; None if it is not in the fleet."""
        return self._engaged.get(name)

    def _suggestion(self, name: str) -> str:
        """Suggests the closest cluster name, or a reason, for an unknown name."""
        if not name:
            return ": the name is empty, like the hub's in a fleet without a hub"
        # In a large fleet each request of a cluster that left would cost milliseconds.
        near = close_names(name, self._engaged) if len(self._engaged) <= _FEW else []
        return f"; did you mean {near[0]!r}?" if near else ""

    def client(self, name: str) -> KubeClient:
        """The client of a cluster.

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: a provider has not yielded yet, or the cluster has no usable access data.
        """
        info = self._engaged.get(name)
        if info is None:
            if not self.is_known:
                raise NotEngaged(
                    f"cluster {name!r}: the providers have not reported their clusters yet"
                )
            raise ClusterNotFound(f"cluster {name!r} is not in the fleet{self._suggestion(name)}")
        if info.problem:
            raise NotEngaged(f"cluster {name!r}: {info.problem}")
        if info.access is ClusterAccess.AGENT and self._make_agent_client is None:
            raise NotEngaged(f"cluster {name!r}: this process has no way to its agent")
        if info.config is None and not info.hub and info.access is ClusterAccess.DIRECT:
            # None means the pod's service account, which is for the hub, never a member (rule S7).
            raise NotEngaged(f"cluster {name!r}: provider {info.provider!r} gave no access data")
        if name not in self._clients:
            self._clients[name] = self._engage(info)
        return self._clients[name]

    def _engage(self, info: ClusterInfo) -> KubeClient:
        make_client = self._make_client
        if info.access is ClusterAccess.AGENT and self._make_agent_client is not None:
            make_client = self._make_agent_client
        client = make_client(info)
        client.cluster = info.name
        client.breaker = ApiBreaker(info.name)
        if self._accepted is not None:
            client.verify_identity(
                IdentityCheck(
                    info.name,
                    accepted=self._accepted,
                    read=client.kube_system_uid,
                    recorded=info.uid,
                )
            )
        return client

    async def aliases(self, name: str) -> Sequence[str]:
        """Other names in the fleet of the same cluster; empty if accepted UIDs are not known.

        Raises:
            NotAccepted: they cannot be looked up.
        """
        return await self._accepted.aliases(name) if self._accepted is not None else ()

    async def accepted_uid(self, name: str) -> str:
        """The accepted UID of a cluster; empty if none is known.

        Raises:
            NotAccepted: it cannot be looked up, or the cluster has an earlier name.
        """
        return await self._accepted.uid(name) if self._accepted is not None else ""

    def on_change(self, listener: Listener) -> None:
        """Call the listener after each change of the fleet; it must not block."""
        self._listeners.append(listener)

    async def _follow(self, index: int, provider: Provider) -> None:
        async with aclosing(provider.cluster_sets()) as sets:
            async for infos in sets:
                self._wanted[index] = infos
                self._converge()

    async def _close_leaving(self) -> None:
        while True:
            await (await self._leaving.get()).aclose()

    def _converge(self) -> None:
        members = self._merge()
        changed = members != self._engaged
        for name in self._engaged.keys() - members.keys():
            log.info("cluster_left", cluster=name)
            self._drop_client(name)
        for name, info in members.items():
            before = self._engaged.get(name)
            if before is None:
                log.info("cluster_joined", cluster=name, provider=info.provider)
            elif (before.access, before.config) != (info.access, info.config):
                log.info("cluster_access_changed", cluster=name, provider=info.provider)
                self._change_access(name, before, info)
        self._engaged = members
        if len(self._wanted) == len(self._providers):
            self._known.set()
        if changed:
            for listener in self._listeners:
                listener()

    def _change_access(self, name: str, before: ClusterInfo, after: ClusterInfo) -> None:
        """Rotated credentials do not interrupt requests; another server, or way there, does."""
        client = self._clients.get(name)
        if client and before.access is after.access and _is_same_server(before, after):
            client.use(after.config)
        else:
            self._drop_client(name)

    def _drop_client(self, name: str) -> None:
        if client := self._clients.pop(name, None):
            self._leaving.put_nowait(client)

    def _merge(self) -> dict[str, ClusterInfo]:
        merged: dict[str, ClusterInfo] = {}
        for index in sorted(self._wanted):
            for info in self._wanted[index]:
                first = merged.setdefault(info.name, info)
                if first is not info:
                    log.warning(
                        "cluster_name_taken",
                        cluster=info.name,
                        provider=info.provider,
                        taken_by=first.provider,
                    )
        if self._hub is not None:
            member = merged.get(self._hub.name)
            merged[self._hub.name] = replace(member, hub=True) if member else self._hub
        return merged


def _is_same_server(before: ClusterInfo, after: ClusterInfo) -> bool:
    if before.config is None or after.config is None:
        return False
    return is_same_server(before.config, after.config)


def _client_of(info: ClusterInfo) -> KubeClient:
    return KubeClient(info.config)
