"""The loop: it rests, recovers, yields, ends, and repeats itself."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    job,
    live,
    names,
    owned,
    pod,
    replicas,
    workload,
)
from fleetbus_emulator.apiserver import Change, Cluster, serve
from fleetbus_emulator.controllers import (
    CONTROL_PLANE,
    EVERYTHING,
    HOUSEKEEPING,
    ManualClock,
    Simulator,
    Timing,
    simulate,
)
from fleetbus_emulator.controllers.namespace_defaults import RootCertificates
from fleetbus_emulator.controllers.runtime.index import Ref
from support.eventually import eventually

SHORT = Timing(
    schedule=timedelta(milliseconds=5),
    start=timedelta(milliseconds=20),
    ready=timedelta(milliseconds=10),
    run=timedelta(milliseconds=20),
    jitter=1.0,
)


def populate(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, workload("web", replicas=3))
    cluster.create(DEPLOYMENTS, workload("sick", image="sim.fleetbus.dev/crash-loop", replicas=2))
    cluster.create(STATEFUL_SETS, workload("db", replicas=2))
    cluster.create(JOBS, job("j"))
    cluster.create(PODS, pod("bare"))


async def test_an_idle_simulator_writes_nothing_and_waits_for_nothing():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=SHORT):
        populate(cluster)
        await clock.advance(timedelta(hours=1))  # the sick Deployment exceeds its deadline
        before = cluster.resource_version
        assert clock.timers == 0
        await clock.advance(timedelta(days=1))
        assert cluster.resource_version == before


async def test_work_that_takes_other_items_out_of_the_queue_does_not_end_the_controllers():
    """Deadlines pass while the machine is busy; a Job's clean-up then forgets its pod's items."""
    short = timedelta(milliseconds=5)
    timing = Timing(
        start=short, ready=short, stop=short, run=short, collect=short, notice=short, jitter=0.5
    )
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, timing=timing, seed=1):
        for number in range(20):
            cluster.create(JOBS, job(f"brief-{number}", ttlSecondsAfterFinished=0))
            for _ in range(5):
                time.sleep(0.01)  # noqa: ASYNC251 - the machine is busy
                await asyncio.sleep(0)
        await eventually(lambda: names(cluster, JOBS) == [])


async def test_a_write_that_concerns_no_controller_leaves_it_at_rest():
    async with simulate(Cluster("alpha")) as (simulator,):
        await simulator.settled()
        simulator.cluster.create(CONFIG_MAPS, {"metadata": {"name": "plain"}})
        await simulator.settled()


async def test_a_simulator_that_starts_on_a_finished_cluster_writes_nothing():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster) as (simulator,):
        populate(cluster)
        await simulator.settled()
    before = cluster.resource_version
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
    assert cluster.resource_version == before


async def test_what_was_begun_is_finished_by_the_next_simulator():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, timing=Timing(ready=timedelta(hours=1))):
        cluster.create(DEPLOYMENTS, workload("web", replicas=3))
        await eventually(lambda: len(cluster.list(PODS, "default")) == 3)
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
        assert replicas(cluster, "web")["readyReplicas"] == 3


async def test_one_simulator_can_run_again():
    cluster = Cluster("alpha", seed=1)
    simulator = Simulator(cluster)
    for name in ("a", "b"):
        running = asyncio.create_task(simulator.run())
        cluster.create(PODS, pod(name))
        await simulator.settled()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert live(cluster, PODS, name)["status"]["phase"] == "Running"


async def test_no_task_is_left_when_it_stops_in_the_middle():
    cluster = Cluster("alpha", seed=1)
    before = asyncio.all_tasks()
    async with simulate(cluster, timing=Timing.lifelike()):
        populate(cluster)
        await eventually(lambda: cluster.list(PODS))
    assert asyncio.all_tasks() == before
    at_the_end = cluster.resource_version
    await asyncio.sleep(0.1)
    assert cluster.resource_version == at_the_end


async def test_the_error_of_the_block_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with simulate(Cluster("alpha")):
            raise ZeroDivisionError


async def test_several_clusters_live_side_by_side():
    clusters = [Cluster("alpha", seed=1), Cluster("beta", seed=2)]
    async with simulate(clusters, timing=SHORT) as simulators:
        for cluster in clusters:
            populate(cluster)
        for simulator in simulators:
            await simulator.settled()
        assert [s.cluster for s in simulators] == clusters
        for cluster in clusters:
            assert replicas(cluster, "web")["readyReplicas"] == 3


async def test_a_seed_repeats_itself():
    def history(cluster: Cluster) -> list[tuple[str, str, str]]:
        return [(c.type, c.resource, c.name) for c in cluster.history]

    runs: list[list[tuple[str, str, str]]] = []
    for _ in range(2):
        cluster = Cluster("alpha", seed=1)
        async with simulate(cluster, seed=5) as (simulator,):
            populate(cluster)
            await simulator.settled()
        runs.append(history(cluster))
    assert runs[0] == runs[1]


async def test_a_rival_that_writes_first_is_tolerated():
    cluster = Cluster("alpha", seed=1)

    def meddle(change: Change) -> None:
        """Change every pod before the simulator is notified, and so make its writes conflict."""
        meta = change.new["metadata"]
        if change.resource == "pods" and change.type == "ADDED":
            patch = {"metadata": {"annotations": {"rival": "here"}}}
            cluster.patch(PODS, meta["namespace"], meta["name"], patch)

    cluster.subscribe(meddle)
    async with simulate(cluster) as (simulator,):
        cluster.create(DEPLOYMENTS, workload("web", replicas=5))
        await simulator.settled()
        assert replicas(cluster, "web")["readyReplicas"] == 5


async def test_a_rival_that_deletes_at_once_is_tolerated():
    cluster = Cluster("alpha", seed=1)
    victims = 20

    def kill(change: Change) -> None:
        nonlocal victims
        if change.resource == "pods" and change.type == "ADDED" and victims:
            victims -= 1
            cluster.delete(
                PODS, change.new["metadata"]["namespace"], change.new["metadata"]["name"]
            )

    cluster.subscribe(kill)
    with capture_logs() as logs:
        async with simulate(cluster) as (simulator,):
            cluster.create(DEPLOYMENTS, workload("web", replicas=5))
            await simulator.settled()
            assert replicas(cluster, "web")["readyReplicas"] == 5
    assert [line for line in logs if line["log_level"] == "error"] == []


async def test_an_object_that_makes_no_sense_stops_nobody_else():
    cluster = Cluster("alpha", seed=1)
    with capture_logs() as logs:
        async with simulate(cluster) as (simulator,):
            strategy = {"rollingUpdate": {"maxSurge": "many"}}
            cluster.create(DEPLOYMENTS, workload("odd", replicas=2, strategy=strategy))
            cluster.create(DEPLOYMENTS, workload("web", replicas=2))
            await simulator.settled()
            assert replicas(cluster, "web")["readyReplicas"] == 2
            patch = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}}
            cluster.patch(DEPLOYMENTS, "default", "odd", patch)
            await simulator.settled()
            assert replicas(cluster, "odd")["readyReplicas"] == 2
    assert {line["name"] for line in logs if line["log_level"] == "error"} == {"odd"}


async def test_a_write_succeeds_though_a_controller_cannot_read_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
):
    def requests_for(_: object, change: Change, ref: Ref) -> Iterable[Ref]:
        raise RuntimeError(f"{change.type} {ref.name}")

    monkeypatch.setattr(RootCertificates, "requests_for", requests_for)
    cluster = Cluster("alpha", seed=1)
    with capture_logs() as logs:
        async with simulate(cluster) as (simulator,):
            cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}})
            cluster.create(PODS, pod("p"))
            await simulator.settled()
            assert live(cluster, PODS, "p")["status"]["phase"] == "Running"
    errors = [line for line in logs if line["log_level"] == "error"]
    assert {line["controller"] for line in errors} == {"root-ca"}
    assert "c" in {line["name"] for line in errors}


async def test_a_write_that_keeps_being_refused_is_tried_no_more():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    body = workload("web", replicas=1)
    body["spec"]["template"]["metadata"]["finalizers"] = ["not a name!"]
    async with simulate(cluster) as (simulator,):
        cluster.create(DEPLOYMENTS, body)
        await simulator.settled()
        await clock.advance(timedelta(seconds=60))
        assert clock.timers == 1  # the progress deadline
        at_last = cluster.resource_version
        await clock.advance(timedelta(seconds=60))
        assert cluster.resource_version == at_last


# which controllers there are --------------------------------------------------------------------


async def test_with_housekeeping_only_pods_stay_pending_and_garbage_goes():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=HOUSEKEEPING) as (simulator,):
        deployment = cluster.create(DEPLOYMENTS, workload("web", replicas=2))
        cluster.create(PODS, pod("p"))
        cluster.create(CONFIG_MAPS, owned("child", deployment))
        await simulator.settled()
        assert live(cluster, DEPLOYMENTS, "web")["status"] == {}
        assert live(cluster, PODS, "p")["status"]["phase"] == "Pending"
        assert names(cluster, "v1/serviceaccounts") == ["default"]
        assert cluster.list("v1/nodes") == []
        cluster.delete(DEPLOYMENTS, "default", "web")
        await simulator.settled()
        assert names(cluster, CONFIG_MAPS) == ["kube-root-ca.crt"]


async def test_each_namespace_names_the_authority_that_clients_have_to_trust():
    cluster = Cluster("alpha")
    async with (
        serve([cluster], tls=True) as servers,
        simulate(cluster, controllers=HOUSEKEEPING) as (simulator,),
    ):
        await simulator.settled()
        trusted: str = live(cluster, CONFIG_MAPS, "kube-root-ca.crt")["data"]["ca.crt"]
        (entry,) = servers.kubeconfig()["clusters"]
    data = entry["cluster"]["certificate-authority-data"]
    assert trusted.encode() == base64.b64decode(data)


async def test_a_control_plane_makes_pods_that_stay_pending():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=CONTROL_PLANE) as (simulator,):
        cluster.create(DEPLOYMENTS, workload("web", replicas=2))
        await simulator.settled()
        assert replicas(cluster, "web") == {
            "replicas": 2,
            "updatedReplicas": 2,
            "unavailableReplicas": 2,
        }
        assert {p["status"]["phase"] for p in cluster.list(PODS)} == {"Pending"}
        for name in names(cluster, PODS):
            ready = {"type": "Ready", "status": "True"}
            patch = {"status": {"phase": "Running", "conditions": [ready]}}
            cluster.patch(PODS, "default", name, patch, subresource="status")
        await simulator.settled()
        assert replicas(cluster, "web")["availableReplicas"] == 2


async def test_single_controllers_can_be_left_out():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster, controllers=EVERYTHING - {"root-ca", "replicaset"}) as (
        simulator,
    ):
        cluster.create(DEPLOYMENTS, workload("web", replicas=2))
        await simulator.settled()
        assert names(cluster, CONFIG_MAPS) == names(cluster, PODS) == []
        assert len(names(cluster, REPLICA_SETS)) == 1


def test_a_controller_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="no controller is called 'kublet'; there are cronjob"):
        Simulator(Cluster("alpha"), controllers={"kublet"})


def test_the_documentation_names_every_controller():
    page = (Path(__file__).parents[3] / "docs/emulator.md").read_text()
    sentence = page.partition("`simulate(cluster, controllers=…)` takes names: ")[2].partition(
        ".\n"
    )[0]
    assert set(re.findall(r"`([a-z-]+)`", sentence)) == EVERYTHING


async def test_strays_are_adopted_before_others_are_made():
    cluster = Cluster("alpha", seed=1)
    for number in range(3):
        stray = pod(f"stray-{number}")
        stray["metadata"]["labels"] = {"app": "web"}
        cluster.create(PODS, stray)
    cluster.create(REPLICA_SETS, workload("web", replicas=3))
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
    assert names(cluster, PODS) == ["stray-0", "stray-1", "stray-2"]
    assert max(int(c.name[-1]) for c in cluster.history if c.resource == "pods") == 2


async def test_a_rolled_back_cluster_is_read_afresh():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
        empty = cluster.resource_version
        cluster.create(DEPLOYMENTS, workload("web", replicas=3))
        await simulator.settled()
        cluster.roll_back(empty)
        cluster.create(DEPLOYMENTS, workload("web", replicas=2))
        await simulator.settled()
        assert len(cluster.list(PODS, "default")) == 2
        assert replicas(cluster, "web")["readyReplicas"] == 2


async def test_hundreds_of_pods_come_and_go_in_small_portions():
    cluster = Cluster("alpha", seed=1)
    most_writes = 0

    async def watch_the_loop() -> None:
        nonlocal most_writes
        while True:
            before = cluster.resource_version
            await asyncio.sleep(0)
            most_writes = max(most_writes, cluster.resource_version - before)

    async with simulate(cluster) as (simulator,):
        cluster.create("v1/namespaces", {"metadata": {"name": "big"}})
        cluster.create(DEPLOYMENTS, workload("one", replicas=150), "big")
        for number in range(5):
            cluster.create(DEPLOYMENTS, workload(f"web-{number}", replicas=20), "big")
        watching = asyncio.create_task(watch_the_loop())
        await simulator.settled()
        assert len(names(cluster, PODS, "big")) == 250
        cluster.delete("v1/namespaces", None, "big")
        await simulator.settled()
        watching.cancel()
        assert "big" not in names(cluster, "v1/namespaces", "")
        assert names(cluster, CONFIG_MAPS, "big") == []
    assert most_writes < 200


async def calls_for(pods: int) -> int:
    """Count the Python calls of a cluster with so many pods, from start to end."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    cluster = Cluster("alpha", seed=1, clock=ManualClock())
    selector = {"matchLabels": {"app": "web"}}
    async with simulate(cluster, timing=Timing.lifelike(), seed=1) as (simulator,):
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        cluster.create("v1/services", {"metadata": {"name": "web"}, "spec": spec})
        budget = {"metadata": {"name": "web"}, "spec": {"selector": selector}}
        cluster.create("policy/v1/poddisruptionbudgets", budget)
        sys.setprofile(count)
        try:
            cluster.create(DEPLOYMENTS, workload("web", replicas=pods))
            await simulator.settled()
            assert replicas(cluster, "web")["readyReplicas"] == pods
            cluster.delete(DEPLOYMENTS, "default", "web")
            await simulator.settled()
        finally:
            sys.setprofile(None)
    return calls


async def test_the_work_grows_with_the_pods_and_not_with_their_square():
    few, many = [await calls_for(pods) for pods in (12, 72)]
    assert many < 1.1 * 6 * few


@pytest.mark.parametrize("wrong", [{"jitter": 1.5}, {"start": timedelta(seconds=-1)}])
def test_timing_refuses_nonsense(wrong: dict[str, object]):
    with pytest.raises(ValueError, match="must"):
        Timing(**wrong)  # pyright: ignore[reportArgumentType]
