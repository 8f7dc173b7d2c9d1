"""The composition root of a watcher of the pool."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final

from fleetbus.bus.connection import connected
from fleetbus.bus.window import open_window
from fleetbus.clusters.providers.build import build_clusters
from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.follow.list_limits import ProcessLists
from fleetbus_watcher.pool.cluster_runner import Scope, Shared
from fleetbus_watcher.pool.member import Pool
from fleetbus_watcher.pool_settings import PoolSettings
from fleetbus_watcher.pulse import HANGS_AFTER, pulse
from fleetbus_watcher.settings import WatcherSettings

ANY_CLUSTER: Final = "any"
"""In the settings of a pool: each cluster's work gets the cluster's name instead."""
_MEMBER: Final = re.compile(r"[-_a-zA-Z0-9]+(\.[-_a-zA-Z0-9]+)*")
_STARTS_AT_ONCE: Final = 16
_ALL: Final = "*"
"""The window is shared by all clusters."""


async def run_pool(settings: WatcherSettings, pool: PoolSettings, shared: SharedSettings) -> None:
    """Watch a share of the fleet until cancelled; then the others of the pool take it over.

    Args:
        settings: what to watch of each cluster; `replica` is the name of this member.
        pool: how the clusters are shared.
        shared: where NATS, the hub and the clusters are.

    Raises:
        BusError: NATS refuses us, or is too old.
        ConfigError: a provider is wrong, there is none, or the member's name cannot be used.
    """
    member = settings.replica
    if not _MEMBER.fullmatch(member):
        raise ConfigError(
            f"setting FLEETBUS_WATCHER_REPLICA: {member!r}: the name of a member of the pool has"
            " letters, digits, -, _ and single dots only"
        )
    if settings.kubeconfig or settings.context:
        raise ConfigError(
            "settings FLEETBUS_WATCHER_KUBECONFIG and FLEETBUS_WATCHER_CONTEXT (--kubeconfig,"
            " --context) are for --cluster: with --pool FLEETBUS_PROVIDERS tells of access data"
        )
    if not shared.providers and not shared.hub_cluster:
        raise ConfigError("setting FLEETBUS_PROVIDERS: a pool takes its clusters from there")
    clusters = build_clusters(shared)
    async with (
        # No cluster can have a name with this beginning, and so none the rights to our inbox.
        connected(shared.nats_url, name=f"_pool.{member}") as bus,
        open_window(bus) as window,
    ):
        shares = Shared(
            settings=settings,
            bus=bus,
            window=window,
            lists=ProcessLists(pool.lists_at_once),
            starts=asyncio.Semaphore(_STARTS_AT_ONCE),
        )
        made = Pool(
            member=member,
            settings=pool,
            clusters=clusters,
            bus=bus,
            open_scope=partial(Scope, shared=shares),
        )
        health = Health()
        health.ready_when("pool", made.waiting)
        health.ready_when("sync", made.unsettled)
        beat = health.liveness("pool", HANGS_AFTER)
        async with health.serve(shared.health_host, shared.health_port, shared.health_port_file):
            await race(
                clusters=clusters.run(),
                pool=made.run(beat),
                bus=bus.failure(),
                pulse=pulse(health, _ALL, window),
            )
