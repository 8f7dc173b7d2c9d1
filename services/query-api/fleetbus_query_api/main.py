"""The query API service: composition root."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import structlog
import uvloop

from fleetbus.clusters.registry import Clusters
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import (
    SharedSettings,
    load_settings,
    tell_unknown_settings,
    write_port_file,
)
from fleetbus.snapshot import SnapshotReader
from fleetbus.snapshot.reads.feed import Feed
from fleetbus.snapshot.shards import wait_for_shards
from fleetbus.store.connection import connect_patiently
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_query_api.access.guard import guarded
from fleetbus_query_api.app import HistorySources, create_app
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.history.runs import RunReads
from fleetbus_query_api.membership.caller import CallerHub
from fleetbus_query_api.membership.routes import Membership
from fleetbus_query_api.past.connection import HistoryConnection
from fleetbus_query_api.probe import StoreProbe
from fleetbus_query_api.serve import listen, serve, wait_for_tls
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.watch.broadcaster import Broadcaster

log = structlog.get_logger()


async def run(
    shared: SharedSettings, settings: QueryApiSettings, *, health: Health | None = None
) -> None:
    """Serve the query API until cancelled.

    Args:
        shared: how to reach Redis and the hub.
        settings: where to listen, who may read what, and the limits of one user.
        health: checks of the process; made here if it is not given.

    Raises:
        ConfigError: the address is not protected, or cannot be bound.
        StoreError: the address of Redis is invalid.
    """
    checks = health or Health()
    started = checks.starting()
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen(settings))
        await stack.enter_async_context(
            checks.serve(shared.health_host, shared.health_port, shared.health_port_file)
        )
        tls = await wait_for_tls(settings, checks)
        redis = await connect_patiently(shared.store, checks)
        try:
            keys = SnapshotKeys(shared.shards)
            await wait_for_shards(redis, keys, checks)
            reader = SnapshotReader(redis, keys)
            probe = StoreProbe(reader=reader, health=checks)
            tail = FeedTail(Feed(redis, keys))
            connection = HistoryConnection(shared.nats if settings.history else None)
            async with (
                guarded(shared, settings, reader, checks) as guard,
                tail.running(),  # until the last request is answered
                AsyncExitStack() as following,
                asyncio.TaskGroup() as group,
            ):
                app = create_app(
                    reader=reader,
                    redis=redis,
                    settings=settings,
                    access=guard.access,
                    authenticator=guard.authenticator,
                    tail=tail,
                    membership=Membership(
                        callers=CallerHub(shared, is_open=guard.authenticator is None),
                        namespace=settings.clusters_namespace,
                    ),
                    history=HistorySources(connection, RunReads(redis), settings.open_archive()),
                )
                broadcaster: Broadcaster = app.state.watches.broadcaster
                await following.enter_async_context(broadcaster.running())
                if guard.clusters is not None:
                    checks.ready_when("clusters", partial(_unknown_clusters, guard.clusters))
                    group.create_task(guard.clusters.run(), name="clusters")
                if guard.agents is not None:
                    group.create_task(guard.agents.run(), name="member-agents")
                group.create_task(serve(app, listener, tls, on_stop=broadcaster.close), name="http")
                group.create_task(probe.run(), name="store-probe")
                group.create_task(connection.run(), name="history-connection")
                host, port = listener.getsockname()[:2]
                await asyncio.to_thread(write_port_file, settings.port_file, port)
                started()
                log.info("query_api_started", host=host, port=port)
        finally:
            await redis.aclose()


def _unknown_clusters(clusters: Clusters) -> str:
    """The reason not to be ready: until the members are known, all of them deny."""
    return "" if clusters.is_known else "the providers have not reported their clusters yet"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-query-api`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-query-api",
        description="Serves the objects of the fleet from the snapshot, over HTTP; "
        "settings are environment variables FLEETBUS_… and FLEETBUS_QUERY_API_….",
    )
    parser.parse_args(argv)
    return run_service("fleetbus-query-api", _main, loop_factory=uvloop.new_event_loop)


async def _main() -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(QueryApiSettings)
    set_up_logs(shared.log_format, shared.log_level)
    levels = shared.log_levels_file
    tell_unknown_settings(QueryApiSettings)
    await run_until_stopped(query_api=run(shared, settings), levels=follow_levels(levels))
