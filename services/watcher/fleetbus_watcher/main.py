"""The composition root of the watcher, and its command."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import pathlib
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final, NoReturn

import structlog

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Window, open_window
from fleetbus.clusters.providers.build import build_clusters, wait_for_hub
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, wait_for_kube_config
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus_watcher import metrics
from fleetbus_watcher.cluster_identity import ClusterIdentity
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.follow.context import UNKNOWN, ClusterContext
from fleetbus_watcher.follow.grant_client import GrantClient
from fleetbus_watcher.follow.list_limits import ClusterLists, ProcessLists
from fleetbus_watcher.heartbeats import Heartbeats
from fleetbus_watcher.pool.cluster_runner import ClusterRunner, ProcessContext
from fleetbus_watcher.pool.member import PoolMember
from fleetbus_watcher.publish.checkpoint import Checkpoints
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.reachability import Reachability
from fleetbus_watcher.resources.effective_spec import EffectiveSpec
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from fleetbus_watcher.timing import USUAL, WatcherTiming

log = structlog.get_logger()

ANY_CLUSTER: Final = "any"
"""The cluster name in the settings of a pool; each cluster's work gets the cluster's own name."""
_ALL: Final = "*"
"""The cluster label of the publish window of a pool, which all its clusters share."""
_MEMBER: Final = re.compile(r"[-_a-zA-Z0-9]+(\.[-_a-zA-Z0-9]+)*")
_STARTS_AT_ONCE: Final = 16
_HANGS_AFTER: Final = timedelta(seconds=30)
"""A process whose event loop was blocked for so long is better restarted."""
_LIVENESS_INTERVAL: Final = timedelta(seconds=1)
# <malloc.h> of glibc
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 128 * 1024


async def run(
    settings: WatcherSettings,
    shared: SharedSettings,
    *,
    config: KubeConfig | None = None,
    timing: WatcherTiming = USUAL,
) -> None:
    """Watch one cluster until cancelled; the cancellation is a clean stop (W21).

    Args:
        settings: what to watch.
        shared: where NATS is, and how this process reports its health.
        config: access to the cluster; None means the settings' kubeconfig or service account.
        timing: the times that no setting changes.

    Raises:
        BusError: NATS forbids a subject (rule B13).
    """
    health = Health()
    started = health.starting()
    async with (
        health.serve(shared.health_host, shared.health_port, shared.health_port_file),
        _member(settings, config, health) as client,
        connected(shared.nats, name=f"watcher.{settings.cluster}", health=health) as bus,
        open_window(bus) as window,
    ):
        lists = ProcessLists(settings.lists_at_once)
        watcher, heartbeats = _build_cluster(
            settings, client, timing=timing, bus=bus, window=window, lists=lists
        )
        health.ready_when("sync", watcher.unsettled)
        health.ready_when("access", partial(_refused, watcher))
        started()
        try:
            await run_group(
                cluster=watcher.run(),
                heartbeats=heartbeats.run(),
                bus=bus.failure(),
                liveness=_report_liveness(health, settings.cluster, window),
            )
        finally:
            await _stop(settings, bus, window, heartbeats)


async def run_pool(
    settings: WatcherSettings,
    pool: PoolSettings,
    shared: SharedSettings,
    *,
    timing: WatcherTiming = USUAL,
) -> None:
    """Watch a share of the fleet until cancelled; then other members of the pool take it over.

    Args:
        settings: what to watch of each cluster; `replica` is the name of this member.
        pool: how the clusters are shared.
        shared: where NATS, the hub and the clusters are.
        timing: the times that no setting changes.

    Raises:
        BusError: NATS forbids a subject (rule B13).
        ConfigError: a provider is invalid or missing, or the member's name cannot be used.
    """
    _check_pool(settings, shared)
    health = Health()
    started = health.starting()
    async with (
        health.serve(shared.health_host, shared.health_port, shared.health_port_file),
        _fleet(shared, health) as clusters,
        # No cluster's name begins like this, so no cluster's watcher has the rights to our inbox.
        connected(shared.nats, name=f"_pool.{settings.replica}", health=health) as bus,
        open_window(bus) as window,
    ):
        lists = ProcessLists(pool.lists_at_once)
        context = ProcessContext(
            settings=settings,
            timing=timing,
            bus=bus,
            build=partial(_build_cluster, timing=timing, bus=bus, window=window, lists=lists),
            start_slots=asyncio.Semaphore(_STARTS_AT_ONCE),
        )
        member = PoolMember(
            name=settings.replica,
            settings=pool,
            clusters=clusters,
            bus=bus,
            create_runner=partial(ClusterRunner, context=context),
        )
        health.ready_when("pool", member.waiting)
        health.ready_when("sync", member.unsettled)
        beat = health.liveness("pool", _HANGS_AFTER)
        started()
        await run_group(
            clusters=clusters.run(),
            pool=member.run(beat),
            bus=bus.failure(),
            liveness=_report_liveness(health, _ALL, window),
        )


def _check_pool(settings: WatcherSettings, shared: SharedSettings) -> None:
    if not _MEMBER.fullmatch(settings.replica):
        raise ConfigError(
            f"setting FLEETBUS_WATCHER_REPLICA: {settings.replica!r}: the name of a pool member may"
            " contain only letters, digits, -, _ and single dots"
        )
    if settings.kubeconfig or settings.context:
        raise ConfigError(
            "settings FLEETBUS_WATCHER_KUBECONFIG and FLEETBUS_WATCHER_CONTEXT (--kubeconfig,"
            " --context) are for --cluster: with --pool the access data is in FLEETBUS_PROVIDERS"
        )
    if not shared.providers and not shared.hub_cluster:
        raise ConfigError("setting FLEETBUS_PROVIDERS: it is needed with --pool")


def _build_cluster(
    settings: WatcherSettings,
    client: KubeClient,
    *,
    timing: WatcherTiming,
    bus: Bus,
    window: Window,
    lists: ProcessLists,
) -> tuple[ClusterWatcher, Heartbeats]:
    """Build the watcher of one cluster, and the heartbeats that report it.

    Bus, window and list slots are those of the process.
    """
    cluster = settings.cluster
    replica = ReplicaName(settings.replica, cluster)
    kv, changed = KeyValue(bus), asyncio.Event()
    publisher = Publisher(bus=bus, window=window)
    reachability = Reachability(client, cluster, changed, timing)
    detector = LossDetector(
        bus=bus, publisher=publisher, cluster=cluster, replica=replica, timing=timing
    )
    context = ClusterContext(
        settings=settings,
        timing=timing,
        client=client,
        kv=kv,
        publisher=publisher,
        replica=replica,
        loss_detector=detector,
        checkpoints=Checkpoints(kv, cluster, detector.check, settings.transform_version),
        lists=ClusterLists(settings.lists_at_once, lists),
        grants=GrantClient(
            kv=kv,
            cluster=cluster,
            replica=replica,
            patience=settings.grant_patience,
            timing=timing,
        ),
        reachability=reachability,
        identity=ClusterIdentity(client, reachability),
        changed=changed,
        types_changed=asyncio.Event(),
        incarnation=UNKNOWN,
    )
    watcher = ClusterWatcher(context, EffectiveSpec(kv, settings), bus)
    return watcher, Heartbeats(watcher=watcher, context=context)


async def _report_liveness(health: Health, cluster: str, window: Window) -> NoReturn:
    """Report that the event loop runs, and how full the publish window is, until cancelled.

    A stalled API server or bus is no reason to restart the process.
    """
    beat = health.liveness("loop", _HANGS_AFTER)
    while True:
        beat()
        metrics.show_window(cluster, window)
        await asyncio.sleep(_LIVENESS_INTERVAL.total_seconds())


def _refused(watcher: ClusterWatcher) -> str:
    """Return why the API server refuses our credentials, which belong to this deployment."""
    reason, message = watcher.trouble
    return f"{reason}: {message}" if reason == "Unauthorized" else ""


async def _stop(
    settings: WatcherSettings, bus: Bus, window: Window, heartbeats: Heartbeats
) -> None:
    """Wait for acknowledgements and send a final heartbeat; reading has stopped (W21)."""
    if not bus.is_connected or bus.has_failed:
        return
    is_drained = await window.drain(settings.stop_patience)
    if is_drained:  # else the bus does not answer, and a heartbeat would only wait as long again
        try:
            async with asyncio.timeout(settings.stop_patience.total_seconds()):
                await heartbeats.publish()
        except TimeoutError:
            is_drained = False
    log.info("watcher_stopped", cluster=settings.cluster, drained=is_drained)


@asynccontextmanager
async def _fleet(shared: SharedSettings, health: Health) -> AsyncGenerator[Clusters]:
    """The clusters of the providers, once the hub's kubeconfig can be read."""
    await wait_for_hub(shared, health)
    yield build_clusters(shared)


