"""Settings to misbehave: their values, the pods they apply to, and warnings about invalid ones."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    PODS,
    conditions,
    job,
    live,
    names,
    pod,
    reasons,
    replicas,
    workload,
)
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import ManualClock, Simulator, Timing, simulate
from fleetbus_emulator.controllers.pods.behavior import (
    SETTINGS,
    Behavior,
    Failure,
    Images,
    behavior_of,
    read_settings,
)

CRON_JOBS = "batch/v1/cronjobs"
START = ManualClock()()


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


def annotated(**settings: str) -> dict[str, str]:
    return {f"sim.fleetbus.dev/{name.replace('_', '-')}": text for name, text in settings.items()}


def main(cluster: Cluster, name: str = "p") -> dict[str, Any]:
    return live(cluster, PODS, name)["status"]["containerStatuses"][0]


def ready(cluster: Cluster, name: str = "p") -> bool:
    return conditions(live(cluster, PODS, name)).get("Ready", ("",))[0] == "True"


def behavior(*objects: dict[str, Any], images: Images | None = None) -> Behavior:
    first, *managers = objects
    return behavior_of(first, managers, images or Images({}), timedelta(seconds=7), "salt")


# what they say ----------------------------------------------------------------------------------


def test_every_setting_is_read():
    settings = annotated(
        never_ready="yes",
        fail="crash-loop",
        fail_after_seconds="1.5",
        fail_times="2",
        delay_seconds="3",
        ready_seconds="4",
        run_seconds="5",
        probability="1",
    )
    assert behavior(pod("p", settings)) == Behavior(
        never_ready=True,
        failure=Failure.CRASH_LOOP,
        fail_after=timedelta(seconds=1.5),
        fail_times=2,
        delay=timedelta(seconds=3),
        ready_delay=timedelta(seconds=4),
        run=timedelta(seconds=5),
    )


def test_the_nearest_setting_wins_and_false_takes_a_farther_one_back():
    far = workload("web", annotations=annotated(fail="evict", delay_seconds="9"))
    near = {"metadata": {"annotations": annotated(fail="false")}}
    assert behavior(pod("p"), near, far) == Behavior(delay=timedelta(seconds=9))
    assert behavior(pod("p", annotated(fail="exit")), near, far).failure is Failure.EXIT


def test_a_setting_that_makes_no_sense_leaves_a_farther_one_in_force():
    far = workload("web", annotations=annotated(delay_seconds="9"))
    assert behavior(pod("p", annotated(delay_seconds="soon")), far).delay == timedelta(seconds=9)


def test_pods_of_jobs_end_by_themselves():
    assert behavior(pod("p"), {"kind": "Job", "metadata": {}}).run == timedelta(seconds=7)
    assert behavior(pod("p")).run is None


@pytest.mark.parametrize(
    ("setting", "text", "why"),
    [
        ("never-ready", "maybe", "is neither true nor false"),
        ("fail", "explode", "is none of exit, crash-loop, image-pull, evict, true and false"),
        ("delay-seconds", "-1", "is no sensible number of seconds"),
        ("run-seconds", "inf", "is no number"),
        ("ready-seconds", "ten", "is no number"),
        ("fail-after-seconds", "1e99", "is no sensible number of seconds"),
        ("fail-times", "1.5", "is no whole number from 0"),
        ("probability", "2", "is no number from 0 to 1"),
        ("probability", "nan", "is no number"),
        ("never-redy", "true", "there is no such setting"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(setting: str, text: str, why: str):
    values, (problem,) = read_settings({setting: text})
    assert values == {}
    assert problem.startswith(f"sim.fleetbus.dev/{setting} is ignored: ")
    assert why in problem


def test_images_are_matched_whole_and_by_pattern():
    images = Images(
        {"registry/app:broken*": {"fail": "image-pull"}, "slow": {"delay-seconds": "3"}}
    )
    assert behavior(pod("p", image="registry/app:broken-2"), images=images).failure is not None
    assert behavior(pod("p", image="registry/app:2"), images=images) == Behavior()
    assert behavior(pod("p", image="slow"), images=images).delay == timedelta(seconds=3)
    assert behavior(pod("p", annotated(fail="no"), image="registry/app:broken"), images=images) == (
        Behavior()
    )


def test_a_setting_for_images_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"'app'.*fail is ignored"):
        Images({"app": {"fail": "explode"}})


def test_a_probability_applies_to_a_share_of_the_pods_and_always_the_same():
    pods = [pod(f"p-{n}", annotated(fail="exit", probability="0.25")) for n in range(400)]
    failing = [p["metadata"]["name"] for p in pods if behavior(p).failure]
    assert 70 < len(failing) < 130
    assert failing == [p["metadata"]["name"] for p in pods if behavior(p).failure]


def test_the_documentation_names_every_setting_and_no_other():
    page = (Path(__file__).parents[3] / "docs/emulator.md").read_text()
    table = page.partition("| annotation `sim.fleetbus.dev/…` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"(?m)^\| `([a-z-]+)`", table)) == set(SETTINGS)
    assert {text for text in re.findall(r"`([a-z-]+)`", table) if text in set(Failure)} == {
        *Failure
    }


# pods they apply to -----------------------------------------------------------------------------


async def test_a_pod_fails_after_it_was_well(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(PODS, pod("p", annotated(fail="exit", fail_after_seconds="60")))
    await clock.advance(timedelta(seconds=59))
    assert ready(cluster)
    await clock.advance(timedelta(seconds=2))
    assert main(cluster)["restartCount"] == 1
    await simulator.settled()
    assert main(cluster)["state"]["waiting"]["reason"] == "CrashLoopBackOff"


@pytest.mark.parametrize("times", [0, 3, 9])
async def test_a_pod_crashes_as_often_as_asked_and_is_well_then(
    simulator: Simulator, cluster: Cluster, times: int
):
    cluster.create(PODS, pod("p", annotated(fail="crash-loop", fail_times=str(times))))
    await simulator.settled()
    assert (main(cluster)["restartCount"], ready(cluster)) == (times, True)


async def test_getting_ready_takes_as_long_as_asked(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(PODS, pod("p", annotated(delay_seconds="10", ready_seconds="20")))
    await clock.advance(timedelta(seconds=11))
    assert (live(cluster, PODS, "p")["status"]["phase"], ready(cluster)) == ("Running", False)
    await simulator.settled()
    assert ready(cluster)
    assert clock() == START + timedelta(seconds=30)


@pytest.mark.parametrize(("times", "evicted"), [("2", 2), (None, 6)])
async def test_a_workload_has_its_pods_evicted_and_comes_to_rest(
    simulator: Simulator, cluster: Cluster, times: str | None, evicted: int
):
    settings = annotated(fail="evict", **({"fail_times": times} if times else {}))
    cluster.create(DEPLOYMENTS, workload("web", replicas=2, annotations=settings))
    await simulator.settled()
    phases = [p["status"]["phase"] for p in cluster.list(PODS, "default")]
    assert (phases.count("Failed"), phases.count("Running")) == (evicted, 2)
    assert replicas(cluster, "web")["readyReplicas"] == 2


async def test_a_pod_is_evicted_after_it_was_well(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(PODS, pod("p", annotated(fail="evict", fail_after_seconds="60")))
    await clock.advance(timedelta(seconds=59))
    assert ready(cluster)
    await simulator.settled()
    assert live(cluster, PODS, "p")["status"]["reason"] == "Evicted"
    assert reasons(cluster, "p") == ["Evicted"]


async def test_a_pod_that_ends_where_it_must_not_is_started_again(
    simulator: Simulator, cluster: Cluster
):
    settings = annotated(run_seconds="10")
    cluster.create(DEPLOYMENTS, workload("web", replicas=1, annotations=settings))
    await simulator.settled()
    (name,) = names(cluster, PODS)
    assert main(cluster, name)["restartCount"] == 6
    assert main(cluster, name)["lastState"]["terminated"]["reason"] == "Completed"


async def test_a_share_of_a_deployment_fails_and_the_same_with_the_same_seed():
    def sick(cluster: Cluster) -> list[str]:
        pods = cluster.list(PODS, "default")
        return [p["metadata"]["name"] for p in pods if conditions(p)["Ready"][0] == "False"]

    runs: list[list[str]] = []
    for seed in (5, 5, 6):
        cluster = Cluster("alpha", seed=1)
        async with simulate(cluster, seed=seed) as (simulator,):
            settings = annotated(never_ready="true", probability="0.5")
            cluster.create(DEPLOYMENTS, workload("web", replicas=12, annotations=settings))
            await simulator.settled()
            runs.append(sick(cluster))
    assert runs[0] == runs[1] != runs[2]
    assert 0 < len(runs[0]) < 12


async def test_images_that_are_known_to_be_bad_need_no_annotation():
    cluster = Cluster("alpha", seed=1)
    images = {"registry/app:2*": {"fail": "image-pull"}}
    async with simulate(cluster, images=images) as (simulator,):
        cluster.create(DEPLOYMENTS, workload("web", replicas=2, image="registry/app:1.9"))
        await simulator.settled()
        containers = [{"name": "main", "image": "registry/app:2.0"}]
        patch = {"spec": {"template": {"spec": {"containers": containers}}}}
        cluster.patch(DEPLOYMENTS, "default", "web", patch)
        await simulator.settled()
        assert replicas(cluster, "web")["availableReplicas"] == 2
        stuck = [p for p in cluster.list(PODS) if p["status"]["phase"] == "Pending"]
        assert [main(cluster, p["metadata"]["name"])["state"] for p in stuck] == [
            {
                "waiting": {
                    "reason": "ImagePullBackOff",
                    "message": 'Back-off pulling image "registry/app:2.0"',
                }
            }
        ]
        assert reasons(cluster, stuck[0]["metadata"]["name"]) == ["Failed"]


async def test_the_delays_of_a_cluster_are_jittered_by_its_seed():
    async def lived(seed: int) -> list[str]:
        clock = ManualClock()
        cluster = Cluster("alpha", seed=1, clock=clock)
        async with simulate(cluster, timing=Timing.lifelike(), seed=seed) as (simulator,):
            cluster.create(DEPLOYMENTS, workload("web", replicas=3))
            await simulator.settled()
        return [str(commit.time) for commit in cluster.history]

    first = await lived(1)
    assert await lived(1) == first
    assert await lived(2) != first


# Events of ignored settings ---------------------------------------------------------------------


def shown(cluster: Cluster, name: str) -> list[tuple[str, str, int]]:
    events = (e for e in cluster.list(EVENTS) if e["involvedObject"]["name"] == name)
    return [(e["type"], e["message"], e["count"]) for e in events]


async def test_a_setting_that_makes_no_sense_is_reported_of_where_it_stands_and_harms_nobody(
    simulator: Simulator, cluster: Cluster
):
    body = workload("web", replicas=3, annotations=annotated(fail_times="often"))
    body["spec"]["template"]["metadata"]["annotations"] = annotated(delay_seconds="soon")
    cluster.create(DEPLOYMENTS, body)
    await simulator.settled()
    assert replicas(cluster, "web")["readyReplicas"] == 3
    warned = [e for e in cluster.list(EVENTS) if e["type"] == "Warning"]
    assert {e["involvedObject"]["kind"] for e in warned} == {"Deployment"}
    assert {e["reason"] for e in warned} == {"InvalidSimulation"}
    assert sorted(e["message"] for e in warned) == [
        "sim.fleetbus.dev/delay-seconds is ignored: 'soon' is no number",
        "sim.fleetbus.dev/fail-times is ignored: 'often' is no whole number from 0",
    ]


async def test_it_is_reported_once_also_by_the_next_simulator():
    cluster = Cluster("alpha", seed=1)
    for _ in range(2):
        async with simulate(cluster) as (simulator,):
            meta = {"annotations": annotated(fail="explode", never_ready="false")}
            if not cluster.list(CRON_JOBS):
                template = {"spec": job("ignored")["spec"], "metadata": meta}
                spec = {"schedule": "* * * * *", "jobTemplate": template}
                body = {"metadata": {"name": "c", **meta}, "spec": spec}
                cluster.create(CRON_JOBS, body)
            await simulator.settled()
        ((kind, message, count),) = shown(cluster, "c")
        assert (kind, count) == ("Warning", 1)
        assert "'explode' is none of" in message


async def test_an_image_of_our_domain_that_does_not_exist_is_reported_of(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(PODS, pod("p", image="sim.fleetbus.dev/crash-lop:1"))
    await simulator.settled()
    assert ready(cluster)
    ((kind, message, _),) = shown(cluster, "p")
    assert kind == "Warning"
    assert message.startswith("sim.fleetbus.dev/fail is ignored: 'crash-lop' is none of")


async def test_what_happens_again_is_counted_and_forgotten_after_an_hour(
    simulator: Simulator, cluster: Cluster, clock: ManualClock
):
    cluster.create(PODS, pod("p", annotated(fail="crash-loop", fail_times="3")))
    await simulator.settled()
    ((kind, message, count),) = shown(cluster, "p")
    assert (kind, count) == ("Warning", 3)
    assert message.startswith("back-off restarting failed container=main")
    await clock.advance(timedelta(hours=2))
    cluster.create(JOBS, job("j"))
    await simulator.settled()
    assert [e["reason"] for e in cluster.list(EVENTS)] == ["Completed"]
