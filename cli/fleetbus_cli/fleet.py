"""Builds the registry of the fleet's clusters for a command."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import NotEngaged
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.reads.reader import SnapshotReader

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus.kube.connection.config import KubeConfig


def build_fleet(hub: KubeConfig, reader: SnapshotReader | None) -> Clusters:
    """Build the registry from FLEETBUS_PROVIDERS; by default from the Clusters of the hub.

    FLEETBUS_HUB_CLUSTER names the hub, which need not be among them.

    Args:
        hub: access data of the hub.
        reader: the snapshot, which says which clusters are accepted; without it any that answers.
    """
    clusters = _registry(hub)
    if reader is not None:
        clusters.verify_identities(AcceptedClusters(reader))
    return clusters


def _registry(hub: KubeConfig) -> Clusters:
    # The hub of the chart is no Cluster: without its name nothing would be known of it.
    name = os.environ.get("FLEETBUS_HUB_CLUSTER", "")
    info = ClusterInfo(name=name, hub=True, provider="hub", config=hub) if name else None
    if not os.environ.get("FLEETBUS_PROVIDERS"):
        return Clusters([ClusterProvider(hub)], hub=info)
    # pydantic is half of what these commands import: only a fleet with other providers needs it
    from fleetbus.clusters.providers.build import build_provider  # noqa: PLC0415 -- see above
    from fleetbus.process.settings import SharedSettings, load_settings  # noqa: PLC0415

    settings = load_settings(SharedSettings)
    return Clusters([build_provider(each, hub) for each in settings.providers], hub=info)


@asynccontextmanager
async def calling_agents(
    clusters: Clusters, bus: Bus | None, *, caller: str
) -> AsyncGenerator[None]:
    """Use the clusters behind agents, too, for the duration of the block.

    Args:
        clusters: the fleet, before any of its clients is used.
        bus: the way to the agents; None if its address is not set, which whoever asks for such a
            cluster gets as a `NotEngaged`.
        caller: see `fleetbus_cli.nats.agent_caller`.
    """
    if bus is None:
        clusters.call_agents(_refuse)
        yield
        return
    # a fleet without NATS needs no frames
    from fleetbus.agent_calls.calls import agent_calls  # noqa: PLC0415 -- see above
    from fleetbus.agent_calls.transport import client_through_agent  # noqa: PLC0415 -- see above

    async with agent_calls(bus, caller) as calls:
        clusters.call_agents(lambda info: client_through_agent(calls, info.name))
        yield


def _refuse(info: ClusterInfo) -> NoReturn:
    raise NotEngaged(f"cluster {info.name!r}: its agent is called over NATS: set --nats-url")
