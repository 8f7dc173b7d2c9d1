"""CronJobs: started by hand or by the clock, counted, cleaned up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import JOBS, PODS, conditions, job, live, names, reasons
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import HOUSEKEEPING, ManualClock, Simulator, simulate

CRON_JOBS = "batch/v1/cronjobs"
HOUR = timedelta(hours=1)
AT_WORK = {"sim.fleetbus.dev/run-seconds": "1000"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, 0, 10, tzinfo=UTC))


@pytest.fixture
async def simulator(clock: ManualClock) -> AsyncGenerator[Simulator]:
    cluster = Cluster("alpha", seed=1, clock=clock)
    with capture_logs() as logs:
        async with simulate(cluster, seed=1, schedules=True) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def cron_job(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "backup"}}, "spec": job("ignored")["spec"]}
    return {
        "metadata": {"name": "backup", "annotations": annotations or {}},
        "spec": {"schedule": "0 * * * *", "jobTemplate": template, **spec},
    }


def status_of(cluster: Cluster) -> dict[str, Any]:
    return live(cluster, CRON_JOBS, "backup").get("status", {})


async def test_by_hand_a_job_is_started_as_if_its_time_had_come(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(CRON_JOBS, cron_job(AT_WORK))
    name = simulator.trigger("default", "backup")
    assert name is not None
    started = live(cluster, JOBS, name)
    (owner,) = started["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("CronJob", "backup", True)
    assert started["metadata"]["labels"] == {"app": "backup"}
    stamp = started["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    assert stamp == "2030-01-01T00:10:00Z"
    status = status_of(cluster)
    assert [entry["name"] for entry in status["active"]] == [name]
    assert status["lastScheduleTime"] == "2030-01-01T00:10:00Z"
    await simulator.settled()
    status = status_of(cluster)
    assert "active" not in status
    assert status["lastSuccessfulTime"] == "2030-01-01T00:26:40Z"
    assert conditions(live(cluster, JOBS, name))["Complete"][0] == "True"
    assert reasons(cluster, "backup") == ["SawCompletedJob", "SuccessfulCreate"]


async def test_two_triggers_in_one_minute_start_two_jobs(simulator: Simulator, cluster: Cluster):
    cluster.create(CRON_JOBS, cron_job())
    assert len({simulator.trigger("default", "backup") for _ in range(2)}) == 2
    await simulator.settled()
    assert len(names(cluster, JOBS)) == 2


async def test_a_job_that_somebody_made_from_it_is_its_own_but_not_active(
    simulator: Simulator, cluster: Cluster
):
    """As `kubectl create job --from=cronjob/backup` does it."""
    owner = cluster.create(CRON_JOBS, cron_job())
    body = job("by-hand")
    reference = {n: owner["metadata"][n] for n in ("name", "uid")}
    reference |= {"apiVersion": "batch/v1", "kind": "CronJob", "controller": True}
    body["metadata"]["ownerReferences"] = [reference]
    cluster.create(JOBS, body)
    await simulator.settled()
    assert conditions(live(cluster, JOBS, "by-hand"))["Complete"][0] == "True"
    assert "lastScheduleTime" not in status_of(cluster)
    assert "lastSuccessfulTime" in status_of(cluster)
    cluster.delete(CRON_JOBS, "default", "backup")
    await simulator.settled()
    assert names(cluster, JOBS) == names(cluster, PODS) == []


async def test_old_jobs_are_forgotten(simulator: Simulator, cluster: Cluster):
    cluster.create(CRON_JOBS, cron_job(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=1))
    for setting in (None, "exit"):
        patch = {"metadata": {"annotations": {"sim.fleetbus.dev/fail": setting}}}
        cluster.patch(CRON_JOBS, "default", "backup", patch)
        for _ in range(3):
            simulator.trigger("default", "backup")
            await simulator.settled()
    ends = [list(conditions(found))[-1] for found in cluster.list(JOBS, "default")]
    assert sorted(ends) == ["Complete", "Complete", "Failed"]


@pytest.mark.parametrize(("policy", "running"), [("Allow", 2), ("Forbid", 1), ("Replace", 1)])
async def test_the_policy_decides_about_a_second_job(
    simulator: Simulator, cluster: Cluster, clock: ManualClock, policy: str, running: int
):
    cluster.create(CRON_JOBS, cron_job(AT_WORK, concurrencyPolicy=policy))
    first = simulator.trigger("default", "backup")
    await clock.advance(timedelta(minutes=2))
    second = simulator.trigger("default", "backup")
    assert (second is None) is (policy == "Forbid")
    await clock.advance(timedelta(seconds=10))
    assert len(names(cluster, JOBS)) == running
    assert (first in names(cluster, JOBS)) is (policy != "Replace")
    assert len(status_of(cluster)["active"]) == running


async def test_a_suspended_one_starts_nothing(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(CRON_JOBS, cron_job(suspend=True))
    assert simulator.trigger("default", "backup") is None
    await clock.advance(3 * HOUR)
    assert names(cluster, JOBS) == []


async def test_what_does_not_exist_is_not_triggered(simulator: Simulator, cluster: Cluster):
    with pytest.raises(KeyError):
        simulator.trigger("default", "backup")
    cluster.create(CRON_JOBS, cron_job())
    async with simulate(Cluster("beta"), controllers=HOUSEKEEPING) as (other,):
        with pytest.raises(KeyError, match="no controller"):
            other.trigger("default", "backup")


# the clock --------------------------------------------------------------------------------------


async def test_its_time_comes_by_the_clock(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(CRON_JOBS, cron_job())
    await simulator.settled()
    assert names(cluster, JOBS) == []
    await clock.advance(3 * HOUR)
    assert len(names(cluster, JOBS)) == 3
    assert status_of(cluster)["lastScheduleTime"] == "2030-01-01T03:00:00Z"


async def test_the_time_zone_counts(cluster: Cluster, clock: ManualClock):
    cluster.create(CRON_JOBS, cron_job(schedule="@daily", timeZone="Asia/Tokyo"))
    await clock.advance(timedelta(days=1))
    assert status_of(cluster)["lastScheduleTime"] == "2030-01-01T15:00:00Z"


async def test_of_many_missed_times_the_last_is_made_up_for(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(CRON_JOBS, cron_job(suspend=True))
    await clock.advance(5 * HOUR)
    cluster.patch(CRON_JOBS, "default", "backup", {"spec": {"suspend": False}})
    await simulator.settled()
    assert len(names(cluster, JOBS)) == 1
    assert status_of(cluster)["lastScheduleTime"] == "2030-01-01T05:00:00Z"


async def test_what_is_too_late_is_not_made_up_for(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(CRON_JOBS, cron_job(suspend=True, startingDeadlineSeconds=60))
    await clock.advance(5 * HOUR)
    cluster.patch(CRON_JOBS, "default", "backup", {"spec": {"suspend": False}})
    await simulator.settled()
    assert names(cluster, JOBS) == []
    assert reasons(cluster, "backup") == ["MissSchedule"]
    await clock.advance(HOUR)
    assert len(names(cluster, JOBS)) == 1


async def test_a_schedule_that_is_not_simulated_is_reported(simulator: Simulator, cluster: Cluster):
    cluster.create(CRON_JOBS, cron_job(schedule="@every 1h"))
    await simulator.settled()
    assert reasons(cluster, "backup") == ["UnparseableSchedule"]


async def test_without_schedules_time_starts_nothing(clock: ManualClock):
    cluster = Cluster("alpha", clock=clock)
    async with simulate(cluster):
        cluster.create(CRON_JOBS, cron_job())
        await clock.advance(3 * HOUR)
        assert names(cluster, JOBS) == []
        assert clock.timers == 0
