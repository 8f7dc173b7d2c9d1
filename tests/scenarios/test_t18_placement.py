"""T18: which clusters get it, in which namespace, and what is never deleted by mistake."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from support.eventually import eventually, never
from support.rigs.distribution import EVERYWHERE, HUB, IN_FULL, distribution
from support.rigs.distributor import CONFIG_MAP
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"
PROD: dict[str, Any] = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}
ALL_PROD = {name: {"tier": "prod"} for name in ("t1", "t2", HUB)}


def template(namespace: str | None = "default", name: str = "m") -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"] = {"name": name, **({"namespace": namespace} if namespace else {})}
    return copied


def named(*names: str) -> dict[str, Any]:
    return {"clusters": [{"name": name} for name in names]}


async def test_t18_names_decide_and_an_unknown_one_waits_for_its_cluster(open_rig: Open) -> None:
    async with distribution(open_rig, later=["t3"]) as d:
        d.create(template=template())
        await d.applied(HUB)
        d.edit(placement={})
        await d.applied(HUB)
        assert d.where(MAPS, "m") == [HUB]

        d.edit(placement=named("mars"))  # never redirected to the hub, and what is there is held
        await d.has_states(mars="Waiting/UnknownCluster", t4="Held/EmptySelection")
        d.edit(placement=named("t1", "t3"))
        await d.has_states(t1="Applied", t3="Waiting/UnknownCluster")
        await eventually(lambda: d.where(MAPS, "m") == ["t1"], WITHIN)
        d.join("t3")
        await d.applied("t1", "t3")
        assert d.where(MAPS, "m") == ["t1", "t3"]

        d.create("only-unknown", template=template(name="u"), placement=named("mars", "venus"))
        await d.has_states(
            "only-unknown", mars="Waiting/UnknownCluster", venus="Waiting/UnknownCluster"
        )
        await never(lambda: d.where(MAPS, "u"), QUIET)
        await d.close(deleted=[f"{HUB} m"])


async def test_t18_labels_of_clusters_decide(open_rig: Open) -> None:
    async with distribution(open_rig, labels={"t1": {"tier": "prod"}}) as d:
        d.create(template=template(), placement=PROD, policy={"fuse": {"percent": 50}})
        await d.applied("t1")
        d.label("t2", tier="prod")
        await d.applied("t1", "t2")
        d.label("t2", tier=None)
        await eventually(lambda: d.where(MAPS, "m") == ["t1"], WITHIN)
        await d.applied("t1")
        await d.close(deleted=["t2 m"])


async def test_t18_namespaces_are_waited_for_or_created_but_never_deleted(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        d.create(template=template(None), placement=EVERYWHERE)
        await d.applied()
        assert d.where(MAPS, "m", "default") == ["t1", "t2", HUB]

        d.create("far", template=template("far"), placement=named("t1", "t2"))
        waiting = "Waiting/NamespaceMissing"
        await d.has_states("far", t1=waiting, t2=waiting)
        d.rig.clusters["t1"].create("v1/namespaces", {"metadata": {"name": "far"}})
        await d.has_states("far", t1="Applied", t2=waiting)
        d.edit("far", policy={"createNamespaces": True})
        await d.applied("t1", "t2", name="far")
        assert d.where(MAPS, "m", "far") == ["t1", "t2"]
        d.delete("far")
        await d.gone("far")
        assert d.where("v1/namespaces", "far") == ["t1", "t2"]
        await d.close(deleted=["t1 m", "t2 m"])


async def test_t18_what_no_edit_asked_for_is_held_until_it_is_confirmed(open_rig: Open) -> None:
    async with distribution(open_rig, labels=ALL_PROD) as d:
        d.create(template=template(), placement=PROD, policy={"fuse": {"objects": 1}})
        await d.applied()
        d.label("t2", tier="prd")
        d.label(HUB, tier="prd")
        states = {"t2": "Held/DeletionFuse", HUB: "Held/DeletionFuse"}
        await d.has_states(t1="Applied", **states)
        await never(lambda: d.where(MAPS, "m") != ["t1", "t2", HUB], QUIET)
        assert "fleetbus.dev/confirm-prune" in d.condition("DeletionHeld")["message"]
        await eventually(lambda: d.events("Held"), WITHIN)

        store = ("--redis-url", str(d.rig.shared.redis_url))
        status, output = await d.fleetbus("fuse", "-o", "json", *store)
        assert status == 0, output
        assert "DeletionFuse" in output
        status, output = await d.fleetbus("fuse", "confirm", "default/x", *store)
        assert status == 0, output
        await eventually(lambda: d.where(MAPS, "m") == ["t1"], WITHIN)
        await d.applied("t1")
        assert d.condition("DeletionHeld")["status"] == "False"
        d.label("t2", tier="prod")
        await d.applied("t1", "t2")
        d.delete()  # an explicit order is not held
        await d.gone()
        await d.close(deleted=["t1 m", "t2 m", "t2 m", f"{HUB} m"])


async def test_t18_clusters_that_disappear_keep_their_objects(open_rig: Open) -> None:
    async with distribution(open_rig, labels=ALL_PROD) as d:
        d.create(template=template(), placement={"clusterSelector": {}})
        await d.applied()
        for name in ("t1", "t2"):
            d.hub.delete(CLUSTER_RESOURCE, None, name)
        await d.has_states(t1="Held/ClusterGone", t2="Held/ClusterGone", t4="Applied")
        await never(lambda: d.where(MAPS, "m") != ["t1", "t2", HUB], QUIET)
        # The one is back; the other is unjoined, and its object is released and reported.
        d.rejoin("t1")
        await d.has_states(t1="Applied", t2="Held/ClusterGone", t4="Applied")
        d.rejoin("t2")
        await d.applied()
        status, output = await d.fleetbus("unjoin", "t2")
        assert status == 0, output
        await d.applied("t1", HUB)
        assert d.where(MAPS, "m") == ["t1", "t2", HUB]
        await eventually(lambda: "t2" in json.dumps(d.status().get("leftBehind", {})), WITHIN)
        d.delete()
        await d.gone()
        assert d.where(MAPS, "m") == ["t2"]
        await d.close(deleted=["t1 m", f"{HUB} m"])
