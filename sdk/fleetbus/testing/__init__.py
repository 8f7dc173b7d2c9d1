"""For authors of controllers: tests against emulated clusters.

    from fleetbus.testing import controller_test

    async def test_the_copy_follows_its_source():
        async with controller_test(copier, clusters=["a", "b"]) as t:
            t.clusters["a"].create("v1/configmaps", {"metadata": {"name": "x"}}, "default")
            await t.run_until_idle()
            assert t.clusters["b"].get("v1/configmaps", "default", "x")

`emulated_fleet` serves only the clusters. They speak HTTP, so a test uses the same clients as the
program it tests. They come from the distribution `fleetbus-devfleet`, together with the pytest
fixtures `fleet`, `cluster` and `fault`; the classes here are their stable interface. See
docs/testing.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from fleetbus.controller.controller import Controller
from fleetbus.testing.converge import assert_converges
from fleetbus.testing.emulated import EmulatedCluster, EmulatedFleet, emulated_fleet
from fleetbus.testing.harness import ControllerTest, Write, harness
from fleetbus.testing.runner import NotIdle, Reconciled

__all__ = [
    "ControllerTest",
    "EmulatedCluster",
    "EmulatedFleet",
    "NotIdle",
    "Reconciled",
    "Write",
    "assert_converges",
    "controller_test",
    "emulated_fleet",
]


@asynccontextmanager
async def controller_test(
    *controllers: Controller,
    clusters: Sequence[str] | Mapping[str, Mapping[str, str]] | EmulatedFleet = ("a", "b"),
    hub: str = "",
    workloads: bool = False,
    store: str = "",
) -> AsyncGenerator[ControllerTest]:
    """Test controllers in this process, on emulated clusters, without waiting.

    Between a change and the reconcile run the same snapshot, router, worker and fleet as in
    production. Only the bus is left out, and the queue is in memory, with a clock that stands
    still until it is advanced.

    Args:
        controllers: complete ones, with different names.
        clusters: names; or names with their labels; or a running fleet.
        hub: which of them is the hub, if any.
        workloads: whether Deployments become ready and Jobs complete; ignored for a running
            fleet.
        store: URL of a Redis or Valkey only for this test; by default one is started for all tests
            of the process. It must be empty, or have been used by an earlier test.

    Raises:
        ConfigError: a controller is incomplete, the store holds other data, or
            fleetbus-devfleet is not installed.
    """
    names: list[str]
    labels: Mapping[str, Mapping[str, str]] = {}
    if isinstance(clusters, Mapping):
        names, labels = list(clusters), clusters
    elif isinstance(clusters, Sequence):
        names = list(clusters)
    else:
        async with harness(controllers, clusters, labels={}, hub=hub, store=store) as test:
            yield test
        return
    with emulated_fleet(names, workloads=workloads) as fleet:
        async with harness(controllers, fleet, labels=labels, hub=hub, store=store) as test:
            yield test
