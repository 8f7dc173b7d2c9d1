"""A rollout beside a hand-driven distributor: what tests of it share."""

from __future__ import annotations

import json
from typing import Any

from support.objects import config_map
from support.rigs.distributor import Object, Rig

MAPS = "v1/configmaps"
DEPLOYMENTS = "apps/v1/deployments"
T1, T2, T4 = {"name": "t1"}, {"name": "t2"}, {"name": "t4"}
EVERYWHERE = {"clusters": [T1, T2, T4]}
CANARY = {"name": "canary", "clusters": [T1]}


def values(rig: Rig, name: str = "m") -> dict[str, str]:
    """Cluster → the value of the ConfigMap there; "" if there is none."""
    objects = {n: rig.clusters[n].get(MAPS, "default", name) for n in ("t1", "t2", "t4")}
    return {n: obj["data"]["k"] if obj else "" for n, obj in objects.items()}


def rollout(rig: Rig) -> Object:
    return rig.resource()["status"]["rollout"]


def phases(rig: Rig) -> dict[str, str]:
    return {wave["name"]: wave["phase"] for wave in rollout(rig)["waves"]}


async def rounds(rig: Rig, count: int = 6) -> None:
    """Enough rounds for everything that needs no event."""
    for _ in range(count):
        await rig.reconcile()


def vote(rig: Rig, wave: str, gate: str, **body: str) -> None:
    rig.votes[f"{rollout(rig)['votes']}.{wave}.{gate}"] = json.dumps(body).encode()


async def on_v1(rig: Rig, **spec: Any) -> None:
    """Everything is on the first revision, whose waves have passed."""
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={"waves": [CANARY]})
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rollout(rig)["phase"] == "Complete"
    if spec:
        rig.edit(**spec)
        await rounds(rig)


def make_healthy(rig: Rig, cluster: str) -> None:
    deployment = rig.get(cluster, DEPLOYMENTS, "web")
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
    }
    rig.clusters[cluster].update_status(DEPLOYMENTS, deployment | {"status": status})
