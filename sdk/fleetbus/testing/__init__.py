"""For authors of controllers: tests against emulated clusters.

    from fleetbus.testing import controller_test

    async def test_the_copy_follows_its_source():
        async with controller_test(copier, clusters=["a", "b"]) as t:
            t.clusters["a"].create("v1/configmaps", {"metadata": {"name": "x"}}, "default")
            await t.run_until_idle()
            assert t.clusters["b"].get("v1/configmaps", "default", "x")

`emulated_fleet` serves the clusters alone. They speak HTTP, so a test uses the same clients as the
program it tests. They come from the distribution `fleetbus-devfleet`, and the pytest
fixtures `fleet`, `cluster` and `fault` with them; the classes here are what a test may rely on.
docs/testing.md tells more.
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

    What happens between a change and the reconcile is what happens in production: the snapshot,
    the router, the worker and the fleet are the SDK's own. Only the bus is left out, and the queue
    is one of this process, whose time stands still until it is moved.

    Args:
        controllers: whole ones, of different names.
        clusters: names; or names with their labels; or a fleet that runs already.
        hub: which of them is the hub, if any.
        workloads: whether Deployments become ready and Jobs complete; of a fleet that runs
            already this was said when it was started.
        store: the URL of a Redis or Valkey for this test alone; by default one is started for all
            tests of the process. It must be empty, or have been used by a test before.

    Raises:
        ConfigError: a controller is not whole, the store is somebody else's, or
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
