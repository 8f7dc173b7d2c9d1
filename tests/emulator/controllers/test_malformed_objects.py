"""Objects that nobody would write: the simulation lives on, and so do all others."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import DEPLOYMENTS, JOBS, PODS, job, live, pod, workload
from fleetbus_emulator.apiserver import ApiError, Cluster
from fleetbus_emulator.apiserver.json_tree import as_list, as_object
from fleetbus_emulator.controllers import ManualClock, simulate

ODDITIES: list[Any] = [
    None, "", "x", "-1", "1e999", "9" * 40, 0, -1, 7, 1.5, True, [], {}, [None], [[]], [{}],
    {"a": None}, {"matchLabels": {"app": "odd"}}, {"uid": 1}, [{"name": 3}], "2030-13-41T99:00:00Z",
]  # fmt: skip
KINDS = (
    DEPLOYMENTS, "apps/v1/replicasets", "apps/v1/statefulsets", "apps/v1/daemonsets", JOBS, PODS,
    "batch/v1/cronjobs", "v1/services", "v1/nodes", "policy/v1/poddisruptionbudgets",
    "v1/endpoints", "discovery.k8s.io/v1/endpointslices", "apps/v1/controllerrevisions",
)  # fmt: skip
UID = "from-a-backup-"


def base(gvr: str, name: str) -> dict[str, Any]:
    if gvr == PODS:
        return pod(name)
    if gvr == JOBS:
        return job(name)
    body = workload(name, replicas=2)
    if gvr.startswith("batch"):
        body["spec"] = {"schedule": "* * * * *", "jobTemplate": {"spec": job("j")["spec"]}}
    elif not gvr.startswith("apps"):
        body["spec"] = {}
    return body


def spoiled(random: Random, value: Any) -> Any:
    """The value with some of what is in it replaced by oddities."""
    if random.random() < 0.06:
        return random.choice(ODDITIES)
    fields, items = as_object(value), as_list(value)
    if fields is not None:
        return {name: spoiled(random, item) for name, item in fields.items()}
    return value if items is None else [spoiled(random, item) for item in items]


def spoiled_object(random: Random, body: dict[str, Any]) -> dict[str, Any]:
    """The object with its name, and all else as it may turn out."""
    meta = {name: spoiled(random, value) for name, value in body["metadata"].items()}
    odd = {name: spoiled(random, value) for name, value in body.items()}
    return {**odd, "metadata": {**meta, "name": body["metadata"]["name"]}}


def meddle(random: Random, cluster: Cluster) -> None:
    """Bring in a spoiled object, as a client or from a backup, or spoil one that is there."""
    gvr, name = random.choice(KINDS), f"odd-{random.randrange(40)}"
    with contextlib.suppress(ApiError):
        if random.random() < 0.3:
            cluster.create(gvr, spoiled_object(random, base(gvr, name)))
        elif random.random() < 0.5:
            cluster.restore([(gvr, backed_up(random, gvr, name))])
        elif candidates := [
            o for o in cluster.list(gvr) if not o["metadata"]["uid"].startswith(UID)
        ]:
            spoil(random, cluster, gvr, random.choice(candidates))


def backed_up(random: Random, gvr: str, name: str) -> dict[str, Any]:
    """A spoiled object as nobody has checked it."""
    body = {**base(gvr, name), "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}}
    uid = f"{UID}{random.randrange(10**9)}"
    owner = {"kind": "ReplicaSet", "name": name, "uid": uid, "controller": True}
    labels = {"app": f"odd-{random.randrange(40)}"}
    meta = {"labels": labels, "annotations": {"sim.fleetbus.dev/fail": "exit"}}
    meta |= {"ownerReferences": [owner], "finalizers": ["example.com/a"], "generation": 1}
    group_version, _, plural = gvr.rpartition("/")
    kind = {"pods": "Pod", "jobs": "Job", "nodes": "Node", "services": "Service"}.get(plural, "X")
    fixed = {"name": name, "uid": uid, "creationTimestamp": "2030-01-01T00:00:00Z"}
    namespace = {} if plural == "nodes" else {"namespace": "default"}
    odd = spoiled_object(random, {**body, "metadata": {**body["metadata"], **meta}})
    odd["metadata"] |= {**fixed, **namespace}
    return {**odd, "apiVersion": group_version, "kind": kind}


def spoil(random: Random, cluster: Cluster, gvr: str, obj: dict[str, Any]) -> None:
    meta, section = obj["metadata"], random.choice(("spec", "status"))
    patch = {section: spoiled(random, obj.get(section, {}))}
    subresource = "status" if section == "status" else ""
    cluster.patch(gvr, meta.get("namespace"), meta["name"], patch, subresource=subresource)


@pytest.mark.parametrize("seed", range(6))
async def test_odd_objects_stop_neither_the_loop_nor_anybody_else(seed: int):
    random = Random(seed)
    clock = ManualClock()
    cluster = Cluster("alpha", seed=seed, clock=clock)
    with capture_logs() as logs:
        async with simulate(cluster, seed=seed, schedules=True) as (simulator,):
            for _ in range(60):
                meddle(random, cluster)
            await simulator.settled()
            cluster.create("v1/namespaces", {"metadata": {"name": "sound"}})
            cluster.create(DEPLOYMENTS, workload("web", replicas=3), "sound")
            cluster.create(JOBS, job("j"), "sound")
            await simulator.settled()
            deployment = live(cluster, DEPLOYMENTS, "web", "sound")
            assert deployment["status"]["readyReplicas"] == 3
            assert live(cluster, JOBS, "j", "sound")["status"]["succeeded"] == 1
    unreadable = [line for line in logs if line["event"] == "simulated_change_unreadable"]
    assert unreadable == [], unreadable
