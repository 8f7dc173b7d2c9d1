"""Whose rights count (rule D16), with the RBAC of the API servers, on the bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.eventually import eventually, never
from support.objects import config_map
from support.rigs.distribution import AFTER_RETURN, IN_FULL, Distribution, distribution
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN
from support.rigs.secured_api import RBAC, grant, rule

pytestmark = [IN_FULL, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"
NAMESPACE = "shop"
BOTH = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
WRITES = "get create patch delete"


def user(name: str) -> str:
    return f"system:serviceaccount:{NAMESPACE}:{name}"


def allow(d: Distribution, name: str, *clusters: str, verbs: str = WRITES) -> None:
    for cluster in clusters:
        granted = rule(verbs, "", "configmaps")
        grant(d.rig.clusters[cluster], user(name), granted, namespace=NAMESPACE)


def deny(d: Distribution, name: str, cluster: str) -> None:
    bindings = f"{RBAC}/rolebindings"
    server = d.rig.clusters[cluster]
    for binding in server.list(bindings, NAMESPACE):
        if any(subject["name"] == user(name) for subject in binding["subjects"]):
            server.delete(bindings, NAMESPACE, binding["metadata"]["name"])


def in_shop(value: str) -> dict[str, Any]:
    return config_map(k=value, namespace=NAMESPACE)


async def test_d16_the_rights_of_the_author_decide_on_each_cluster(open_rig: Open) -> None:
    async with distribution(open_rig, authorize=True) as d:
        for server in d.rig.clusters.values():
            server.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        allow(d, "deployer", "t1")
        spec: dict[str, Any] = {
            "template": in_shop("v1"),
            "placement": BOTH,
            "serviceAccountName": "deployer",
        }
        d.create(namespace=NAMESPACE, **spec)
        await d.has_states(namespace=NAMESPACE, t1="Applied", t2="Failed/Forbidden")
        message = d.entry("t2", namespace=NAMESPACE)["message"]
        assert f"ServiceAccount {NAMESPACE}/deployer may not patch configmaps" in message
        assert d.where(MAPS, "m", NAMESPACE) == ["t1"]
        allow(d, "deployer", "t2")
        d.edit(namespace=NAMESPACE, vars={"tried": "again"})
        await d.applied("t1", "t2", namespace=NAMESPACE)

        # Another account acts from the next round on, for deletions, too.
        d.edit(namespace=NAMESPACE, serviceAccountName="intruder", template=in_shop("v2"))
        forbidden = "Failed/Forbidden"
        await d.has_states(namespace=NAMESPACE, t1=forbidden, t2=forbidden)
        assert data(d) == ["v1", "v1"]
        d.edit(namespace=NAMESPACE, serviceAccountName="deployer")
        await d.applied("t1", "t2", namespace=NAMESPACE)
        assert data(d) == ["v2", "v2"]

        # An account that has lost its rights leaves its objects, on record.
        deny(d, "deployer", "t2")
        d.delete(namespace=NAMESPACE)
        await eventually(lambda: d.where(MAPS, "m", NAMESPACE) == ["t2"], WITHIN)
        await never(lambda: not d.exists(namespace=NAMESPACE), QUIET)
        recorded = d.status(namespace=NAMESPACE)["intent"]["clusters"]
        assert [cluster["name"] for cluster in recorded] == ["t2"]
        allow(d, "deployer", "t2")
        d.edit(namespace=NAMESPACE, vars={"tried": "once more"})
        await eventually(lambda: not d.exists(namespace=NAMESPACE), AFTER_RETURN)
        assert d.where(MAPS, "m", NAMESPACE) == []
        await d.close(deleted=["t1 m", "t2 m"])


def data(d: Distribution) -> list[str]:
    return [d.get(name, MAPS, "m", NAMESPACE)["data"]["k"] for name in ("t1", "t2")]


async def test_d16_where_an_account_is_required_nothing_is_done_without_one(
    open_rig: Open,
) -> None:
    async with distribution(open_rig, authorize=True, started=False) as d:
        d.start_distributors(require_service_account=True)
        for server in d.rig.clusters.values():
            server.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        allow(d, "deployer", "t1", "t2")
        d.create(namespace=NAMESPACE, template=in_shop("v1"), placement=BOTH)
        await eventually(lambda: ready(d) == "ServiceAccountRequired", WITHIN)
        await never(lambda: d.where(MAPS, "m", NAMESPACE), QUIET)
        d.edit(namespace=NAMESPACE, serviceAccountName="deployer")
        await d.applied("t1", "t2", namespace=NAMESPACE)
        await d.close()


def ready(d: Distribution) -> str:
    return d.condition("Ready", namespace=NAMESPACE).get("reason", "")
