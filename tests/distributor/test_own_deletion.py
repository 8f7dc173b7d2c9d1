"""A MultiClusterResource that is deleted itself, and its objects (rule D7)."""

from __future__ import annotations

from typing import Any

import pytest

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from support.api.custom_resource_definitions import CRDS, FREE
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

MAPS = "v1/configmaps"
T1, T2, T4 = ({"name": name} for name in ("t1", "t2", "t4"))
EVERYWHERE = {"clusters": [T1, T2, T4]}
WANTED: dict[str, Any] = {"template": CONFIG_MAP, "placement": EVERYWHERE}


def where(rig: Rig) -> list[str]:
    name = CONFIG_MAP["metadata"]["name"]
    return [cluster for cluster in sorted(rig.clusters) if rig.has(cluster, MAPS, name)]


async def placed(rig: Rig) -> None:
    rig.create(**WANTED)
    await rig.reconcile()


def accept_anything(rig: Rig) -> None:
    """The hub has the CRD of another version of fleetbus."""
    found = rig.get(HUB, CRDS, "multiclusterresources.fleetbus.dev", "")
    for version in found["spec"]["versions"]:
        version["schema"] = {"openAPIV3Schema": FREE}
    rig.hub.update(CRDS, found)


@pytest.mark.parametrize("policy", [{"deletion": "Keep"}, {"deletion": None}, "Orphan"])
async def test_an_unknown_policy_of_deletion_deletes_nothing(rig: Rig, policy: object):
    await placed(rig)
    accept_anything(rig)
    resource = rig.resource()
    resource["spec"]["policy"] = policy
    rig.hub.update(MULTI_CLUSTER_RESOURCES, resource)
    rig.delete()
    await rig.reconcile()
    assert where(rig) == ["t1", "t2", "t4"]
    assert rig.condition()["reason"] == "InvalidSpec"
    assert "neither Delete nor Orphan" in rig.condition()["message"]
    rig.edit(policy={"deletion": "Delete"})
    await rig.until(lambda: not rig.exists())
    assert where(rig) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"policy": {"suspend": True}},
        {"policy": {"suspend": True, "deletion": "Orphan"}},
        {"policy": {"suspend": True}, "placement": "everywhere"},
        {"policy": {"suspend": "true"}},
    ],
    ids=["deletes", "orphans", "unreadable elsewhere", "text"],
)
async def test_d7_what_is_suspended_deletes_nothing_when_it_is_deleted_itself(
    rig: Rig, spec: dict[str, Any]
):
    await placed(rig)
    accept_anything(rig)
    rig.edit(**spec)
    rig.delete()
    await rig.reconcile()
    before = rig.all_writes()
    await rig.reconcile()
    assert rig.all_writes() == before
    assert where(rig) == ["t1", "t2", "t4"]
    condition = rig.condition()
    assert condition["reason"] == "Suspended"
    assert "it is deleted once spec.policy.suspend is off" in condition["message"]
    rig.edit(policy={"deletion": "Delete"}, placement=EVERYWHERE)
    await rig.until(lambda: not rig.exists())
    assert where(rig) == []


async def test_d7_what_is_suspended_and_has_no_objects_goes(rig: Rig):
    rig.create(**WANTED, policy={"suspend": True})
    await rig.reconcile()
    rig.delete()
    await rig.until(lambda: not rig.exists())


@pytest.mark.parametrize(("policy", "left"), [({}, []), ({"deletion": "Orphan"}, ["t1", "t2"])])
async def test_a_spec_that_is_unreadable_elsewhere_still_says_what_becomes_of_its_objects(
    rig: Rig, policy: dict[str, str], left: list[str]
):
    rig.create(template=CONFIG_MAP, placement={"clusters": [T1, T2]}, policy=policy)
    await rig.reconcile()
    accept_anything(rig)
    rig.edit(placement="everywhere")
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert where(rig) == left
