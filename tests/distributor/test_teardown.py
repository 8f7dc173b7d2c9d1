"""Rule D8: a MultiClusterResource that goes with what it lives in gives no order to delete."""

import copy
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from fleetbus.errors import NotFound
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, FINALIZER, MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.render.spec import CRD_NAME
from fleetbus_emulator.apiserver import Fail
from fleetbus_emulator.apiserver.errors import NotServed
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.distributor import CONFIG_MAP, Rig, distributor_rig

MAPS = "v1/configmaps"
NAMESPACES = "v1/namespaces"


def template(name: str) -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied


def left(rig: Rig, name: str) -> int:
    """Return how many objects of this name there are, over all clusters."""
    return sum(rig.has(cluster, MAPS, name) for cluster in rig.clusters)


@pytest.fixture
async def fleet() -> AsyncGenerator[Rig]:
    async with distributor_rig("c0", "c1") as rig:
        yield rig


async def on_two(rig: Rig, **spec: Any) -> None:
    names = [{"name": name} for name in ("c0", "c1")]
    rig.hub.create(NAMESPACES, {"metadata": {"name": "team"}})
    rig.create(namespace="team", template=template("x"), placement={"clusters": names}, **spec)
    await reconcile_in_team(rig)
    assert left(rig, "x") == 2


async def reconcile_in_team(rig: Rig) -> None:
    await rig.reconcile(namespace="team")


def in_team(rig: Rig) -> dict[str, Any]:
    try:
        return rig.hub.get(MULTI_CLUSTER_RESOURCES, "team", "x") or {}
    except NotServed:  # its definition is gone
        return {}


def tear_down(rig: Rig, parent: str) -> None:
    if parent == "namespace":
        rig.hub.delete(NAMESPACES, None, "team")
        rig.hub.delete(MULTI_CLUSTER_RESOURCES, "team", "x")  # as the namespace controller does
    else:
        rig.hub.delete(CRDS, None, CRD_NAME)


async def torn_down(rig: Rig, parent: str) -> None:
    tear_down(rig, parent)
    await eventually(lambda: in_team(rig)["metadata"].get("deletionTimestamp"))
    await reconcile_in_team(rig)
    await reconcile_in_team(rig)


async def until_gone(rig: Rig) -> None:
    async def is_gone() -> bool:
        with suppress(NotFound):  # the type, when the last object went
            await reconcile_in_team(rig)
        return not in_team(rig)

    await eventually(is_gone)


async def confirm_in_team(rig: Rig, plan_hash: str) -> None:
    change = {"metadata": {"annotations": {CONFIRM_PRUNE_ANNOTATION: plan_hash}}}
    rig.hub.patch(MULTI_CLUSTER_RESOURCES, "team", "x", change)
    await until_gone(rig)


REASONS = {"namespace": "NamespaceTerminating", "definition": "DefinitionTerminating"}


@pytest.mark.parametrize("parent", ["namespace", "definition"])
@pytest.mark.parametrize("answer", ["confirm", "orphan"])
async def test_d8_what_goes_with_its_namespace_or_definition_is_held(
    fleet: Rig, parent: str, answer: str
):
    await on_two(fleet)
    await torn_down(fleet, parent)
    assert left(fleet, "x") == 2
    resource = in_team(fleet)
    assert FINALIZER in resource["metadata"]["finalizers"]
    hold = resource["status"]["held"]
    assert (hold["reason"], hold["objects"], hold["clusters"]) == (REASONS[parent], 2, ["c0", "c1"])
    condition = next(
        each_condition
        for each_condition in resource["status"]["conditions"]
        if each_condition["type"] == "DeletionHeld"
    )
    assert hold["planHash"] in condition["message"]
    if answer == "confirm":
        await confirm_in_team(fleet, hold["planHash"])
    else:
        fleet.hub.patch(
            MULTI_CLUSTER_RESOURCES, "team", "x", {"spec": {"policy": {"deletion": "Orphan"}}}
        )
        await until_gone(fleet)
    assert left(fleet, "x") == (0 if answer == "confirm" else 2)


