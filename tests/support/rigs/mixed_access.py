"""Fleets of which some clusters are direct and some behind agents, whatever provider names them.

The provider `mixed` is made known like one of a user, by an entry point of `fleetbus.providers`:
tests/fleetbus_tests.dist-info declares it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetbus.clusters.info import ClusterAccess, ClusterInfo, Provider
from fleetbus.clusters.providers.build import build_provider
from fleetbus.process.settings import ProviderSettings

if TYPE_CHECKING:
    from fleetbus.kube.connection.config import KubeConfig


class MixedProvider:
    """The clusters of another provider, without the access data of those behind agents.

    Args:
        provider: the other one.
        behind_agents: names of its clusters.
        closed: names of those that it does not have, since only their agents reach them.
    """

    def __init__(
        self, provider: Provider, behind_agents: Collection[str], closed: Collection[str]
    ) -> None:
        self._provider = provider
        self._behind_agents = frozenset(behind_agents)
        self._closed = [
            ClusterInfo(name=name, provider=provider.name, config=None, access=ClusterAccess.AGENT)
            for name in closed
        ]

    @property
    def name(self) -> str:
        return self._provider.name

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        async with aclosing(self._provider.cluster_sets()) as sets:
            async for infos in sets:
                yield [*(self._reached(info) for info in infos), *self._closed]

    def _reached(self, info: ClusterInfo) -> ClusterInfo:
        if info.name not in self._behind_agents:
            return info
        return replace(info, access=ClusterAccess.AGENT, config=None)


def build(options: Mapping[str, Any], hub: KubeConfig | None) -> Provider:
    """The entry point; see `mixed` for the options."""
    provider = ProviderSettings.model_validate(options["provider"])
    inner = build_provider(provider, hub)
    return MixedProvider(inner, options["behindAgents"], options["closed"])


def mixed(
    provider: Mapping[str, Any], behind_agents: Collection[str], closed: Collection[str] = ()
) -> dict[str, Any]:
    """The settings of a provider; its arguments are those of `MixedProvider`."""
    if not behind_agents:
        return dict(provider)
    return {
        "type": "mixed",
        "provider": dict(provider),
        "behindAgents": sorted(behind_agents),
        "closed": sorted(closed),
    }


def every_second(names: Sequence[str], *, hub: str = "", direct: Collection[str] = ()) -> list[str]:
    """The clusters behind agents: every second member, or the only one beside a hub.

    Args:
        names: of all clusters.
        hub: which is always direct.
        direct: others that are.
    """
    members = [name for name in names if name != hub and name not in direct]
    return members[1::2] or (members if hub else [])
