"""StatefulSets: names, order, revisions, storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    PODS,
    STATEFUL_SETS,
    conditions,
    live,
    names,
    pod,
    pod_spec,
    workload,
)
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import ManualClock, Simulator, simulate

NEVER_READY = {"sim.fleetbus.dev/never-ready": "true"}
REVISIONS = "apps/v1/controllerrevisions"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def simulator(clock: ManualClock) -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1, clock=clock), seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def readiness(cluster: Cluster) -> list[tuple[str, bool]]:
    pods = cluster.list(PODS, "default")
    return [(p["metadata"]["name"], conditions(p).get("Ready", ("",))[0] == "True") for p in pods]


def images(cluster: Cluster) -> dict[str, str]:
    pods = cluster.list(PODS, "default")
    return {p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in pods}


def set_image(cluster: Cluster, image: str) -> None:
    patch = {"spec": {"template": {"spec": pod_spec(image)}}}
    cluster.patch(STATEFUL_SETS, "default", "db", patch)


async def deployed(simulator: Simulator, **spec: Any) -> dict[str, Any]:
    spec = {"replicas": 3, "serviceName": "db", **spec}
    simulator.cluster.create(STATEFUL_SETS, workload("db", **spec))
    await simulator.settled()
    return live(simulator.cluster, STATEFUL_SETS, "db")["status"]


async def test_a_stateful_set_starts_one_pod_after_the_other(
    simulator: Simulator, cluster: Cluster
):
    states: list[list[tuple[str, bool]]] = []
    stop = cluster.subscribe(lambda _: states.append(readiness(cluster)))
    status = await deployed(simulator)
    stop()
    assert readiness(cluster) == [("db-0", True), ("db-1", True), ("db-2", True)]
    assert all(ready for state in states for _, ready in state[:-1])
    assert {n: status[n] for n in status if n.endswith("eplicas")} == {
        "replicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "currentReplicas": 3,
        "updatedReplicas": 3,
    }
    assert status["currentRevision"] == status["updateRevision"]


async def test_its_pods_know_who_they_are(simulator: Simulator, cluster: Cluster):
    status = await deployed(simulator, ordinals={"start": 5})
    assert names(cluster, PODS) == ["db-5", "db-6", "db-7"]
    live_pod = live(cluster, PODS, "db-6")
    labels = live_pod["metadata"]["labels"]
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-6"
    assert labels["apps.kubernetes.io/pod-index"] == "6"
    assert labels["controller-revision-hash"] == status["updateRevision"]
    assert (live_pod["spec"]["hostname"], live_pod["spec"]["subdomain"]) == ("db-6", "db")


async def test_a_stateful_set_stops_at_a_pod_that_is_not_ready(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(STATEFUL_SETS, workload("db", replicas=3, annotations=NEVER_READY))
    parallel = {"podManagementPolicy": "Parallel"}
    cluster.create(STATEFUL_SETS, workload("any", replicas=3, annotations=NEVER_READY, **parallel))
    await simulator.settled()
    assert names(cluster, PODS) == ["any-0", "any-1", "any-2", "db-0"]


async def test_the_next_pod_waits_for_min_ready_seconds(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    await deployed(simulator, replicas=2, minReadySeconds=30)
    assert names(cluster, PODS) == ["db-0"]
    await clock.advance(timedelta(seconds=31))
    assert names(cluster, PODS) == ["db-0", "db-1"]
    await clock.advance(timedelta(seconds=31))
    assert live(cluster, STATEFUL_SETS, "db")["status"]["availableReplicas"] == 2


async def test_a_stateful_set_shrinks_from_the_end_and_keeps_names(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    gone: list[str] = []
    stop = cluster.subscribe(
        lambda c: gone.append(c.new["metadata"]["name"]) if c.type == "DELETED" else None
    )
    cluster.patch(STATEFUL_SETS, "default", "db", {"spec": {"replicas": 1}})
    await simulator.settled()
    stop()
    assert gone == ["db-2", "db-1"]
    cluster.delete(PODS, "default", "db-0")
    await simulator.settled()
    assert readiness(cluster) == [("db-0", True)]


async def test_a_name_that_another_pod_has_is_waited_for(simulator: Simulator, cluster: Cluster):
    cluster.create(PODS, pod("db-1"))
    await deployed(simulator)
    assert names(cluster, PODS) == ["db-0", "db-1"]
    cluster.delete(PODS, "default", "db-1")
    await simulator.settled()
    assert readiness(cluster) == [("db-0", True), ("db-1", True), ("db-2", True)]


# revisions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partition", "updated"), [(0, ["db-0", "db-1", "db-2"]), (2, ["db-2"])])
async def test_a_stateful_set_updates_from_the_end_down_to_the_partition(
    simulator: Simulator, cluster: Cluster, partition: int, updated: list[str]
):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    await deployed(simulator, updateStrategy=strategy)
    set_image(cluster, "nginx:2")
    await simulator.settled()
    assert sorted(name for name, image in images(cluster).items() if image == "nginx:2") == updated
    status = live(cluster, STATEFUL_SETS, "db")["status"]
    assert status["updatedReplicas"] == len(updated)
    assert (status["currentRevision"] == status["updateRevision"]) is (partition == 0)


async def test_a_pod_below_the_partition_comes_back_as_it_was(
    simulator: Simulator, cluster: Cluster
):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    await deployed(simulator, updateStrategy=strategy)
    set_image(cluster, "nginx:2")
    await simulator.settled()
    for name in ("db-1", "db-2"):
        cluster.delete(PODS, "default", name)
    await simulator.settled()
    assert images(cluster) == {"db-0": "nginx:1", "db-1": "nginx:1", "db-2": "nginx:2"}


async def test_on_delete_replaces_nothing_by_itself(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, updateStrategy={"type": "OnDelete"})
    set_image(cluster, "nginx:2")
    await simulator.settled()
    assert set(images(cluster).values()) == {"nginx:1"}
    cluster.delete(PODS, "default", "db-1")
    await simulator.settled()
    assert images(cluster)["db-1"] == "nginx:2"


async def test_templates_are_kept_as_revisions_and_an_old_one_becomes_the_latest_again(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator, revisionHistoryLimit=1)
    for image in ("nginx:2", "nginx:3", "nginx:2"):
        set_image(cluster, image)
        await simulator.settled()
    revisions = cluster.list(REVISIONS, "default")
    revision_of = {
        r["data"]["spec"]["template"]["spec"]["containers"][0]["image"]: r["revision"]
        for r in revisions
    }
    assert revision_of == {"nginx:2": 4, "nginx:3": 3}
    status = live(cluster, STATEFUL_SETS, "db")["status"]
    assert status["currentRevision"] in [r["metadata"]["name"] for r in revisions]
    cluster.delete(STATEFUL_SETS, "default", "db")
    await simulator.settled()
    assert names(cluster, REVISIONS) == names(cluster, PODS) == []


async def test_each_pod_has_its_storage_which_outlives_it(simulator: Simulator, cluster: Cluster):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    await deployed(simulator, replicas=2, volumeClaimTemplates=[claim])
    claims = "v1/persistentvolumeclaims"
    assert names(cluster, claims) == ["data-db-0", "data-db-1"]
    assert live(cluster, claims, "data-db-1")["metadata"]["labels"] == {"app": "db"}
    (volume,) = live(cluster, PODS, "db-1")["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-db-1"}
    cluster.patch(STATEFUL_SETS, "default", "db", {"spec": {"replicas": 1}})
    await simulator.settled()
    assert names(cluster, claims) == ["data-db-0", "data-db-1"]
