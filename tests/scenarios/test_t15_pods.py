"""T15: one Pod on three clusters, which differs per cluster."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.ownership import FINALIZER, OWNER_ANNOTATION, OWNER_UID_LABEL
from support.eventually import eventually, never
from support.rigs.distribution import (
    EVERYWHERE,
    HUB,
    IN_FULL,
    OBSERVED,
    Distribution,
    distribution,
)
from support.rigs.distributor import POD
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
PODS, NAME = "v1/pods", "multicluster-pod"
RESOURCE = "fleetbus.dev/v1alpha1/multiclusterresources"
IMAGE = "/spec/containers/0/image"
EVERYBODY = ["t1", "t2", HUB]
CUSTOMIZE: dict[str, Any] = {
    "clusters": [
        {
            "name": "t1",
            "action": [{"op": "replace", "path": IMAGE, "value": ["nginx:1.19.0-alpine"]}],
        },
        {
            "name": "t2",
            "action": [
                {"op": "add", "path": "/metadata/annotations/example", "value": ["example"]}
            ],
        },
    ]
}


def spec(*clusters: str, **policy: Any) -> dict[str, Any]:
    placed = {"clusters": [{"name": name} for name in clusters]} if clusters else EVERYWHERE
    template = copy.deepcopy(POD)
    return {
        "template": template,
        "placement": placed,
        "customize": CUSTOMIZE,
        **({"policy": policy} if policy else {}),
    }


def images(d: Distribution) -> dict[str, str | None]:
    return d.of(lambda pod: pod["spec"]["containers"][0]["image"], PODS, NAME)


def uids(d: Distribution) -> dict[str, str | None]:
    return d.of(lambda pod: pod["metadata"]["uid"], PODS, NAME)


async def test_t15_one_pod_follows_its_placement_and_is_repaired(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        d.create(**spec())
        await d.applied()
        assert images(d) == {"t1": "nginx:1.19.0-alpine", "t2": "busybox", HUB: "busybox"}
        annotations = d.get("t2", PODS, NAME)["metadata"]["annotations"]
        assert annotations["example"] == "example"

        first = uids(d)
        d.edit(placement=spec("t1", "t2")["placement"])
        await eventually(lambda: d.where(PODS, NAME) == ["t1", "t2"], WITHIN)
        await d.applied("t1", "t2")
        assert {**uids(d), HUB: first[HUB]} == first
        d.edit(placement=EVERYWHERE)
        await d.applied()

        d.edit(placement=spec("t2", HUB)["placement"])  # the customization of t1 stays
        await d.applied("t2", HUB)
        assert d.where(PODS, NAME) == ["t2", HUB]
        d.edit(placement=EVERYWHERE)
        await d.applied()
        await repaired(d)
        await observed(d)
        await deleted(d)
        gone = [f"{HUB} {NAME}", f"t1 {NAME}", *(f"{cluster} {NAME}" for cluster in EVERYBODY)]
        await d.close(deleted=gone)


async def repaired(d: Distribution) -> None:
    """Deleted by hand and changed by hand."""
    await d.rig.synced("core/pods")
    before = uids(d)["t2"]
    d.rig.clusters["t2"].delete(PODS, "default", NAME, grace=0)
    await eventually(lambda: uids(d)["t2"] not in (None, before), WITHIN)
    changed = {"spec": {"containers": [{**POD["spec"]["containers"][0], "image": "other"}]}}
    d.rig.clusters["t2"].patch(PODS, "default", NAME, changed)
    await eventually(lambda: images(d)["t2"] == "busybox", WITHIN)


async def observed(d: Distribution) -> None:
    """Converged, it writes nothing: neither objects, nor status, nor Kubernetes Events."""
    await d.stays_quiet(timedelta(0))
    version, events = d.resource()["metadata"]["resourceVersion"], d.events()
    await d.stays_quiet(OBSERVED)
    assert d.resource()["metadata"]["resourceVersion"] == version
    assert d.events() == events


async def deleted(d: Distribution) -> None:
    """The finalizer of somebody else is kept."""
    finalizers = [*d.resource()["metadata"]["finalizers"], "example.com/other"]
    assert finalizers[0] == FINALIZER
    d.hub.patch(RESOURCE, "default", "x", {"metadata": {"finalizers": finalizers}})
    d.delete()
    await eventually(
        lambda: d.resource()["metadata"]["finalizers"] == ["example.com/other"], WITHIN
    )
    assert d.where(PODS, NAME) == []
    d.hub.patch(RESOURCE, "default", "x", {"metadata": {"finalizers": []}})
    await d.gone()


async def test_t15_a_dead_cluster_holds_back_nobody_and_no_deletion_forgets_it(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        await d.rig.servers.stop("t2")
        d.create(**spec())
        await d.has_states(t1="Applied", t2="Unreachable", t4="Applied")
        assert d.entry("t2")["message"]
        await d.rig.servers.start("t2")
        await d.applied()

        await d.rig.servers.stop("t2")
        d.delete()
        await eventually(lambda: d.where(PODS, NAME) == ["t2"], WITHIN)
        await never(lambda: not d.exists(), QUIET)
        await eventually(lambda: "t2" in d.condition("Ready").get("message", ""), WITHIN)
        recorded = d.status()["intent"]["clusters"]
        assert [entry["name"] for entry in recorded] == ["t2"]
        await d.rig.servers.start("t2")
        await d.gone()
        assert d.where(PODS, NAME) == []
        await d.close(deleted=[f"{cluster} {NAME}" for cluster in EVERYBODY])


async def test_t15_an_object_of_somebody_else_is_left_alone_unless_the_policy_says_otherwise(
    open_rig: Open,
) -> None:
    async with distribution(open_rig) as d:
        foreign = copy.deepcopy(POD)
        d.rig.clusters["t1"].create(PODS, foreign)
        other = copy.deepcopy(POD)
        other["metadata"] |= {
            "annotations": {
                OWNER_ANNOTATION: (
                    '{"apiVersion":"fleetbus.dev/v1alpha1","kind":"MultiClusterResource",'
                    '"name":"y","namespace":"n","uid":"u","clusterName":"h","hub":"another"}'
                )
            },
            "labels": {OWNER_UID_LABEL: "u"},
        }
        d.rig.clusters["t2"].create(PODS, other)
        before = {n: d.get(n, PODS, NAME) for n in ("t1", "t2")}
        d.create(**spec())
        await d.has_states(t1="Conflict/NotOurs", t2="Conflict/OwnedByOtherHub", t4="Applied")
        assert {n: d.get(n, PODS, NAME) for n in ("t1", "t2")} == before
        d.delete()
        await d.gone()
        assert {n: d.get(n, PODS, NAME) for n in ("t1", "t2")} == before

        for policy, name in (("Adopt", "adopt"), ("Overwrite", "overwrite")):
            d.create(name, **spec(conflict=policy))
            await d.applied(name=name)
            assert images(d)["t1"] == "nginx:1.19.0-alpine"
            d.delete(name)
            await d.gone(name)
            assert d.where(PODS, NAME) == []
            for cluster, pod in (("t1", foreign), ("t2", other)):
                d.rig.clusters[cluster].create(PODS, copy.deepcopy(pod))
        rounds = [f"{one} {NAME}" for one in EVERYBODY for _ in range(2)]
        await d.close(deleted=[f"{HUB} {NAME}", *rounds])


async def test_t15_a_change_that_the_server_refuses_deletes_nothing(open_rig: Open) -> None:
    async with distribution(open_rig) as d:
        d.create(**spec())
        await d.applied()
        before = uids(d)
        refused = copy.deepcopy(POD)
        refused["spec"]["restartPolicy"] = "Never"
        d.edit(template=refused)
        await d.has_states(**dict.fromkeys(EVERYBODY, "Failed/Invalid"))
        assert "may not change fields other than" in d.entry("t1")["message"]
        assert uids(d) == before
        d.edit(template=copy.deepcopy(POD), customize=variant())
        await d.applied()
        assert images(d) == {
            "t1": "nginx:1.19.0-alpine",
            "t2": "nginx:1.19.0-alpine",
            HUB: "nginx:1.17.0-alpine",
        }
        assert uids(d) == before
        await d.close()


def variant() -> dict[str, Any]:
    """The manifest of the seed system, in which each cluster has an image of its own."""
    chosen = {"t1": "1.19.0", "t2": "1.19.0", HUB: "1.17.0"}
    return {
        "clusters": [
            {
                "name": name,
                "action": [{"op": "replace", "path": IMAGE, "value": [f"nginx:{version}-alpine"]}],
            }
            for name, version in chosen.items()
        ]
    }
