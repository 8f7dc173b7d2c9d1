"""Jobs, StatefulSets and DaemonSets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from eventually import eventually
from sim_rig import (
    DAEMON_SETS,
    JOBS,
    PODS,
    STATEFUL_SETS,
    conditions,
    job,
    live,
    names,
    pod_spec,
    workload,
)
from structlog.testing import capture_logs

from fleetbus_devfleet.apiserver import Change, Cluster
from fleetbus_devfleet.sim import Simulator, Timing, simulate

NODES = "v1/nodes"
FAIL = {"sim.fleetbus.dev/fail": "true"}


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1), seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def phases(cluster: Cluster) -> list[str]:
    return [p["status"]["phase"] for p in cluster.list(PODS, "default")]


# Jobs -------------------------------------------------------------------------------------------


async def test_a_job_completes(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", completions=5, parallelism=2))
    await simulator.settled()
    done = live(cluster, JOBS, "j")
    assert conditions(done) == {
        "SuccessCriteriaMet": ("True", "CompletionsReached"),
        "Complete": ("True", "CompletionsReached"),
    }
    status = done["status"]
    assert status["succeeded"] == 5
    assert "active" not in status
    assert status["startTime"] <= status["completionTime"]
    assert phases(cluster) == ["Succeeded"] * 5


async def test_its_pods_carry_its_labels_and_never_more_run_than_allowed(
    simulator: Simulator, cluster: Cluster
):
    most = 0

    def count(_: Change) -> None:
        nonlocal most
        most = max(most, sum(phase in ("Pending", "Running") for phase in phases(cluster)))

    stop = cluster.subscribe(count)
    cluster.create(JOBS, job("j", completions=5, parallelism=2))
    await simulator.settled()
    stop()
    assert most == 2
    uid = live(cluster, JOBS, "j")["metadata"]["uid"]
    labels = cluster.list(PODS, "default")[0]["metadata"]["labels"]
    assert (labels["job-name"], labels["controller-uid"]) == ("j", uid)


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
async def test_a_job_fails_on_request(simulator: Simulator, cluster: Cluster, restart: str):
    cluster.create(JOBS, job("j", annotations=FAIL, restart=restart, backoffLimit=2))
    await simulator.settled()
    failed = live(cluster, JOBS, "j")
    assert conditions(failed) == {
        "FailureTarget": ("True", "BackoffLimitExceeded"),
        "Failed": ("True", "BackoffLimitExceeded"),
    }
    assert "completionTime" not in failed["status"]
    if restart == "Never":
        assert failed["status"]["failed"] == 3
    else:
        assert names(cluster, PODS) == []


async def test_a_job_that_failed_at_first_completes_when_the_wish_is_withdrawn():
    cluster = Cluster("alpha", seed=1)
    timing = Timing(retry=timedelta(milliseconds=5))
    async with simulate(cluster, timing=timing) as (simulator,):
        cluster.create(JOBS, job("j", annotations=FAIL, backoffLimit=1000))
        await eventually(lambda: live(cluster, JOBS, "j")["status"].get("failed", 0) >= 2)
        patch = {"metadata": {"annotations": {"sim.fleetbus.dev/fail": None}}}
        cluster.patch(JOBS, "default", "j", patch)
        await simulator.settled()
        assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"


async def test_a_job_is_held_to_its_deadline(simulator: Simulator, cluster: Cluster):
    annotations = {"sim.fleetbus.dev/never-ready": "true"}
    cluster.create(JOBS, job("j", annotations=annotations, activeDeadlineSeconds=0))
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j"))["Failed"] == ("True", "DeadlineExceeded")
    assert names(cluster, PODS) == []


async def test_a_suspended_job_starts_when_it_is_resumed(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", suspend=True))
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j")) == {"Suspended": ("True", "JobSuspended")}
    assert names(cluster, PODS) == []
    cluster.patch(JOBS, "default", "j", {"spec": {"suspend": False}})
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"


async def test_a_finished_job_expires_with_its_pods(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", ttlSecondsAfterFinished=0))
    await simulator.settled()
    assert names(cluster, JOBS) == names(cluster, PODS) == []


async def test_a_job_outlives_its_pods_count(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j"))
    await simulator.settled()
    cluster.delete(PODS, "default", names(cluster, PODS)[0])
    await simulator.settled()
    assert names(cluster, PODS) == []
    assert live(cluster, JOBS, "j")["status"]["succeeded"] == 1


async def test_a_job_that_is_deleted_plainly_leaves_its_pods(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(JOBS, job("j"))
    await simulator.settled()
    cluster.delete(JOBS, "default", "j")
    await simulator.settled()
    assert names(cluster, JOBS) == []
    (pod,) = cluster.list(PODS, "default")
    assert "ownerReferences" not in pod["metadata"]


# StatefulSets -----------------------------------------------------------------------------------


def readiness(cluster: Cluster) -> list[tuple[str, bool]]:
    pods = cluster.list(PODS, "default")
    return [(p["metadata"]["name"], conditions(p).get("Ready", ("",))[0] == "True") for p in pods]


async def test_a_stateful_set_starts_one_pod_after_the_other(
    simulator: Simulator, cluster: Cluster
):
    seen: list[list[tuple[str, bool]]] = []
    stop = cluster.subscribe(lambda _: seen.append(readiness(cluster)))
    cluster.create(STATEFUL_SETS, workload("db", replicas=3, serviceName="db"))
    await simulator.settled()
    stop()
    assert readiness(cluster) == [("db-0", True), ("db-1", True), ("db-2", True)]
    assert all(ready for state in seen for _, ready in state[:-1])
    status = live(cluster, STATEFUL_SETS, "db")["status"]
    assert {n: status[n] for n in status if n.endswith("eplicas")} == {
        "replicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "currentReplicas": 3,
        "updatedReplicas": 3,
    }
    assert status["currentRevision"] == status["updateRevision"]
    labels = live(cluster, PODS, "db-1")["metadata"]["labels"]
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-1"


async def test_a_stateful_set_stops_at_a_pod_that_is_not_ready(
    simulator: Simulator, cluster: Cluster
):
    annotations = {"sim.fleetbus.dev/never-ready": "true"}
    cluster.create(STATEFUL_SETS, workload("db", replicas=3, annotations=annotations))
    cluster.create(
        STATEFUL_SETS,
        workload("any", replicas=3, annotations=annotations, podManagementPolicy="Parallel"),
    )
    await simulator.settled()
    assert names(cluster, PODS) == ["any-0", "any-1", "any-2", "db-0"]


async def test_a_stateful_set_shrinks_from_the_end_and_keeps_names(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(STATEFUL_SETS, workload("db", replicas=3))
    await simulator.settled()
    cluster.patch(STATEFUL_SETS, "default", "db", {"spec": {"replicas": 1}})
    cluster.delete(PODS, "default", "db-0")
    await simulator.settled()
    assert readiness(cluster) == [("db-0", True)]


@pytest.mark.parametrize(("partition", "updated"), [(0, ["db-0", "db-1", "db-2"]), (2, ["db-2"])])
async def test_a_stateful_set_updates_from_the_end_down_to_the_partition(
    simulator: Simulator, cluster: Cluster, partition: int, updated: list[str]
):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    cluster.create(STATEFUL_SETS, workload("db", replicas=3, updateStrategy=strategy))
    await simulator.settled()
    patch = {"spec": {"template": {"spec": pod_spec("nginx:2")}}}
    cluster.patch(STATEFUL_SETS, "default", "db", patch)
    await simulator.settled()
    images = {
        p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in cluster.list(PODS)
    }
    assert sorted(name for name, image in images.items() if image == "nginx:2") == updated
    status = live(cluster, STATEFUL_SETS, "db")["status"]
    assert status["updatedReplicas"] == len(updated)
    assert (status["currentRevision"] == status["updateRevision"]) is (partition == 0)


# DaemonSets -------------------------------------------------------------------------------------


def placed(cluster: Cluster) -> list[str]:
    return sorted(p["spec"]["nodeName"] for p in cluster.list(PODS, "default"))


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


async def test_a_daemon_set_updates_one_node_at_a_time(simulator: Simulator, cluster: Cluster):
    cluster.create(DAEMON_SETS, workload("agent"))
    await simulator.settled()
    least = 2

    def note(_: Change) -> None:
        nonlocal least
        least = min(least, sum(ready for _, ready in readiness(cluster)))

    stop = cluster.subscribe(note)
    patch = {"spec": {"template": {"spec": pod_spec("nginx:2")}}}
    cluster.patch(DAEMON_SETS, "default", "agent", patch)
    await simulator.settled()
    stop()
    assert least == 1
    assert {p["spec"]["containers"][0]["image"] for p in cluster.list(PODS)} == {"nginx:2"}
    assert placed(cluster) == ["sim-node-1", "sim-node-2"]
