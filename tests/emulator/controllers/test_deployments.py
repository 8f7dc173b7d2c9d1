"""Deployments become ready, roll out, scale, stall and go."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    DEPLOYMENTS,
    EVENTS,
    PODS,
    REPLICA_SETS,
    conditions,
    live,
    names,
    pod,
    replicas,
    workload,
)
from fleetbus_emulator.apiserver import Change, Cluster
from fleetbus_emulator.controllers import ManualClock, Simulator, Timing, simulate

READY = {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}
REVISION = "deployment.kubernetes.io/revision"


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1), seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def revisions(cluster: Cluster) -> dict[str, int]:
    """The sizes of ReplicaSets by revision."""
    sets = cluster.list(REPLICA_SETS, "default")
    return {rs["metadata"]["annotations"][REVISION]: rs["spec"]["replicas"] for rs in sets}


def set_image(cluster: Cluster, name: str, image: str) -> None:
    containers = [{"name": "main", "image": image}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    cluster.patch(DEPLOYMENTS, "default", name, patch)


async def deployed(simulator: Simulator, name: str = "web", **spec: Any) -> None:
    simulator.cluster.create(DEPLOYMENTS, workload(name, replicas=spec.pop("replicas", 3), **spec))
    await simulator.settled()


async def test_a_deployment_becomes_ready(simulator: Simulator, cluster: Cluster):
    await deployed(simulator)
    assert replicas(cluster, "web") == READY
    deployment = live(cluster, DEPLOYMENTS, "web")
    assert conditions(deployment) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert deployment["metadata"]["generation"] == 1
    assert deployment["status"]["observedGeneration"] == 1
    assert deployment["metadata"]["annotations"][REVISION] == "1"


async def test_its_pods_are_named_and_owned_as_in_a_real_cluster(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    (replica_set,) = cluster.list(REPLICA_SETS, "default")
    digest = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{digest}"
    assert replica_set["spec"]["selector"]["matchLabels"]["pod-template-hash"] == digest
    assert replica_set["metadata"]["annotations"] == {
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "3",
        "deployment.kubernetes.io/max-replicas": "4",
    }
    for live_pod in cluster.list(PODS, "default"):
        (owner,) = live_pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("ReplicaSet", replica_set["metadata"]["uid"])
        assert owner["controller"] is owner["blockOwnerDeletion"] is True
        assert live_pod["metadata"]["name"].startswith(f"web-{digest}-")


async def test_a_new_template_replaces_the_pods_within_the_limits(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator, replicas=4)
    counts: list[tuple[int, int]] = []

    def count(_: Change) -> None:
        pods = [
            p for p in cluster.list(PODS, "default") if "deletionTimestamp" not in p["metadata"]
        ]
        ready = sum(conditions(p).get("Ready") == ("True", "") for p in pods)
        counts.append((len(pods), ready))

    stop = cluster.subscribe(count)
    set_image(cluster, "web", "nginx:2")
    await simulator.settled()
    stop()
    assert max(pods for pods, _ in counts) == 5  # maxSurge 25 %
    assert min(ready for _, ready in counts) >= 3  # maxUnavailable 25 %
    assert {p["spec"]["containers"][0]["image"] for p in cluster.list(PODS)} == {"nginx:2"}
    assert revisions(cluster) == {"1": 0, "2": 4}
    assert live(cluster, DEPLOYMENTS, "web")["metadata"]["annotations"][REVISION] == "2"


async def test_returning_to_an_old_template_revives_its_replica_set(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    first = names(cluster, REPLICA_SETS)
    set_image(cluster, "web", "nginx:2")
    await simulator.settled()
    set_image(cluster, "web", "nginx:1")
    await simulator.settled()
    assert revisions(cluster) == {"2": 0, "3": 3}
    revived = live(cluster, REPLICA_SETS, first[0])["metadata"]["annotations"]
    assert revived["deployment.kubernetes.io/revision-history"] == "1"
    assert revived[REVISION] == "3"


async def test_recreate_never_runs_two_templates_at_once(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, strategy={"type": "Recreate"})
    images: list[set[str]] = []
    stop = cluster.subscribe(
        lambda _: images.append({p["spec"]["containers"][0]["image"] for p in cluster.list(PODS)})
    )
    set_image(cluster, "web", "nginx:2")
    await simulator.settled()
    stop()
    assert max(map(len, images)) == 1
    assert images[-1] == {"nginx:2"}
    assert replicas(cluster, "web") == READY


async def test_it_scales_both_ways_and_is_no_rollout(simulator: Simulator, cluster: Cluster):
    await deployed(simulator)
    for size in (6, 1, 0):
        cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": size}})
        await simulator.settled()
        assert len(cluster.list(PODS, "default")) == size
        assert replicas(cluster, "web") == (dict.fromkeys(READY, size) if size else {})
        assert conditions(live(cluster, DEPLOYMENTS, "web"))["Progressing"][1] == (
            "NewReplicaSetAvailable"
        )
    assert revisions(cluster) == {"1": 0}


async def test_a_paused_deployment_scales_but_does_not_roll_out(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"paused": True, "replicas": 2}})
    set_image(cluster, "web", "nginx:2")
    await simulator.settled()
    assert revisions(cluster) == {"1": 2}
    progressing = conditions(live(cluster, DEPLOYMENTS, "web"))["Progressing"]
    assert progressing == ("Unknown", "DeploymentPaused")
    cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"paused": False}})
    await simulator.settled()
    assert revisions(cluster) == {"1": 0, "2": 2}


async def test_a_rollout_that_gets_nowhere_keeps_the_old_pods_and_exceeds_its_deadline(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    patch = {"spec": {"progressDeadlineSeconds": 0}}
    cluster.patch(DEPLOYMENTS, "default", "web", patch)
    set_image(cluster, "web", "sim.fleetbus.dev/image-pull")
    await simulator.settled()
    counts = replicas(cluster, "web")
    assert counts["availableReplicas"] == 3
    assert counts["updatedReplicas"] == 1
    assert conditions(live(cluster, DEPLOYMENTS, "web")) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("False", "ProgressDeadlineExceeded"),
    }
    set_image(cluster, "web", "nginx:3")
    await simulator.settled()
    assert replicas(cluster, "web") == READY
    assert conditions(live(cluster, DEPLOYMENTS, "web"))["Progressing"][0] == "True"


async def test_an_annotation_on_the_deployment_degrades_it_and_its_removal_heals_it(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    for value, ready in (("true", 0), (None, 3)):
        patch = {"metadata": {"annotations": {"sim.fleetbus.dev/never-ready": value}}}
        cluster.patch(DEPLOYMENTS, "default", "web", patch)
        await simulator.settled()
        assert replicas(cluster, "web").get("readyReplicas", 0) == ready
    assert replicas(cluster, "web") == READY


async def test_a_deleted_pod_is_replaced(simulator: Simulator, cluster: Cluster):
    await deployed(simulator)
    victim = names(cluster, PODS)[0]
    cluster.delete(PODS, "default", victim)
    await simulator.settled()
    assert victim not in names(cluster, PODS)
    assert replicas(cluster, "web") == READY


async def test_a_pod_is_released_and_adopted_by_its_labels(simulator: Simulator, cluster: Cluster):
    await deployed(simulator)
    name = names(cluster, PODS)[0]
    labels = live(cluster, PODS, name)["metadata"]["labels"]
    cluster.patch(PODS, "default", name, {"metadata": {"labels": {"app": "elsewhere"}}})
    await simulator.settled()
    assert "ownerReferences" not in live(cluster, PODS, name)["metadata"]
    assert len(names(cluster, PODS)) == 4
    cluster.patch(PODS, "default", name, {"metadata": {"labels": labels}})
    await simulator.settled()
    assert len(names(cluster, PODS)) == 3


async def test_old_replica_sets_are_kept_up_to_the_limit(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, revisionHistoryLimit=2)
    for number in range(2, 7):
        set_image(cluster, "web", f"nginx:{number}")
        await simulator.settled()
    assert revisions(cluster) == {"4": 0, "5": 0, "6": 3}


async def test_a_deployment_recreated_after_orphaning_adopts_everything(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator)
    before = names(cluster, PODS)
    cluster.delete(DEPLOYMENTS, "default", "web", policy="Orphan")
    await simulator.settled()
    assert names(cluster, PODS) == before
    await deployed(simulator)
    assert names(cluster, PODS) == before
    assert len(names(cluster, REPLICA_SETS)) == 1
    assert replicas(cluster, "web") == READY


async def test_a_template_that_the_server_refuses_is_reported_in_the_status(
    simulator: Simulator, cluster: Cluster
):
    body = workload("web", replicas=1)
    body["spec"]["template"]["metadata"]["finalizers"] = ["not a name!"]
    cluster.create(DEPLOYMENTS, body)
    await simulator.settled()
    assert conditions(live(cluster, DEPLOYMENTS, "web"))["ReplicaFailure"] == (
        "True",
        "FailedCreate",
    )


async def test_min_ready_seconds_delay_availability(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, minReadySeconds=3600)
    counts = replicas(cluster, "web")
    assert counts["readyReplicas"] == 3
    assert "availableReplicas" not in counts


async def test_a_name_that_is_taken_is_evaded(simulator: Simulator, cluster: Cluster):
    await deployed(simulator)
    taken = names(cluster, REPLICA_SETS)[0]
    cluster.delete(DEPLOYMENTS, "default", "web", policy="Background")
    await simulator.settled()
    foreign = workload("foreign", replicas=0)
    foreign["metadata"]["name"] = taken
    cluster.create(REPLICA_SETS, foreign)
    await deployed(simulator)
    assert replicas(cluster, "web") == READY
    assert live(cluster, DEPLOYMENTS, "web")["status"]["collisionCount"] == 1


async def test_with_lifelike_delays_it_takes_a_while_and_comes_to_the_same():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing.lifelike(), seed=3) as (simulator,):
        began = clock()
        await deployed(simulator)
        assert replicas(cluster, "web") == READY
        assert timedelta(seconds=1) < clock() - began < timedelta(seconds=4)
        set_image(cluster, "web", "nginx:2")
        await simulator.settled()
        assert replicas(cluster, "web") == READY
        cluster.delete(DEPLOYMENTS, "default", "web")
        cluster.create(PODS, pod("bare"))
        await simulator.settled()
        assert names(cluster, PODS) == ["bare"]


async def test_a_rollout_is_late_when_its_deadline_is_over_and_not_before():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster) as (simulator,):
        await deployed(simulator)
        set_image(cluster, "web", "sim.fleetbus.dev/image-pull")
        for seconds, reason in ((590, "ReplicaSetUpdated"), (15, "ProgressDeadlineExceeded")):
            await clock.advance(timedelta(seconds=seconds))
            assert conditions(live(cluster, DEPLOYMENTS, "web"))["Progressing"][1] == reason
        assert clock.timers == 0


async def test_available_comes_after_min_ready_seconds():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster) as (simulator,):
        await deployed(simulator, minReadySeconds=30)
        assert "availableReplicas" not in replicas(cluster, "web")
        await clock.advance(timedelta(seconds=31))
        assert replicas(cluster, "web") == READY


# changes of the size ----------------------------------------------------------------------------


async def test_a_size_changed_in_the_middle_of_a_rollout_is_shared_in_proportion(
    simulator: Simulator, cluster: Cluster
):
    await deployed(simulator, replicas=10, strategy={"rollingUpdate": {"maxSurge": 3}})
    set_image(cluster, "web", "sim.fleetbus.dev/never-ready")
    await simulator.settled()
    assert revisions(cluster) == {"1": 8, "2": 5}
    cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": 20}})
    sizes: list[dict[str, int]] = []
    stop = cluster.subscribe(lambda _: sizes.append(revisions(cluster)))
    await simulator.settled()
    stop()
    assert {"1": 14, "2": 9} in sizes  # 23 pods at most, shared 8 to 5
    assert sum(sizes[-1].values()) <= 23


async def test_its_events_tell_how_it_was_scaled(simulator: Simulator, cluster: Cluster):
    await deployed(simulator, replicas=2)
    cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": 1}})
    await simulator.settled()
    (name,) = names(cluster, REPLICA_SETS)
    messages = [e["message"] for e in cluster.list(EVENTS) if e["reason"] == "ScalingReplicaSet"]
    assert sorted(messages) == [
        f"Scaled down replica set {name} from 2 to 1",
        f"Scaled up replica set {name} from 0 to 2",
    ]
    assert {e["source"]["component"] for e in cluster.list(EVENTS)} == {"kube-controller-manager"}