@asynccontextmanager
async def _member(
    settings: WatcherSettings, config: KubeConfig | None, health: Health
) -> AsyncGenerator[KubeClient]:
    """The client of the cluster, once its kubeconfig can be read."""
    if config is None and settings.kubeconfig is not None:
        config = await wait_for_kube_config(
            settings.kubeconfig, settings.context, name="kubeconfig", health=health
        )
    async with KubeClient(config, user_agent=f"fleetbus-watcher/{settings.replica}") as client:
        yield client


def return_large_blocks() -> None:
    """Make malloc return every large block to the kernel as soon as it is freed (W14).

    glibc raises its thresholds with each large block that is freed, up to 32 MiB; from then on
    pages of a list are allocated from the heap, and what is allocated meanwhile prevents their
    return. Fixed thresholds halve what a list of 100,000 objects adds to the watcher's memory.
    Other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fleetbus-watcher",
        description="Publish every change of one Kubernetes cluster, or of a share of a fleet, to"
        " NATS.",
        epilog="Every setting is also an environment variable FLEETBUS_WATCHER_* or FLEETBUS_*; an"
        " option overrides it. FLEETBUS_NATS_URL is the address of NATS (nats://127.0.0.1:4222);"
        " --pool also needs FLEETBUS_PROVIDERS and, outside of the hub, FLEETBUS_HUB_KUBECONFIG.",
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--cluster", help="name of the cluster in the fleet; needed without --pool")
    scope.add_argument(
        "--pool", action="store_true", help="share the clusters of FLEETBUS_PROVIDERS with others"
    )
    parser.add_argument("--kubeconfig", type=pathlib.Path, help="default: the service account")
    parser.add_argument("--context", help="default: the kubeconfig's current context")
    parser.add_argument("--replica", help="name of this process; default: the host name")
    return parser.parse_args(argv)


async def _main(argv: Sequence[str] | None) -> None:
    options = vars(_arguments(argv))
    is_pool = options.pop("pool")
    if is_pool:
        options["cluster"] = ANY_CLUSTER
    shared = load_settings(SharedSettings)
    settings = load_settings(WatcherSettings, **options)
    pool = load_settings(PoolSettings)
    set_up_logs(shared.log_format, shared.log_level)
    levels = shared.log_levels_file
    # A misspelt setting that redacts something would leave it visible.
    tell_unknown_settings(WatcherSettings, PoolSettings)
    if is_pool:
        await run_until_stopped(
            watcher=run_pool(settings, pool, shared),
            levels=follow_levels(levels),
        )
    else:
        await run_until_stopped(watcher=run(settings, shared), levels=follow_levels(levels))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command `fleetbus-watcher`."""
    return_large_blocks()
    sys.exit(run_service("fleetbus-watcher", lambda: _main(argv)))
