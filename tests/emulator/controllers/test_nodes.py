"""Nodes come, fall ill, recover and go, and what becomes of their pods."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    DEPLOYMENTS,
    NODES,
    PODS,
    conditions,
    live,
    names,
    pod,
    reasons,
    workload,
)
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import CONTROL_PLANE, ManualClock, Simulator, Timing, simulate

LEASES = "coordination.k8s.io/v1/leases"
TOLERATED = timedelta(seconds=300)
UNREACHABLE = "node.kubernetes.io/unreachable"
DEAD = [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def simulator(clock: ManualClock) -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1, clock=clock), seed=1) as (simulator,):
            await simulator.settled()
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def set_ready(cluster: Cluster, name: str, status: str) -> None:
    node = live(cluster, NODES, name, "")
    for condition in node["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition["status"] = status
    cluster.update_status(NODES, node)


def taints(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    spec = live(cluster, NODES, name, "")["spec"]
    return sorted((t["key"], t["effect"]) for t in spec.get("taints", []))


def placed(cluster: Cluster) -> list[tuple[str, str]]:
    """The nodes of the pods and whether they are ready."""
    pods = cluster.list(PODS, "default")
    return sorted((p["spec"]["nodeName"], conditions(p)["Ready"][0]) for p in pods)


async def test_a_node_is_ready_and_has_a_lease(cluster: Cluster):
    node = live(cluster, NODES, "sim-node-1", "")
    assert conditions(node)["Ready"] == ("True", "KubeletReady")
    assert {a["type"] for a in node["status"]["addresses"]} == {"InternalIP", "Hostname"}
    lease = live(cluster, LEASES, "sim-node-1", "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == "sim-node-1"
    assert lease["spec"]["leaseDurationSeconds"] == 40


async def test_a_new_node_comes_to_life_and_takes_pods(simulator: Simulator, cluster: Cluster):
    for name in ("sim-node-1", "sim-node-2"):
        cluster.patch(NODES, None, name, {"spec": {"unschedulable": True}})
    cluster.create(PODS, pod("p"))
    await simulator.settled()
    assert conditions(live(cluster, PODS, "p"))["PodScheduled"] == ("False", "Unschedulable")
    assert reasons(cluster, "p") == ["FailedScheduling"]
    cluster.create(NODES, {"metadata": {"name": "fresh"}})
    await simulator.settled()
    assert placed(cluster) == [("fresh", "True")]
    assert taints(cluster, "sim-node-1") == [("node.kubernetes.io/unschedulable", "NoSchedule")]


async def test_without_a_kubelet_a_new_node_stays_as_it_was_made():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=CONTROL_PLANE) as (simulator,):
        node = cluster.create(NODES, {"metadata": {"name": "fresh"}})
        await simulator.settled()
    assert cluster.list(NODES) == [node]
    assert cluster.list(LEASES) == []


async def test_a_dead_node_loses_its_pods_when_they_have_waited_long_enough(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(DEPLOYMENTS, workload("web", replicas=4))
    await simulator.settled()
    set_ready(cluster, "sim-node-1", "Unknown")
    await simulator.settled()
    assert taints(cluster, "sim-node-1") == DEAD
    assert placed(cluster) == [("sim-node-1", "False")] * 2 + [("sim-node-2", "True")] * 2
    await clock.advance(TOLERATED - timedelta(seconds=5))
    assert len(names(cluster, PODS)) == 4
    await clock.advance(timedelta(seconds=10))
    left = placed(cluster)
    assert left.count(("sim-node-2", "True")) == 4
    stuck = [p for p in cluster.list(PODS) if p["spec"]["nodeName"] == "sim-node-1"]
    assert len(stuck) == 2  # nobody there can tell that they have stopped
    assert all("deletionTimestamp" in p["metadata"] for p in stuck)
    cluster.delete(NODES, None, "sim-node-1")
    await simulator.settled()
    assert placed(cluster) == [("sim-node-2", "True")] * 4
    assert names(cluster, LEASES, "kube-node-lease") == ["sim-node-2"]


async def test_a_node_that_recovers_in_time_keeps_its_pods(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(DEPLOYMENTS, workload("web", replicas=4))
    await simulator.settled()
    before = names(cluster, PODS)
    for status in ("False", "True"):
        set_ready(cluster, "sim-node-1", status)
        await clock.advance(timedelta(seconds=200))
    assert names(cluster, PODS) == before
    assert {ready for _, ready in placed(cluster)} == {"True"}
    assert taints(cluster, "sim-node-1") == []
    await clock.advance(TOLERATED)
    assert names(cluster, PODS) == before


async def test_a_taint_of_a_person_drives_pods_out_and_stays(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    for seconds in (None, 60):
        toleration: dict[str, Any] = {"key": "example.com/old", "operator": "Exists"}
        toleration |= {"tolerationSeconds": seconds, "effect": "NoExecute"} if seconds else {}
        selector = {"kubernetes.io/hostname": "sim-node-1"}
        name = f"for-{seconds or 'ever'}"
        cluster.create(PODS, pod(name, nodeSelector=selector, tolerations=[toleration]))
    await simulator.settled()
    taint = {"key": "example.com/old", "effect": "NoExecute"}
    cluster.patch(NODES, None, "sim-node-1", {"spec": {"taints": [taint]}})
    await clock.advance(timedelta(seconds=55))
    assert names(cluster, PODS) == ["for-60", "for-ever"]
    await clock.advance(timedelta(seconds=10))
    assert names(cluster, PODS) == ["for-ever"]
    assert taints(cluster, "sim-node-1") == [("example.com/old", "NoExecute")]


async def test_pressure_is_a_taint(simulator: Simulator, cluster: Cluster):
    node = live(cluster, NODES, "sim-node-1", "")
    for condition in node["status"]["conditions"]:
        if condition["type"] == "DiskPressure":
            condition["status"] = "True"
    cluster.update_status(NODES, node)
    await simulator.settled()
    assert taints(cluster, "sim-node-1") == [("node.kubernetes.io/disk-pressure", "NoSchedule")]


async def test_pods_go_where_their_affinity_and_tolerations_let_them(
    simulator: Simulator, cluster: Cluster
):
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    cluster.patch(NODES, None, "sim-node-1", {"spec": {"taints": [taint]}})
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["sim-node-1"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    affinity: dict[str, Any] = {"affinity": {"nodeAffinity": rule}}
    for name, value in (("fits", "gpu"), ("intolerant", "cpu")):
        toleration = {"key": "dedicated", "value": value, "operator": "Equal"}
        cluster.create(PODS, pod(name, tolerations=[toleration], **affinity))
    cluster.create(PODS, pod("free"))
    await simulator.settled()
    nodes = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in cluster.list(PODS)}
    assert nodes == {"fits": "sim-node-1", "intolerant": None, "free": "sim-node-2"}


async def test_leases_are_renewed_when_there_is_a_heartbeat_and_by_the_living_only(
    clock: ManualClock,
):
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing(heartbeat=timedelta(seconds=10))) as (simulator,):
        await simulator.settled()
        set_ready(cluster, "sim-node-2", "Unknown")
        await clock.advance(timedelta(seconds=35))
        renewed = [lease["spec"]["renewTime"][14:19] for lease in cluster.list(LEASES)]
        assert renewed == ["00:30", "00:00"]