async def make_anew(rig: Rig, parent: str) -> None:
    """Force it out, as runbooks for what hangs in Terminating say, and install it again."""
    if parent == "namespace":
        namespace = rig.hub.get(NAMESPACES, None, "team")
        assert namespace
        namespace["spec"]["finalizers"] = []
        rig.hub.update(NAMESPACES, namespace, subresource="finalize")
        rig.hub.create(NAMESPACES, {"metadata": {"name": "team"}})
        return
    stays = in_team(rig)
    rig.hub.patch(CRDS, None, CRD_NAME, {"metadata": {"finalizers": None}})
    (definition,) = (crd for crd in crds() if crd["metadata"]["name"] == CRD_NAME)
    rig.hub.create(CRDS, definition)
    await eventually(lambda: rig.hub.serves(MULTI_CLUSTER_RESOURCES))
    rig.hub.restore(
        [(MULTI_CLUSTER_RESOURCES, stays)]
    )  # real API servers leave it in etcd, emulated ones do not


async def next_second_after(rig: Rig, moment: str) -> None:
    """Wait until the times of what is made now are later; they are whole seconds."""
    before = in_team(rig)["metadata"][moment]
    await eventually(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > before)


@pytest.mark.parametrize("parent", ["namespace", "definition"])
async def test_d8_what_was_held_stays_held_when_its_parent_is_created_again(
    fleet: Rig, parent: str
):
    await on_two(fleet)
    await torn_down(fleet, parent)
    hold = in_team(fleet)["status"]["held"]
    await make_anew(fleet, parent)
    await reconcile_in_team(fleet)
    fleet.restart()
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 2
    assert in_team(fleet)["status"]["held"] == hold
    await confirm_in_team(fleet, hold["planHash"])
    assert left(fleet, "x") == 0


@pytest.mark.parametrize("parent", ["namespace", "definition"])
async def test_d8_a_parent_that_was_created_again_before_any_round_is_the_cause(
    fleet: Rig, parent: str
):
    await on_two(fleet)
    await next_second_after(fleet, "creationTimestamp")
    tear_down(fleet, parent)
    await eventually(lambda: in_team(fleet)["metadata"].get("deletionTimestamp"))
    await make_anew(fleet, parent)
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 2
    assert in_team(fleet)["status"]["held"]["reason"] == REASONS[parent]


@pytest.mark.slow
async def test_d8_that_the_new_namespace_goes_too_is_no_order_either(fleet: Rig):
    await on_two(fleet)
    await next_second_after(fleet, "creationTimestamp")
    tear_down(fleet, "namespace")
    await make_anew(fleet, "namespace")
    await next_second_after(fleet, "deletionTimestamp")
    fleet.hub.delete(NAMESPACES, None, "team")
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 2


@pytest.mark.parametrize("resource", ["namespaces", "customresourcedefinitions"])
async def test_d8_why_it_goes_must_be_readable(fleet: Rig, resource: str):
    await on_two(fleet)
    fleet.hub.faults.add(Fail(403), verb="get", resource=resource)
    fleet.hub.delete(MULTI_CLUSTER_RESOURCES, "team", "x")
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 2
    assert in_team(fleet)["status"]["held"]["reason"] == "CauseUnknown"
    fleet.hub.faults.clear()
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 0


async def test_d8_deleted_before_its_namespace_it_was_meant(fleet: Rig):
    await on_two(fleet)
    fleet.hub.delete(MULTI_CLUSTER_RESOURCES, "team", "x")
    await next_second_after(fleet, "deletionTimestamp")
    fleet.hub.delete(NAMESPACES, None, "team")
    await reconcile_in_team(fleet)
    assert left(fleet, "x") == 0
