"""Builds what guards the query API, from its settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fleetbus.clusters.providers.build import build_clusters, hub_config, wait_for_hub
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.client import KubeClient
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings
from fleetbus.snapshot import SnapshotReader
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus_query_api.access.agents import MemberAgents
from fleetbus_query_api.access.authenticate import Authenticator
from fleetbus_query_api.access.authorise import (
    Access,
    Decisions,
    HubAccess,
    MemberAccess,
    OpenAccess,
)
from fleetbus_query_api.settings import QueryApiSettings


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may send requests, and what they may read.

    Attributes:
        authenticator: None lets everybody in.
        clusters: the fleet, where its members decide; the caller runs it.
        agents: the way to members behind agents; the caller runs it, too.
    """

    access: Access
    authenticator: Authenticator | None = None
    clusters: Clusters | None = None
    agents: MemberAgents | None = None


@asynccontextmanager
async def guarded(
    shared: SharedSettings, settings: QueryApiSettings, reader: SnapshotReader, health: Health
) -> AsyncGenerator[Guard]:
    """Build the guard, once the hub's kubeconfig can be read; its clients are closed at the end.

    Raises:
        ConfigError: a provider is wrong.
    """
    if settings.authentication == "none":
        yield Guard(OpenAccess())
        return
    await wait_for_hub(shared, health)
    async with AsyncExitStack() as exits:
        hub = await exits.enter_async_context(KubeClient(hub_config(shared)))
        hub.cluster = shared.hub_cluster
        authenticator = Authenticator(
            hub=hub, audience=settings.audience, keep=settings.token_cache
        )
        decisions = Decisions(allow=settings.allow_cache, deny=settings.deny_cache)
        access = HubAccess(hub=hub, decisions=decisions)
        if settings.authority == "hub":
            yield Guard(access, authenticator)
            return
        clusters = build_clusters(shared)
        exits.push_async_callback(clusters.aclose)
        # A decision counts only if the accepted cluster made it (rule W13).
        clusters.verify_identities(AcceptedClusters(reader))
        agents = MemberAgents(shared.nats, clusters)
        members = MemberAccess(hub=access, clusters=clusters, decisions=decisions)
        yield Guard(members, authenticator, clusters, agents)
