"""A cluster that does not answer costs its callers nothing, and is found again when it does."""

from __future__ import annotations

import pathlib
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from types import SimpleNamespace

import pytest

from fleetbus import errors
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.client import KubeClient
from fleetbus.kube.config import read_kube_config
from fleetbus.kube.unreachable import FAILURES, Breaker
from fleetbus_devfleet.apiserver import Cluster, serve
from fleetbus_devfleet.apiserver.faults import Fail, Hang

MAPS = "v1/configmaps"
SHORT = timedelta(milliseconds=50)


class Clock:
    """The time of the breaker, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("fleetbus.kube.unreachable.time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("eu1")


@pytest.fixture
async def client(cluster: Cluster, tmp_path: pathlib.Path) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers:
        path = tmp_path / "kubeconfig"
        servers.write_kubeconfig(path)
        async with KubeClient(read_kube_config(path)) as client:
            client.cluster, client.breaker = "eu1", Breaker("eu1")
            yield client


async def fail(client: KubeClient, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(errors.Unreachable):
            await client.request("GET", "/api/v1/pods", within=SHORT)


async def test_q9_after_three_failures_in_a_row_calls_fail_at_once(
    client: KubeClient, cluster: Cluster, clock: Clock
) -> None:
    hang = cluster.faults.add(Hang())
    await fail(client, FAILURES)
    asked = len(cluster.requests)
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(errors.Unreachable, match="'eu1' does not answer") as refused:
            await client.request("GET", "/api/v1/pods", within=timedelta(seconds=30))
        assert refused.value.cluster == "eu1"  # so that the queue's breaker counts it, too
    assert time.monotonic() - started < 5
    assert len(cluster.requests) == asked
    hang.remove()
    with pytest.raises(errors.Unreachable):
        await client.get(MAPS, "default", "a")  # not yet
    clock.now += 5
    assert await client.get(MAPS, "default", "a") is None
    assert await client.get(MAPS, "default", "a") is None


async def test_q9_whoever_tries_again_asks_for_the_version_and_never_sends_a_write_to_try(
    client: KubeClient, cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.kube.client.CONNECT_TIMEOUT", timedelta(milliseconds=100))
    cluster.faults.add(Hang())
    await fail(client, FAILURES)
    clock.now += 5
    before = len(cluster.requests)
    with pytest.raises(errors.Unreachable):
        await client.create(MAPS, {"metadata": {"name": "a", "namespace": "default"}})
    with pytest.raises(errors.Unreachable):
        await client.create(MAPS, {"metadata": {"name": "a", "namespace": "default"}})
    asked = list(cluster.requests)[before:]
    assert {(one.method, one.path) for one in asked} == {("GET", "/version")}


async def test_q9_an_answer_between_failures_keeps_the_way_open(
    client: KubeClient, cluster: Cluster
) -> None:
    for _ in range(3):
        hang = cluster.faults.add(Hang())
        await fail(client, FAILURES - 1)
        hang.remove()
        refusal = cluster.faults.add(Fail(status=500))
        with pytest.raises(errors.ServerError):
            await client.get(MAPS, "default", "a")
        refusal.remove()
    assert await client.get(MAPS, "default", "a") is None


async def test_a_refusal_of_whoever_tries_again_is_an_answer(
    client: KubeClient, cluster: Cluster, clock: Clock
) -> None:
    hang = cluster.faults.add(Hang())
    await fail(client, FAILURES)
    hang.remove()
    cluster.faults.add(Fail(status=403), count=1)  # the knock
    clock.now += 5
    assert await client.get(MAPS, "default", "a") is None


async def test_every_cluster_of_the_fleet_has_its_own() -> None:
    info = ClusterInfo(name="eu1", hub=True, provider="test", config=None)
    clusters = Clusters([], hub=info)
    breaker = clusters.client("eu1").breaker
    assert breaker is not None
    assert not breaker.is_open
    await clusters.aclose()
