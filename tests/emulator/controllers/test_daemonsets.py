"""DaemonSets: a pod per node, as nodes come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    DAEMON_SETS,
    NODES,
    PODS,
    conditions,
    live,
    names,
    pod_spec,
    workload,
)
from fleetbus_emulator.apiserver import Change, Cluster
from fleetbus_emulator.controllers import CONTROL_PLANE, Simulator, simulate

REVISIONS = "apps/v1/controllerrevisions"


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1), seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def placed(cluster: Cluster) -> list[str]:
    return sorted(p["spec"]["nodeName"] for p in cluster.list(PODS, "default"))


def ready_pods(cluster: Cluster) -> int:
    pods = cluster.list(PODS, "default")
    return sum(conditions(p).get("Ready", ("",))[0] == "True" for p in pods)


def set_image(cluster: Cluster, image: str) -> None:
    patch = {"spec": {"template": {"spec": pod_spec(image)}}}
    cluster.patch(DAEMON_SETS, "default", "agent", patch)


async def deployed(simulator: Simulator, nodes: int = 2, **spec: Any) -> None:
    for number in range(3, nodes + 1):
        simulator.cluster.create(NODES, {"metadata": {"name": f"sim-node-{number}"}})
    simulator.cluster.create(DAEMON_SETS, workload("agent", **spec))
    await simulator.settled()


async def test_a_daemon_set_has_a_pod_on_every_node_that_suits(
    simulator: Simulator, cluster: Cluster
):
    body = workload("agent")
    body["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
    cluster.create(DAEMON_SETS, body)
    await simulator.settled()
    assert placed(cluster) == ["sim-node-1", "sim-node-2"]
    labels = {"kubernetes.io/os": "linux"}
    cluster.create(NODES, {"metadata": {"name": "extra", "labels": labels}})
    cluster.patch(NODES, None, "sim-node-1", {"metadata": {"labels": {"kubernetes.io/os": "x"}}})
    await simulator.settled()
    assert placed(cluster) == ["extra", "sim-node-2"]
    status = live(cluster, DAEMON_SETS, "agent")["status"]
    assert status == {
        "observedGeneration": 1,
        "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2,
        "numberMisscheduled": 0,
        "numberReady": 2,
        "updatedNumberScheduled": 2,
        "numberAvailable": 2,
    }


async def test_nodes_that_go_take_their_pod_with_them(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, nodes=4)
    cluster.delete(NODES, None, "sim-node-2")
    await simulator.settled()
    assert placed(cluster) == ["sim-node-1", "sim-node-3", "sim-node-4"]
    assert live(cluster, DAEMON_SETS, "agent")["status"]["desiredNumberScheduled"] == 3


async def test_a_taint_keeps_new_pods_away_and_the_strong_one_drives_them_out(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    for effect, left in (("NoSchedule", 2), ("NoExecute", 1)):
        taints = [{"key": "example.com/special", "effect": effect}]
        cluster.patch(NODES, None, "sim-node-1", {"spec": {"taints": taints}})
        await simulator.settled()
        assert len(placed(cluster)) == left
        assert live(cluster, DAEMON_SETS, "agent")["status"]["desiredNumberScheduled"] == 1
    body = workload("other")
    body["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    cluster.create(DAEMON_SETS, body)
    await simulator.settled()
    assert Counter(placed(cluster)) == {"sim-node-1": 1, "sim-node-2": 2}


async def test_a_cordoned_node_keeps_its_pod_and_gets_one(simulator: Simulator, cluster: Cluster):
    cluster.patch(NODES, None, "sim-node-1", {"spec": {"unschedulable": True}})
    await deployed(simulator)
    assert placed(cluster) == ["sim-node-1", "sim-node-2"]


@pytest.mark.parametrize(
    ("rolling", "least", "most"),
    [({}, 3, 4), ({"maxUnavailable": "50%"}, 2, 4), ({"maxSurge": 1, "maxUnavailable": 0}, 4, 5)],
)
async def test_a_daemon_set_updates_within_its_limits(
    simulator: Simulator, cluster: Cluster, rolling: dict[str, Any], least: int, most: int
):
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    await deployed(simulator, nodes=4, updateStrategy=strategy)
    counts: list[tuple[int, int]] = []

    def note(_: Change) -> None:
        pods = [p for p in cluster.list(PODS) if "deletionTimestamp" not in p["metadata"]]
        counts.append((ready_pods(cluster), len(pods)))

    stop = cluster.subscribe(note)
    set_image(cluster, "nginx:2")
    await simulator.settled()
    stop()
    assert min(ready for ready, _ in counts) == least
    assert max(pods for _, pods in counts) == most
    assert {p["spec"]["containers"][0]["image"] for p in cluster.list(PODS)} == {"nginx:2"}
    assert placed(cluster) == [f"sim-node-{n}" for n in range(1, 5)]
    assert sorted(r["revision"] for r in cluster.list(REVISIONS, "default")) == [1, 2]


async def test_on_delete_replaces_nothing_by_itself(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, updateStrategy={"type": "OnDelete"})
    set_image(cluster, "nginx:2")
    await simulator.settled()
    assert live(cluster, DAEMON_SETS, "agent")["status"].get("updatedNumberScheduled", 0) == 0
    cluster.delete(PODS, "default", names(cluster, PODS)[0])
    await simulator.settled()
    assert live(cluster, DAEMON_SETS, "agent")["status"]["updatedNumberScheduled"] == 1


async def test_without_a_scheduler_its_pods_wait_for_their_node():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=CONTROL_PLANE, nodes=2) as (simulator,):
        cluster.create(DAEMON_SETS, workload("agent"))
        await simulator.settled()
    pods = cluster.list(PODS, "default")
    assert [p["status"]["phase"] for p in pods] == ["Pending", "Pending"]
    assert live(cluster, DAEMON_SETS, "agent")["status"]["currentNumberScheduled"] == 2
    (term,) = pods[0]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchFields"][0]["key"] == "metadata.name"
