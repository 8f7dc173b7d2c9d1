"""Whose rights count on the targets: spec.serviceAccountName, on clusters with RBAC (rule D16)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fleetbus.clusters.member_rights import writer_rules
from fleetbus.kube.impersonation import ServiceAccount
from fleetbus_emulator.apiserver import Cluster
from fleetbus_proto.resources import Resource, parse_resource
from support.rigs.distributor import CONFIG_MAP, WRITER, Rig, distributor_rig
from support.rigs.secured_api import RBAC, grant, rule

WRITES = "get create patch delete"
CONFIG_MAPS = "v1/configmaps"
DEPLOYER = ServiceAccount("shop", "deployer")
INTRUDER = ServiceAccount("shop", "intruder")
IN_SHOP = {**CONFIG_MAP, "metadata": {"name": "m", "namespace": "shop"}}
PLACED = {"clusters": [{"name": "t1"}, {"name": "t2"}]}


@pytest.fixture
async def rig(valkey_url: str) -> AsyncGenerator[Rig]:
    """Members where the distributor may write ConfigMaps itself, and impersonate two accounts."""
    async with distributor_rig(redis_url=valkey_url, authorize="rbac") as started:
        for name in ("t1", "t2"):
            member = started.clusters[name]
            member.create("v1/namespaces", {"metadata": {"name": "shop"}})
            grant(member, WRITER, *writer_rules([parse_resource(CONFIG_MAPS)]))
            names = (DEPLOYER.name, INTRUDER.name)
            may_impersonate = rule("impersonate", "", "serviceaccounts", names=names)
            grant(member, WRITER, may_impersonate, namespace="shop")
        started.hub.create("v1/namespaces", {"metadata": {"name": "shop"}})
        yield started


def allow(rig: Rig, *clusters: str, verbs: str = WRITES, account: ServiceAccount = DEPLOYER):
    for name in clusters:
        grant(rig.clusters[name], account.user, rule(verbs, "", "configmaps"), namespace="shop")


def deny(cluster: Cluster, user: str):
    for kind in ("rolebindings", "clusterrolebindings"):
        for binding in cluster.list(f"{RBAC}/{kind}"):
            if any(subject["name"] == user for subject in binding["subjects"]):
                meta = binding["metadata"]
                cluster.delete(f"{RBAC}/{kind}", meta.get("namespace"), meta["name"])


def create(rig: Rig, **spec: Any):
    fields: dict[str, Any] = {"serviceAccountName": "deployer", "template": IN_SHOP}
    fields |= {"placement": PLACED, **spec}
    rig.create(namespace="shop", **fields)


async def reconcile(rig: Rig):
    await rig.reconcile(namespace="shop")


def has(rig: Rig, cluster: str) -> bool:
    return rig.has(cluster, CONFIG_MAPS, "m", "shop")


async def test_d16_an_author_without_rights_cannot_deploy_through_the_hub(rig: Rig):
    allow(rig, "t1")
    create(rig)
    await reconcile(rig)
    # The distributor itself could write it on both.
    assert rig.states(namespace="shop") == {"t1": "Applied", "t2": "Failed/Forbidden"}
    assert has(rig, "t1")
    assert not has(rig, "t2")
    message = rig.entry("t2", namespace="shop")["message"]
    assert "ConfigMap shop/m" in message
    assert "ServiceAccount shop/deployer may not patch configmaps in namespace shop" in message
    # As soon as the rights are given there, the next round applies it.
    allow(rig, "t2")
    await reconcile(rig)
    assert has(rig, "t2")


async def test_d16_neither_reads_nor_deletions_are_made_with_the_rights_of_the_distributor(
    rig: Rig,
):
    allow(rig, "t1", "t2")
    create(rig)
    await reconcile(rig)
    for name in ("t1", "t2"):
        deny(rig.clusters[name], DEPLOYER.user)
    await reconcile(rig)
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Failed/Forbidden")
    assert "may not get configmaps" in rig.entry("t1", namespace="shop")["message"]
    rig.delete(namespace="shop")
    await reconcile(rig)
    # Its objects stay, and stay on record.
    assert has(rig, "t1")
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Failed/DeleteFailed")
    recorded = rig.resource(namespace="shop")["status"]["intent"]["clusters"]
    assert [cluster["name"] for cluster in recorded] == ["t1", "t2"]
    assert rig.condition(namespace="shop")["reason"] == "Deleting"
    allow(rig, "t1", "t2")
    await reconcile(rig)
    assert not has(rig, "t1")
    assert not rig.exists(namespace="shop")


async def test_d16_a_secret_that_may_not_be_deleted_is_named_with_the_missing_right(rig: Rig):
    secret = {**IN_SHOP, "kind": "Secret", "data": {"k": "Y2FuYXJ5"}}
    for name in ("t1", "t2"):
        grant(
            rig.clusters[name],
            DEPLOYER.user,
            rule("get create patch", "", "secrets"),
            namespace="shop",
        )
    create(rig, template=secret)
    await reconcile(rig)
    rig.delete(namespace="shop")
    await reconcile(rig)
    message = rig.entry("t1", namespace="shop")["message"]
    assert "ServiceAccount shop/deployer may not delete secrets in namespace shop" in message


async def test_d16_only_accounts_that_the_cluster_names_can_be_impersonated(rig: Rig):
    allow(rig, "t1", "t2")
    deny(rig.clusters["t2"], WRITER)
    grant(rig.clusters["t2"], WRITER, *writer_rules([Resource("core", "v1", "configmaps")]))
    create(rig)
    await reconcile(rig)
    assert rig.states(namespace="shop") == {"t1": "Applied", "t2": "Failed/Forbidden"}
    message = rig.entry("t2", namespace="shop")["message"]
    assert "may not impersonate ServiceAccount shop/deployer" in message
    assert "--impersonate shop/deployer" in message
    assert not has(rig, "t2")


async def test_d16_an_account_of_another_namespace_cannot_be_named(rig: Rig):
    allow(rig, "t1", "t2")
    # The one of the same name in the namespace of the MultiClusterResource is another account.
    rig.create(serviceAccountName="deployer", template=IN_SHOP, placement=PLACED)
    await rig.reconcile()
    assert rig.states() == dict.fromkeys(("t1", "t2"), "Failed/Forbidden")
    assert "ServiceAccount default/deployer" in rig.entry("t1")["message"]
    assert not has(rig, "t1")


async def test_d16_another_account_acts_from_the_next_round_on(rig: Rig):
    allow(rig, "t1", "t2")
    create(rig)
    await reconcile(rig)
    rig.edit(namespace="shop", serviceAccountName=INTRUDER.name, template=None, templates=[IN_SHOP])
    await reconcile(rig)
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Failed/Forbidden")
    assert "ServiceAccount shop/intruder" in rig.entry("t1", namespace="shop")["message"]
    # What is no longer placed is not deleted by an account that may not do so.
    rig.edit(namespace="shop", placement={"clusters": [{"name": "t2"}]})
    await reconcile(rig)
    assert has(rig, "t1")
    allow(rig, "t1", "t2", account=INTRUDER)
    await reconcile(rig)
    assert not has(rig, "t1")
    assert rig.states(namespace="shop") == {"t2": "Applied"}


async def test_d16_an_invalid_name_is_never_taken_for_an_absent_one(rig: Rig):
    allow(rig, "t1", "t2")
    create(rig)
    await reconcile(rig)
    resource = rig.resource(namespace="shop")
    resource["spec"]["vars"] = {"not a name": 1}  # invalid elsewhere
    rig.hub.update("fleetbus.dev/v1alpha1/multiclusterresources", resource)
    for name in ("t1", "t2"):
        deny(rig.clusters[name], DEPLOYER.user)
    rig.delete(namespace="shop")
    await reconcile(rig)
    # The deletion of an invalid one is still that account's.
    assert has(rig, "t1")
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Failed/DeleteFailed")


async def test_d16_without_a_name_nothing_is_done_where_one_is_required(rig: Rig):
    rig.require_service_account = True
    rig.restart()
    create(rig, serviceAccountName=None)
    rig.edit(namespace="shop", serviceAccountName=None)
    await reconcile(rig)
    assert rig.condition(namespace="shop")["reason"] == "ServiceAccountRequired"
    assert not has(rig, "t1")
    assert rig.writes("t1") == []
    allow(rig, "t1", "t2")
    rig.edit(namespace="shop", serviceAccountName="deployer")
    await reconcile(rig)
    assert has(rig, "t1")
    # Nor is anything deleted: the account may have lost that right.
    rig.edit(namespace="shop", serviceAccountName=None)
    rig.delete(namespace="shop")
    await reconcile(rig)
    assert has(rig, "t1")
    assert rig.condition(namespace="shop")["reason"] == "ServiceAccountRequired"
    rig.edit(namespace="shop", serviceAccountName="deployer")
    await reconcile(rig)
    assert not rig.exists(namespace="shop")


async def test_d16_where_one_is_required_one_that_did_nothing_can_be_deleted(rig: Rig):
    create(rig, placement={"clusters": [{"name": "unknown"}]})
    await reconcile(rig)
    rig.require_service_account = True
    rig.restart()
    rig.edit(namespace="shop", serviceAccountName=None)
    rig.delete(namespace="shop")
    await reconcile(rig)
    assert not rig.exists(namespace="shop")


async def test_w13_which_cluster_answers_is_read_with_the_rights_of_the_distributor(rig: Rig):
    """The account may read neither kube-system nor its own namespace."""
    allow(rig, "t1", "t2")
    create(rig)
    await reconcile(rig)
    reads = [
        request for request in rig.clusters["t1"].requests if request.path.endswith("kube-system")
    ]
    assert reads
    assert {read.status for read in reads} == {200}
    assert rig.states(namespace="shop") == {"t1": "Applied", "t2": "Applied"}


async def test_d10_an_account_that_may_not_read_its_namespace_creates_none(rig: Rig):
    gone = {**CONFIG_MAP, "metadata": {"name": "m", "namespace": "gone"}}
    for name in ("t1", "t2"):
        grant(rig.clusters[name], DEPLOYER.user, rule(WRITES, "", "configmaps"))
    create(rig, template=gone)
    await reconcile(rig)
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Waiting/NamespaceMissing")
    rig.edit(namespace="shop", policy={"createNamespaces": True})
    await reconcile(rig)
    assert rig.states(namespace="shop") == dict.fromkeys(("t1", "t2"), "Failed/Forbidden")
    message = rig.entry("t1", namespace="shop")["message"]
    assert "ServiceAccount shop/deployer may not get namespaces" in message
    assert rig.clusters["t1"].get("v1/namespaces", None, "gone") is None
