"""T3: the example podghost, from two clusters to a third."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import yaml
from structlog.testing import capture_logs

from fleetbus.controller.load import load_controllers
from fleetbus.ownership import owner_of
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually, never
from support.full import FULL
from support.objects import pod
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "podghost"
GHOSTS = "examples.fleetbus.dev/v1alpha1/podghosts"
PODS = "v1/pods"


def ghosts(rig: Rig) -> dict[tuple[str, str, str], str]:
    """Cluster, namespace and name of each Pod that has a ghost → the ghost's name."""
    by_place: dict[tuple[str, str, str], str] = {}
    if rig.clusters["b"].get(CRDS, None, "podghosts.examples.fleetbus.dev") is None:
        return by_place
    for ghost in rig.clusters["b"].list(GHOSTS, "default"):
        owner = owner_of(ghost)
        assert owner is not None
        place = (owner.cluster_name, owner.namespace, owner.name)
        assert place not in by_place, "a Pod has one ghost"
        by_place[place] = ghost["metadata"]["name"]
    return by_place


async def haunted(rig: Rig, *places: tuple[str, str, str], within: timedelta = WITHIN) -> None:
    await eventually(lambda: ghosts(rig).keys() == set(places), within)


@pytest.mark.full  # its example has a test that always runs
async def test_t3_every_pod_of_two_clusters_has_one_ghost_also_when_the_kind_comes_later(
    open_rig: Callable[..., Awaitable[Rig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETBUS_EXAMPLE_SOURCES", "a,c")
    monkeypatch.setenv("FLEETBUS_EXAMPLE_DESTINATION", "b")
    if not FULL:
        monkeypatch.setenv("FLEETBUS_EXAMPLE_AGAIN_SECONDS", "0.5")
    rig = await open_rig("a", "b", "c", resources=(PODS, GHOSTS))
    a, b, c = (rig.clusters[name] for name in "abc")
    a.create(PODS, pod("p"), "kube-public")
    with capture_logs() as logs:
        rig.start_reconciler(*load_controllers([str(FOLDER / "controller.py")]))
        for name in rig.clusters:
            rig.start_watcher(name, discovery_interval=timedelta(seconds=0.5))
        await eventually(
            lambda: [line for line in logs if line["event"] == "child_kind_or_namespace_missing"],
            WITHIN,
        )  # everything else runs, and b is named
    b.create(CRDS, yaml.safe_load((FOLDER / "crd.yaml").read_text()))
    await haunted(rig, ("a", "kube-public", "p"), within=max(WITHIN, timedelta(seconds=10)))
    (name,) = ghosts(rig).values()
    assert name.startswith("kube-public-p")
    b.delete(GHOSTS, "default", name)
    await eventually(lambda: b.get(GHOSTS, "default", name) is None, WITHIN)
    await haunted(rig, ("a", "kube-public", "p"))  # made again
    a.delete(PODS, "kube-public", "p")
    await haunted(rig)
    for cluster, namespace, other in ((a, "a-b", "c"), (a, "a", "b-c"), (c, "a", "b-c")):
        cluster.create("v1/namespaces", {"metadata": {"name": namespace}})
        cluster.create(PODS, pod(other), namespace)
    await haunted(
        rig, ("a", "a-b", "c"), ("a", "a", "b-c"), ("c", "a", "b-c")
    )  # names that would collide
    assert len(set(ghosts(rig).values())) == 3
    a.delete(PODS, "a", "b-c")
    await haunted(rig, ("a", "a-b", "c"), ("c", "a", "b-c"))
    await never(lambda: len(ghosts(rig)) != 2, QUIET)
