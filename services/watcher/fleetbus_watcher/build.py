"""Builds everything that watches one cluster; the rest of the wiring is in `main`."""

from __future__ import annotations

import asyncio

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Window
from fleetbus.kube.client import KubeClient
from fleetbus_watcher.cluster_identity import ClusterIdentity
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.follow.context import UNKNOWN, ClusterContext
from fleetbus_watcher.follow.grant_client import GrantClient
from fleetbus_watcher.follow.list_limits import ClusterLists, ProcessLists
from fleetbus_watcher.heartbeats import Heartbeats
from fleetbus_watcher.publish.checkpoint import Checkpoints
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.reachability import Reachability
from fleetbus_watcher.resources.effective_spec import EffectiveSpec
from fleetbus_watcher.settings import WatcherSettings


def build_cluster(
    settings: WatcherSettings, client: KubeClient, *, bus: Bus, window: Window, lists: ProcessLists
) -> tuple[ClusterWatcher, Heartbeats]:
    """Build the watcher of one cluster, and the heartbeats that report it.

    Bus, window and list slots are those of the process.
    """
    cluster = settings.cluster
    replica = ReplicaName(settings.replica, cluster)
    kv, changed = KeyValue(bus), asyncio.Event()
    publisher = Publisher(bus=bus, window=window)
    reachability = Reachability(client, cluster, changed)
    detector = LossDetector(bus=bus, publisher=publisher, cluster=cluster, replica=replica)
    context = ClusterContext(
        settings=settings,
        client=client,
        kv=kv,
        publisher=publisher,
        replica=replica,
        loss_detector=detector,
        checkpoints=Checkpoints(kv, cluster, detector.check, settings.transform_version),
        lists=ClusterLists(settings.lists_at_once, lists),
        grants=GrantClient(
            kv=kv, cluster=cluster, replica=replica, patience=settings.grant_patience
        ),
        reachability=reachability,
        identity=ClusterIdentity(client, reachability),
        changed=changed,
        types_changed=asyncio.Event(),
        incarnation=UNKNOWN,
    )
    watcher = ClusterWatcher(context, EffectiveSpec(kv, settings), bus)
    return watcher, Heartbeats(watcher=watcher, context=context)
