"""Backends of a Service: Endpoints and EndpointSlices; and disruption budgets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    DEPLOYMENTS,
    PODS,
    STATEFUL_SETS,
    conditions,
    live,
    names,
    pod,
    workload,
)
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import ManualClock, Simulator, Timing, simulate

SERVICES = "v1/services"
ENDPOINTS = "v1/endpoints"
SLICES = "discovery.k8s.io/v1/endpointslices"
BUDGETS = "policy/v1/poddisruptionbudgets"
NEVER_READY = {"sim.fleetbus.dev/never-ready": "true"}


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        cluster = Cluster("alpha", seed=1, clock=ManualClock())
        async with simulate(cluster, seed=1) as (simulator,):
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def service(cluster: Cluster, name: str = "web", **spec: Any) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    content = {"selector": {"app": "web"}, "ports": ports, **spec}
    meta = {"name": name, "labels": {"team": "a"}}
    cluster.create(SERVICES, {"metadata": meta, "spec": content}, "default")


def addresses(cluster: Cluster, name: str = "web") -> tuple[list[str], list[str]]:
    """The names of the pods that are ready, and of those that are not."""
    found: tuple[list[str], list[str]] = ([], [])
    for subset in live(cluster, ENDPOINTS, name).get("subsets", []):
        for place, kind in enumerate(("addresses", "notReadyAddresses")):
            found[place].extend(sorted(a["targetRef"]["name"] for a in subset.get(kind, [])))
    return found


def sliced(cluster: Cluster, name: str = "web") -> dict[str, list[dict[str, Any]]]:
    """The endpoints by slice."""
    slices = cluster.list(SLICES, "default", labels=f"kubernetes.io/service-name={name}")
    return {s["metadata"]["name"]: s.get("endpoints", []) for s in slices}


async def test_a_service_shows_its_ready_pods(simulator: Simulator, cluster: Cluster):
    service(cluster)
    cluster.create(DEPLOYMENTS, workload("web", replicas=2))
    cluster.create(PODS, {**pod("sick", NEVER_READY), "metadata": _labelled("sick", NEVER_READY)})
    await simulator.settled()
    ready, waiting = addresses(cluster)
    assert (len(ready), waiting) == (2, ["sick"])
    (subset,) = live(cluster, ENDPOINTS, "web")["subsets"]
    assert subset["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    address = subset["addresses"][0]
    assert address["ip"] == live(cluster, PODS, address["targetRef"]["name"])["status"]["podIP"]
    assert live(cluster, ENDPOINTS, "web")["metadata"]["labels"] == {"team": "a"}
    (endpoints,) = sliced(cluster).values()
    assert sorted(e["conditions"]["ready"] for e in endpoints) == [False, True, True]


def _labelled(name: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "labels": {"app": "web"}, "annotations": annotations or {}}


async def test_its_slices_are_marked_and_owned(simulator: Simulator, cluster: Cluster):
    service(cluster)
    cluster.create(DEPLOYMENTS, workload("web", replicas=1))
    await simulator.settled()
    (endpoint_slice,) = cluster.list(SLICES, "default")
    meta = endpoint_slice["metadata"]
    assert meta["name"].startswith("web-")
    assert meta["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("Service", True)
    assert (endpoint_slice["addressType"], endpoint_slice["ports"][0]["port"]) == ("IPv4", 8080)
    cluster.delete(SERVICES, "default", "web")
    await simulator.settled()
    assert names(cluster, SLICES) == names(cluster, ENDPOINTS) == []


async def test_pods_come_and_go_behind_it(simulator: Simulator, cluster: Cluster):
    service(cluster)
    cluster.create(DEPLOYMENTS, workload("web", replicas=3))
    await simulator.settled()
    for size in (1, 4, 0):
        cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": size}})
        await simulator.settled()
        assert addresses(cluster) == (names(cluster, PODS), [])
        assert sum(map(len, sliced(cluster).values())) == size


async def test_a_pod_is_behind_the_service_that_its_labels_say(
    simulator: Simulator, cluster: Cluster
):
    service(cluster, "a", selector={"app": "web", "track": "a"})
    service(cluster, "b", selector={"app": "web", "track": "b"})
    body = pod("p")
    body["metadata"]["labels"] = {"app": "web", "track": "a"}
    cluster.create(PODS, body)
    await simulator.settled()
    assert (addresses(cluster, "a"), addresses(cluster, "b")) == ((["p"], []), ([], []))
    cluster.patch(PODS, "default", "p", {"metadata": {"labels": {"track": "b"}}})
    await simulator.settled()
    assert (addresses(cluster, "a"), addresses(cluster, "b")) == (([], []), (["p"], []))


async def test_a_pod_on_its_way_out_still_serves_but_is_not_ready():
    clock = ManualClock()
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing(stop=timedelta(seconds=9))) as (simulator,):
        service(cluster)
        cluster.create(PODS, {**pod("p"), "metadata": _labelled("p")})
        await simulator.settled()
        cluster.delete(PODS, "default", "p")
        await clock.advance(timedelta(seconds=1))
        ((endpoint,),) = sliced(cluster).values()
        assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}


async def test_hundreds_of_pods_fill_slices_and_a_change_touches_one(
    simulator: Simulator, cluster: Cluster
):
    service(cluster)
    cluster.create(DEPLOYMENTS, workload("web", replicas=230))
    await simulator.settled()
    assert sorted(map(len, sliced(cluster).values())) == [30, 100, 100]
    touched: set[str] = set()
    stop = cluster.subscribe(
        lambda c: touched.add(c.new["metadata"]["name"]) if c.resource == "endpointslices" else None
    )
    annotations = {"metadata": {"annotations": NEVER_READY}}
    cluster.patch(PODS, "default", names(cluster, PODS)[0], annotations)
    await simulator.settled()
    stop()
    assert len(touched) == 1


async def test_named_ports_are_those_of_each_pod(simulator: Simulator, cluster: Cluster):
    service(cluster, ports=[{"port": 80, "targetPort": "web"}])
    for name, number in (("old", 8080), ("new", 9090)):
        body = pod(name)
        body["metadata"]["labels"] = {"app": "web"}
        body["spec"]["containers"][0]["ports"] = [{"name": "web", "containerPort": number}]
        cluster.create(PODS, body)
    await simulator.settled()
    subsets = live(cluster, ENDPOINTS, "web")["subsets"]
    assert sorted(s["ports"][0]["port"] for s in subsets) == [8080, 9090]
    assert len(sliced(cluster)) == 2


async def test_a_headless_service_tells_the_names_of_pods(simulator: Simulator, cluster: Cluster):
    service(cluster, "db", clusterIP="None", selector={"app": "db"}, publishNotReadyAddresses=True)
    body = workload("db", replicas=1, serviceName="db", annotations=NEVER_READY)
    cluster.create(STATEFUL_SETS, body)
    await simulator.settled()
    assert addresses(cluster, "db") == (["db-0"], [])
    (subset,) = live(cluster, ENDPOINTS, "db")["subsets"]
    assert subset["addresses"][0]["hostname"] == "db-0"
    labels = live(cluster, ENDPOINTS, "db")["metadata"]["labels"]
    assert labels["service.kubernetes.io/headless"] == ""
    ((endpoint,),) = sliced(cluster, "db").values()
    assert (endpoint["hostname"], endpoint["conditions"]["ready"]) == ("db-0", True)


@pytest.mark.parametrize(
    "spec", [{"selector": None}, {"type": "ExternalName", "externalName": "example.com"}]
)
async def test_a_service_that_selects_no_pods_is_left_alone(
    simulator: Simulator, cluster: Cluster, spec: dict[str, Any]
):
    service(cluster, **spec)
    await simulator.settled()
    assert names(cluster, ENDPOINTS) == names(cluster, SLICES) == []


async def test_endpoints_that_were_deleted_are_written_again(
    simulator: Simulator, cluster: Cluster
):
    service(cluster)
    cluster.create(DEPLOYMENTS, workload("web", replicas=1))
    await simulator.settled()
    cluster.delete(ENDPOINTS, "default", "web")
    cluster.delete(SLICES, "default", *sliced(cluster))
    await simulator.settled()
    assert len(addresses(cluster)[0]) == len(sliced(cluster)) == 1


# budgets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 3}, 3, 1),
        ({"minAvailable": "75%"}, 3, 1),
        ({"maxUnavailable": 3}, 1, 3),
        ({"maxUnavailable": "50%"}, 2, 2),
        ({"minAvailable": 5}, 5, 0),
    ],
)
async def test_a_budget_says_how_many_pods_may_go(
    simulator: Simulator, cluster: Cluster, spec: dict[str, Any], desired: int, allowed: int
):
    cluster.create(DEPLOYMENTS, workload("web", replicas=4))
    selector = {"matchLabels": {"app": "web"}}
    budget = {"metadata": {"name": "web"}, "spec": {"selector": selector, **spec}}
    cluster.create(BUDGETS, budget, "default")
    await simulator.settled()
    found = live(cluster, BUDGETS, "web")
    reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    assert conditions(found) == {"DisruptionAllowed": reason}
    status = {n: v for n, v in found["status"].items() if n not in ("conditions", "disruptedPods")}
    assert status == {
        "observedGeneration": 1,
        "expectedPods": 4,
        "currentHealthy": 4,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
    }


async def test_a_budget_follows_its_pods(simulator: Simulator, cluster: Cluster):
    cluster.create(DEPLOYMENTS, workload("web", replicas=4))
    spec: dict[str, Any] = {"selector": {}, "maxUnavailable": 1}
    cluster.create(BUDGETS, {"metadata": {"name": "all"}, "spec": spec}, "default")
    await simulator.settled()
    annotations = {"metadata": {"annotations": NEVER_READY}}
    cluster.patch(PODS, "default", names(cluster, PODS)[0], annotations)
    await simulator.settled()
    status = live(cluster, BUDGETS, "all")["status"]
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (3, 0)
    cluster.patch(DEPLOYMENTS, "default", "web", {"spec": {"replicas": 2}})
    await simulator.settled()
    status = live(cluster, BUDGETS, "all")["status"]
    assert (status["expectedPods"], status["desiredHealthy"]) == (2, 1)
