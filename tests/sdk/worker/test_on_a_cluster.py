"""Everything on three Valkeys: each key, script and transaction of ours stays in one slot (P16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.snapshot import ListQuery
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, fleet_rig
from support.servers.valkey_cluster import valkey_cluster

PODS = "v1/pods"
CLUSTERS = ("eu1", "us1", "hub", "a")
"""One in each of four shards."""


@pytest.mark.slow
async def test_p16_a_fleet_runs_on_a_cluster_of_three_masters(nats_url: str, tmp_path: Path):
    async with (
        valkey_cluster(tmp_path) as servers,
        fleet_rig(
            *CLUSTERS,
            folder=tmp_path,
            nats_url=nats_url,
            valkey_url=servers.url,
            resources=(PODS,),
            shards=4,
        ) as rig,
    ):
        controller = Controller("pods")
        controller.watch(PODS, selector="app=web")
        recorder = Recorder(controller, PODS)
        for name in CLUSTERS:
            rig.clusters[name].create(PODS, pod("old", labels={"app": "web"}), "default")
        rig.start_reconciler(controller)
        for name in CLUSTERS:
            rig.start_watcher(name)
        await rig.synced("core/pods")
        for name in CLUSTERS:
            rig.clusters[name].create(PODS, pod("new", labels={"app": "web"}), "default")
            rig.clusters[name].delete(PODS, "default", "old")
        for name in CLUSTERS:
            await eventually(lambda name=name: recorder.of(name, "default", "new"))
            await eventually(lambda name=name: _was_gone(recorder, name))
        await rig.quiet("pods")
        page = await rig.reader.list(ListQuery(clusters=CLUSTERS, resource="core/pods"))
        assert [(entry.cluster, entry.name) for entry in page.entries] == [
            (name, "new") for name in sorted(CLUSTERS)
        ]
        keys = SnapshotKeys(4)
        holders = {(await servers.owner_of(keys.feed(shard))).url for shard in range(4)}
        assert len(holders) > 1, "the shards are on several masters"


def _was_gone(recorder: Recorder, cluster: str) -> bool:
    runs = recorder.of(cluster, "default", "old")
    return bool(runs) and runs[-1].object is None
