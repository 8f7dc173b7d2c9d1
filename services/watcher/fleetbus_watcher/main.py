"""The composition root of the watcher, and its command."""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import structlog

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Window, open_window
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, import_light, read_kube_config
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus_watcher.allocator import return_large_blocks
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.follow.list_limits import ProcessLists
from fleetbus_watcher.pool_service import ANY_CLUSTER, run_pool
from fleetbus_watcher.pool_settings import PoolSettings
from fleetbus_watcher.publish.heartbeats import Heartbeats
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.pulse import pulse
from fleetbus_watcher.settings import WatcherSettings

log = structlog.get_logger()


async def run(
    settings: WatcherSettings, shared: SharedSettings, *, config: KubeConfig | None = None
) -> None:
    """Watch one cluster until cancelled; the cancellation is a clean stop (W21).

    Args:
        settings: what to watch.
        shared: where NATS is, and how this process tells of itself.
        config: access to the cluster; None means the settings' kubeconfig or service account.

    Raises:
        BusError: NATS refuses us, or is too old.
        ConfigError: the kubeconfig cannot be read.
    """
    config = config or _config_of(settings)
    name = f"watcher.{settings.cluster}"
    user_agent = f"fleetbus-watcher/{settings.replica}"
    async with (
        KubeClient(config, user_agent=user_agent) as client,
        connected(shared.nats_url, name=name) as bus,
        open_window(bus) as window,
    ):
        publisher = Publisher(bus=bus, window=window)
        cluster = ClusterWatcher(
            settings=settings,
            client=client,
            bus=bus,
            kv=KeyValue(bus),
            publisher=publisher,
            lists=ProcessLists(settings.lists_at_once),
        )
        heartbeats = Heartbeats(settings=settings, cluster=cluster, publisher=publisher)
        health = Health()
        health.ready_when("sync", cluster.unsettled)
        health.ready_when("access", partial(_refused, cluster))
        async with health.serve(shared.health_host, shared.health_port, shared.health_port_file):
            try:
                await race(
                    cluster=cluster.run(),
                    heartbeats=heartbeats.run(),
                    bus=bus.failure(),
                    pulse=pulse(health, settings.cluster, window),
                )
            finally:
                await _stop(settings, bus, window, heartbeats)


def _refused(cluster: ClusterWatcher) -> str:
    """Why our credentials, which are part of how this process was deployed, let us do nothing."""
    reason, message = cluster.trouble
    return f"{reason}: {message}" if reason == "Unauthorized" else ""


async def _stop(
    settings: WatcherSettings, bus: Bus, window: Window, heartbeats: Heartbeats
) -> None:
    """W21: reading has stopped; wait for acknowledgements, tell how far we are, go."""
    if not bus.is_connected or bus.has_failed:
        return
    is_drained = await window.drain(settings.stop_patience)
    if is_drained:  # else the bus does not answer, and a heartbeat would only wait as long again
        try:
            async with asyncio.timeout(settings.stop_patience.total_seconds()):
                await heartbeats.beat()
        except TimeoutError:
            is_drained = False
    log.info("watcher_stopped", cluster=settings.cluster, drained=is_drained)


def _config_of(settings: WatcherSettings) -> KubeConfig | None:
    if settings.kubeconfig is None:
        return None
    return read_kube_config(settings.kubeconfig, settings.context)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fleetbus-watcher",
        description="Publish every change of one Kubernetes cluster, or of a share of a fleet, to"
        " NATS.",
        epilog="Every setting is an environment variable FLEETBUS_WATCHER_* or FLEETBUS_* too; an"
        " option wins over it. FLEETBUS_NATS_URL is where NATS is (nats://127.0.0.1:4222); --pool"
        " also needs FLEETBUS_PROVIDERS and, outside of the hub, FLEETBUS_HUB_KUBECONFIG.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cluster", help="name of the cluster in the fleet; needed without --pool")
    which.add_argument(
        "--pool", action="store_true", help="share the clusters of FLEETBUS_PROVIDERS with others"
    )
    parser.add_argument("--kubeconfig", type=pathlib.Path, help="default: the service account")
    parser.add_argument("--context", help="default: the kubeconfig's current context")
    parser.add_argument("--replica", help="name of this process; default: the host name")
    return parser.parse_args(argv)


async def _main(argv: Sequence[str] | None) -> None:
    given = vars(_arguments(argv))
    is_pool = given.pop("pool")
    if is_pool:
        given["cluster"] = ANY_CLUSTER
    shared = load_settings(SharedSettings)
    settings = load_settings(WatcherSettings, **given)
    pool = load_settings(PoolSettings)
    set_up_logs(shared.log_format, shared.log_level)
    # Misspelt: what it should hide would be shown.
    tell_unknown_settings(WatcherSettings, PoolSettings)
    if is_pool:
        await run_until_stopped(watcher=run_pool(settings, pool, shared))
    else:
        await run_until_stopped(watcher=run(settings, shared))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The command `fleetbus-watcher`."""
    return_large_blocks()
    import_light()  # no user code runs here, so the typed models need not be loaded
    sys.exit(run_service("fleetbus-watcher", lambda: _main(argv)))
