"""Jobs run, are counted, fail, wait, expire and leave nothing behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    EVENTS,
    JOBS,
    PODS,
    conditions,
    job,
    live,
    names,
    owned,
    pod_spec,
    reasons,
)
from fleetbus_emulator.apiserver import Change, Cluster
from fleetbus_emulator.controllers import CONTROL_PLANE, ManualClock, Simulator, Timing, simulate
from fleetbus_emulator.controllers.workloads.job_status import parse_indexes, show_indexes

FAIL = {"sim.fleetbus.dev/fail": "true"}
TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


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


def phases(cluster: Cluster) -> list[str]:
    return [p["status"]["phase"] for p in cluster.list(PODS, "default")]


def status_of(cluster: Cluster, name: str = "j") -> dict[str, Any]:
    return live(cluster, JOBS, name)["status"]


def annotated(**settings: str) -> dict[str, str]:
    return {f"sim.fleetbus.dev/{name.replace('_', '-')}": text for name, text in settings.items()}


async def at_work(cluster: Cluster) -> None:
    clock = cluster.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(timedelta(seconds=1))
    assert set(phases(cluster)) == {"Running"}


async def test_a_job_completes(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", completions=5, parallelism=2))
    await simulator.settled()
    done = live(cluster, JOBS, "j")
    assert [c["type"] for c in done["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert conditions(done)["Complete"] == ("True", "CompletionsReached")
    status = done["status"]
    assert (status["succeeded"], status["ready"], status["terminating"]) == (5, 0, 0)
    assert "active" not in status
    assert status["startTime"] <= status["completionTime"]
    assert phases(cluster) == ["Succeeded"] * 5
    assert reasons(cluster, "j") == ["Completed"]


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


async def test_a_pod_is_held_until_it_is_counted(simulator: Simulator, cluster: Cluster):
    story: list[str] = []

    def note(change: Change) -> None:
        if change.resource == "pods" and change.new["status"]["phase"] == "Succeeded":
            is_tracked = TRACKING in change.new["metadata"].get("finalizers", [])
            story.append("ended" if is_tracked else "let go")
        elif change.resource == "jobs":
            status = change.new["status"]
            if status.get("uncountedTerminatedPods"):
                story.append("noted")
            elif status.get("succeeded"):
                story.append("counted")

    stop = cluster.subscribe(note)
    cluster.create(JOBS, job("j"))
    await simulator.settled()
    stop()
    assert story == ["ended", "noted", "let go", "counted"]


async def test_what_was_noted_is_counted_once_after_an_interruption():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=CONTROL_PLANE) as (simulator,):
        cluster.create(JOBS, job("j", completions=2))
        await simulator.settled()
    (pod,) = cluster.list(PODS, "default")
    noted = live(cluster, JOBS, "j")
    noted["status"]["uncountedTerminatedPods"] = {"succeeded": [pod["metadata"]["uid"]]}
    cluster.update_status(JOBS, noted)
    let_go: dict[str, Any] = {"metadata": {"finalizers": None}}
    cluster.patch(PODS, "default", pod["metadata"]["name"], let_go)
    cluster.patch(
        PODS,
        "default",
        pod["metadata"]["name"],
        {"status": {"phase": "Succeeded"}},
        subresource="status",
    )
    async with simulate(cluster, controllers=CONTROL_PLANE) as (simulator,):
        await simulator.settled()
    status = status_of(cluster)
    assert (status["succeeded"], status["active"]) == (1, 1)
    assert status["uncountedTerminatedPods"] == {}


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
    assert failed["status"]["failed"] == (3 if restart == "Never" else 1)
    assert len(names(cluster, PODS)) == (3 if restart == "Never" else 0)
    assert "BackoffLimitExceeded" in reasons(cluster, "j")


async def test_a_job_that_failed_at_first_completes_when_the_setting_is_withdrawn(
    clock: ManualClock,
):
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing(retry=timedelta(seconds=5))) as (simulator,):
        cluster.create(JOBS, job("j", annotations=FAIL, backoffLimit=1000))
        await clock.advance(timedelta(seconds=12))
        assert status_of(cluster)["failed"] == 3
        patch = {"metadata": {"annotations": {"sim.fleetbus.dev/fail": None}}}
        cluster.patch(JOBS, "default", "j", patch)
        await simulator.settled()
        assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
async def test_the_pods_of_a_job_fail_as_often_as_asked(
    simulator: Simulator, cluster: Cluster, restart: str
):
    settings = annotated(fail="exit", fail_times="2")
    cluster.create(JOBS, job("j", annotations=settings, restart=restart, completions=3))
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"
    assert status_of(cluster)["succeeded"] == 3
    failed = 2 if restart == "Never" else 0
    assert status_of(cluster).get("failed", 0) == failed


async def test_a_deleted_pod_of_a_job_counts_as_failed(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", annotations=annotated(run_seconds="3600")))
    await at_work(cluster)
    cluster.delete(PODS, "default", names(cluster, PODS)[0])
    await simulator.settled()
    assert status_of(cluster)["failed"] == 1
    assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"


async def test_a_job_is_held_to_its_deadline(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    body = job("j", annotations=annotated(run_seconds="3600"), activeDeadlineSeconds=60)
    cluster.create(JOBS, body)
    await clock.advance(timedelta(seconds=59))
    assert status_of(cluster)["active"] == 1
    await clock.advance(timedelta(seconds=2))
    assert conditions(live(cluster, JOBS, "j"))["Failed"] == ("True", "DeadlineExceeded")
    assert names(cluster, PODS) == []
    await simulator.settled()


async def test_a_suspended_job_starts_when_it_is_resumed(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(JOBS, job("j", suspend=True))
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j")) == {"Suspended": ("True", "JobSuspended")}
    assert names(cluster, PODS) == []
    assert "startTime" not in status_of(cluster)
    await clock.advance(timedelta(hours=1))
    cluster.patch(JOBS, "default", "j", {"spec": {"suspend": False}})
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"
    assert reasons(cluster, "j") == ["Completed", "Resumed", "Suspended"]


async def test_a_job_that_is_suspended_takes_its_pods_back_and_they_have_not_failed(
    simulator: Simulator, cluster: Cluster
):
    body = job("j", annotations=annotated(run_seconds="3600"), completions=4, parallelism=4)
    cluster.create(JOBS, body)
    await at_work(cluster)
    cluster.patch(JOBS, "default", "j", {"spec": {"suspend": True}})
    await simulator.settled()
    assert names(cluster, PODS) == []
    assert "failed" not in status_of(cluster)
    assert conditions(live(cluster, JOBS, "j"))["Suspended"] == ("True", "JobSuspended")


async def test_less_parallelism_takes_pods_back(cluster: Cluster):
    body = job("j", annotations=annotated(run_seconds="3600"), completions=9, parallelism=6)
    cluster.create(JOBS, body)
    await at_work(cluster)
    cluster.patch(JOBS, "default", "j", {"spec": {"parallelism": 2}})
    await at_work(cluster)
    assert status_of(cluster)["active"] == len(names(cluster, PODS)) == 2
    assert "failed" not in status_of(cluster)


async def test_a_work_queue_is_done_when_one_ended_well_and_none_is_left(
    simulator: Simulator, cluster: Cluster
):
    body = job("j", parallelism=3)
    cluster.create(JOBS, body)
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "j"))["Complete"][0] == "True"
    assert status_of(cluster)["succeeded"] == 3


# Indexed ----------------------------------------------------------------------------------------


async def test_each_index_of_an_indexed_job_completes_once(simulator: Simulator, cluster: Cluster):
    body = job("j", completions=5, parallelism=2, completionMode="Indexed")
    cluster.create(JOBS, body)
    await simulator.settled()
    status = status_of(cluster)
    assert (status["succeeded"], status["completedIndexes"]) == (5, "0-4")
    pods = cluster.list(PODS, "default")
    assert sorted(p["metadata"]["annotations"][INDEX] for p in pods) == list("01234")
    assert sorted(p["metadata"]["labels"][INDEX] for p in pods) == list("01234")
    assert sorted(p["spec"]["hostname"] for p in pods) == [f"j-{n}" for n in range(5)]
    assert all(p["metadata"]["name"].startswith(p["spec"]["hostname"] + "-") for p in pods)
    assert {e["name"] for p in pods for e in p["spec"]["containers"][0]["env"]} == {
        "JOB_COMPLETION_INDEX"
    }


async def test_an_index_that_failed_is_tried_again(simulator: Simulator, cluster: Cluster):
    settings = annotated(fail="exit", fail_times="2")
    cluster.create(JOBS, job("j", annotations=settings, completions=3, completionMode="Indexed"))
    await simulator.settled()
    status = status_of(cluster)
    assert (status["succeeded"], status["failed"], status["completedIndexes"]) == (3, 2, "0-2")
    tried = [p["metadata"]["annotations"][INDEX] for p in cluster.list(PODS, "default")]
    assert len(tried) == 5


@pytest.mark.parametrize("text", ["", "0", "0,1", "0-2", "0,2-4,7", "1,3,5", "3-9"])
def test_sets_of_indexes_are_read_as_they_are_written(text: str):
    assert show_indexes(parse_indexes(text, 10)) == text


def test_indexes_that_make_no_sense_are_left_out():
    assert parse_indexes("0,x,-1,2-,4-1000000000000,²", 7) == {0, 2, 4, 5, 6}


# ends -------------------------------------------------------------------------------------------


async def test_a_finished_job_expires_with_its_pods(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(JOBS, job("j", ttlSecondsAfterFinished=100))
    await simulator.settled()
    await clock.advance(timedelta(seconds=99))
    assert names(cluster, JOBS) == ["j"]
    await clock.advance(timedelta(seconds=2))
    assert names(cluster, JOBS) == names(cluster, PODS) == []


async def test_a_job_outlives_its_pods_count(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j"))
    await simulator.settled()
    cluster.delete(PODS, "default", names(cluster, PODS)[0])
    await simulator.settled()
    assert names(cluster, PODS) == []
    assert status_of(cluster)["succeeded"] == 1


@pytest.mark.parametrize("policy", [None, "Background", "Foreground"])
async def test_a_job_that_is_deleted_at_work_leaves_nothing_held(
    simulator: Simulator, cluster: Cluster, policy: str | None
):
    cluster.create(JOBS, job("j", annotations=annotated(run_seconds="3600"), parallelism=2))
    await at_work(cluster)
    cluster.delete(JOBS, "default", "j", policy=policy)
    await simulator.settled()
    assert names(cluster, JOBS) == []
    pods = cluster.list(PODS, "default")
    assert len(pods) == (2 if policy is None else 0)  # of Jobs, Orphan is the default
    for pod in pods:
        assert "ownerReferences" not in pod["metadata"]
        assert "finalizers" not in pod["metadata"]


async def test_a_pod_that_no_job_tracks_is_let_go(simulator: Simulator, cluster: Cluster):
    owner = cluster.create("v1/configmaps", {"metadata": {"name": "owner"}})
    body: dict[str, Any] = {**owned("p", owner), "spec": pod_spec()}
    body["metadata"]["finalizers"] = [TRACKING, "example.com/keep"]
    cluster.create(PODS, body)
    await simulator.settled()
    assert live(cluster, PODS, "p")["metadata"]["finalizers"] == ["example.com/keep"]


async def test_a_job_of_another_controller_is_left_alone(simulator: Simulator, cluster: Cluster):
    cluster.create(JOBS, job("j", managedBy="example.com/queue"))
    await simulator.settled()
    assert names(cluster, PODS) == []
    assert status_of(cluster) == {}
    assert names(cluster, EVENTS) == []
