"""Namespaces of templates: what is deleted, and when (rule D10)."""

from __future__ import annotations

import copy
from typing import Any

from fleetbus.ownership import FINALIZER
from fleetbus_emulator.apiserver import Fail, GroupDown
from support.rigs.distributor import CONFIG_MAP, Rig

NAMESPACES = "v1/namespaces"
MAPS = "v1/configmaps"
TEAM: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
MAP: dict[str, Any] = {**CONFIG_MAP, "metadata": {"name": "m", "namespace": "team"}}


async def place(rig: Rig, **policy: Any) -> None:
    clusters = {"clusters": [{"name": "t1"}]}
    rig.create(templates=copy.deepcopy([TEAM, MAP]), placement=clusters, policy=policy)
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}


def is_going(rig: Rig) -> bool:
    """Whether its deletion was accepted; these servers have no controller that finishes it."""
    return "deletionTimestamp" in rig.get("t1", NAMESPACES, "team", "")["metadata"]


async def test_d10_a_namespace_that_holds_nothing_is_deleted_if_the_policy_says_so(rig: Rig):
    await place(rig, deleteNamespaces=True)
    rig.delete()
    await rig.until(lambda: is_going(rig))
    assert not rig.has("t1", MAPS, "m", "team")
    assert rig.exists()
    assert rig.states() == {"t1": "Deleting"}


async def test_d10_a_namespace_that_holds_anything_else_is_not_deleted(rig: Rig):
    await place(rig, deleteNamespaces=True)
    rig.clusters["t1"].create(MAPS, {"metadata": {"name": "theirs", "namespace": "team"}})
    rig.edit(templates=[{**CONFIG_MAP}])
    await rig.until(lambda: rig.states() == {"t1": "Held/NamespaceNotEmpty"})
    assert rig.entry("t1")["message"].endswith("it still contains ConfigMap theirs")
    assert not is_going(rig)
    assert rig.has("t1", MAPS, "theirs", "team")
    rig.clusters["t1"].delete(MAPS, "team", "theirs")
    await rig.until(lambda: is_going(rig))


async def test_d10_a_type_that_may_not_be_read_counts_as_content(rig: Rig):
    await place(rig, deleteNamespaces=True)
    rig.clusters["t1"].faults.add(Fail(403), verb="list", resource="secrets")
    rig.delete()
    await rig.reconcile()
    await rig.reconcile()
    assert not is_going(rig)
    assert FINALIZER in rig.resource()["metadata"]["finalizers"]
    assert rig.states() == {"t1": "Failed/DeleteFailed"}


async def test_d10_an_api_that_is_away_counts_as_content(rig: Rig):
    await place(rig, deleteNamespaces=True)
    rig.clusters["t1"].faults.add(GroupDown(), group="batch")
    rig.delete()
    await rig.reconcile()
    await rig.reconcile()
    assert rig.states() == {"t1": "Held/NamespaceNotEmpty"}
    assert "batch/v1, which cannot be discovered" in rig.entry("t1")["message"]
    assert not is_going(rig)
    rig.clusters["t1"].faults.clear()
    await rig.until(lambda: is_going(rig))


async def test_d10_a_namespace_that_is_not_ours_is_never_deleted(rig: Rig):
    rig.clusters["t1"].create(NAMESPACES, {"metadata": {"name": "team"}})
    clusters = {"clusters": [{"name": "t1"}]}
    policy = {"deleteNamespaces": True}
    rig.create(templates=copy.deepcopy([TEAM, MAP]), placement=clusters, policy=policy)
    await rig.reconcile()
    assert rig.states() == {"t1": "Conflict/NotOurs"}
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert not is_going(rig)
