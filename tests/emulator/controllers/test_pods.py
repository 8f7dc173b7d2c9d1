"""Pods are scheduled, run, misbehave on request, end and are stopped."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import CONFIG_MAPS, PODS, conditions, live, names, pod, pod_spec
from fleetbus_emulator.apiserver import Change, Cluster
from fleetbus_emulator.controllers import ManualClock, Simulator, Timing, simulate

NODES = "v1/nodes"


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1), seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


async def grown(simulator: Simulator, settings: dict[str, str] | None = None, **spec: Any):
    """The pod `p` when there is no more to happen to it; settings are annotations of our domain."""
    annotations = {f"sim.fleetbus.dev/{name}": value for name, value in (settings or {}).items()}
    simulator.cluster.create(PODS, pod("p", annotations, **spec))
    await simulator.settled()
    return live(simulator.cluster, PODS, "p")


def main_state(obj: dict[str, Any]) -> dict[str, Any]:
    return obj["status"]["containerStatuses"][0]["state"]


async def test_a_pod_runs_and_is_ready(simulator: Simulator):
    grown_pod = await grown(simulator, initContainers=[{"name": "init", "image": "busybox:1"}])
    status = grown_pod["status"]
    assert grown_pod["spec"]["nodeName"] in ("sim-node-1", "sim-node-2")
    assert status["phase"] == "Running"
    assert status["podIP"].startswith("10.244.")
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert {name: c[0] for name, c in conditions(grown_pod).items()} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    (container,) = status["containerStatuses"]
    assert (container["name"], container["ready"], container["restartCount"]) == ("main", True, 0)
    assert container["state"]["running"]["startedAt"]
    assert status["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"


async def test_watchers_see_every_step_of_its_life(simulator: Simulator, cluster: Cluster):
    steps: list[tuple[str, str, bool]] = []

    def note(change: Change) -> None:
        if change.resource == "pods":
            ready = conditions(change.new).get("Ready", ("False",))[0] == "True"
            node = "placed" if change.new["spec"].get("nodeName") else "free"
            steps.append((node, change.new["status"]["phase"], ready))

    stop = cluster.subscribe(note)
    await grown(simulator)
    stop()
    assert steps == [
        ("free", "Pending", False),
        ("placed", "Pending", False),
        ("placed", "Pending", False),  # its containers are being created
        ("placed", "Running", False),
        ("placed", "Running", True),
    ]


async def test_pods_are_spread_and_have_addresses_of_their_own(
    simulator: Simulator, cluster: Cluster
):
    for number in range(10):
        cluster.create(PODS, pod(f"p-{number}"))
    await simulator.settled()
    pods = cluster.list(PODS, "default")
    placed = [p["spec"]["nodeName"] for p in pods]
    assert placed.count("sim-node-1") == placed.count("sim-node-2") == 5
    assert len({p["status"]["podIP"] for p in pods}) == 10


async def test_a_pod_that_no_node_suits_waits_for_one(simulator: Simulator, cluster: Cluster):
    waiting = await grown(simulator, nodeSelector={"disk": "ssd"})
    assert conditions(waiting)["PodScheduled"] == ("False", "Unschedulable")
    cluster.patch(NODES, None, "sim-node-2", {"metadata": {"labels": {"disk": "ssd"}}})
    await simulator.settled()
    placed = live(cluster, PODS, "p")
    assert placed["spec"]["nodeName"] == "sim-node-2"
    assert conditions(placed)["PodScheduled"] == ("True", "")


async def test_a_cordoned_node_gets_no_pods(simulator: Simulator, cluster: Cluster):
    cluster.patch(NODES, None, "sim-node-1", {"spec": {"unschedulable": True}})
    for number in range(4):
        cluster.create(PODS, pod(f"p-{number}"))
    await simulator.settled()
    assert {p["spec"]["nodeName"] for p in cluster.list(PODS)} == {"sim-node-2"}


@pytest.mark.parametrize(
    ("settings", "phase", "reason"),
    [
        ({"never-ready": "true"}, "Running", None),
        ({"fail": "image-pull"}, "Pending", "ImagePullBackOff"),
        ({"fail": "crash-loop"}, "Running", "CrashLoopBackOff"),
        ({"fail": "true"}, "Running", "CrashLoopBackOff"),
    ],
)
async def test_a_pod_misbehaves_on_request(
    simulator: Simulator, settings: dict[str, str], phase: str, reason: str | None
):
    sick = await grown(simulator, settings)
    assert sick["status"]["phase"] == phase
    assert conditions(sick)["Ready"] == ("False", "ContainersNotReady")
    assert main_state(sick).get("waiting", {}).get("reason") == reason


@pytest.mark.parametrize("image", ["sim.fleetbus.dev/crash-loop", "sim.fleetbus.dev/crash-loop:2"])
async def test_an_image_of_that_name_misbehaves_too(simulator: Simulator, image: str):
    sick = await grown(simulator, image=image)
    assert main_state(sick)["waiting"]["reason"] == "CrashLoopBackOff"
    assert sick["status"]["containerStatuses"][0]["restartCount"] > 1


async def test_a_pod_is_evicted_on_request(simulator: Simulator):
    status = (await grown(simulator, {"fail": "evict"}))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")


@pytest.mark.parametrize(
    ("settings", "phase", "code"),
    [({"run-seconds": "0"}, "Succeeded", 0), ({"fail": "exit"}, "Failed", 1)],
)
async def test_a_pod_that_is_not_restarted_ends(
    simulator: Simulator, settings: dict[str, str], phase: str, code: int
):
    ended = await grown(simulator, settings, restartPolicy="Never")
    assert ended["status"]["phase"] == phase
    assert main_state(ended)["terminated"]["exitCode"] == code
    assert conditions(ended)["Ready"][0] == "False"


async def test_a_sick_pod_heals_when_the_setting_is_withdrawn(
    simulator: Simulator, cluster: Cluster
):
    for setting in ("image-pull", "crash-loop"):
        await grown(simulator, {"fail": setting})
        patch = {"metadata": {"annotations": {"sim.fleetbus.dev/fail": None}}}
        cluster.patch(PODS, "default", "p", patch)
        await simulator.settled()
        assert conditions(live(cluster, PODS, "p"))["Ready"] == ("True", "")
        cluster.delete(PODS, "default", "p")
        await simulator.settled()


async def test_a_new_image_restarts_the_container(simulator: Simulator, cluster: Cluster):
    await grown(simulator)
    cluster.patch(PODS, "default", "p", {"spec": pod_spec("nginx:2")})
    await simulator.settled()
    (container,) = live(cluster, PODS, "p")["status"]["containerStatuses"]
    assert (container["image"], container["restartCount"]) == ("nginx:2", 1)
    assert container["ready"]


async def test_a_deleted_pod_on_a_node_is_stopped_before_it_goes(
    simulator: Simulator, cluster: Cluster
):
    await grown(simulator)
    graces: list[tuple[str, int | None]] = []
    stop = cluster.subscribe(
        lambda change: graces.append(
            (change.type, change.new["metadata"].get("deletionGracePeriodSeconds"))
        )
    )
    cluster.delete(PODS, "default", "p")
    await simulator.settled()
    stop()
    assert graces == [("MODIFIED", 30), ("MODIFIED", 0), ("DELETED", 0)]


async def test_a_finalizer_holds_a_stopped_pod(simulator: Simulator, cluster: Cluster):
    body = pod("p")
    body["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.create(PODS, body)
    await simulator.settled()
    cluster.delete(PODS, "default", "p")
    await simulator.settled()
    assert live(cluster, PODS, "p")["metadata"]["deletionGracePeriodSeconds"] == 0
    cluster.patch(PODS, "default", "p", {"metadata": {"finalizers": []}})
    assert names(cluster, PODS) == []


async def test_a_grace_period_may_be_longer_than_times_go(simulator: Simulator):
    await grown(simulator, terminationGracePeriodSeconds=10**15)
    simulator.cluster.delete(PODS, "default", "p")
    await simulator.settled()
    assert simulator.cluster.get(PODS, "default", "p") is None


async def test_the_grace_period_bounds_the_stop():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing(stop=timedelta(hours=1))) as (simulator,):
        await grown(simulator, terminationGracePeriodSeconds=60)
        cluster.delete(PODS, "default", "p")
        await clock.advance(timedelta(seconds=59))
        assert names(cluster, PODS) == ["p"]
        await clock.advance(timedelta(seconds=1))
        assert names(cluster, PODS) == []


async def test_a_pod_that_waits_as_its_annotation_says_can_be_deleted_meanwhile():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster) as (simulator,):
        annotations = {"sim.fleetbus.dev/delay-seconds": "3600"}
        cluster.create(PODS, pod("slow", annotations))
        cluster.create(PODS, pod("fast"))
        await clock.advance(timedelta(seconds=1))
        assert live(cluster, PODS, "fast")["status"]["phase"] == "Running"
        assert main_state(live(cluster, PODS, "slow")) == {
            "waiting": {"reason": "ContainerCreating"}
        }
        cluster.delete(PODS, "default", "slow")
        await simulator.settled()
        assert names(cluster, PODS) == ["fast"]
        assert clock.timers == 0


async def test_nobody_touches_a_pod_without_a_simulator():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster) as (simulator,):
        await grown(simulator)
    before = cluster.resource_version
    cluster.create(PODS, pod("q"))
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}})
    assert cluster.resource_version == before + 2
