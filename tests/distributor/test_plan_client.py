"""The client of a plan: what it would write is there for what it reads afterwards (rule D25)."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from fleetbus.kube.connection.config import KubeConfig
from fleetbus_distributor.preview.plan_client import PlanClient
from fleetbus_emulator.apiserver import Cluster, serve

CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "databases.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "databases", "kind": "Database"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


async def test_d25_a_type_that_the_plan_adds_to_a_group_is_discovered_in_every_way():
    cluster = Cluster("t1")
    other = copy.deepcopy(CRD)
    other["metadata"]["name"] = "tables.example.com"
    other["spec"]["names"] = {"plural": "tables", "kind": "Table"}
    cluster.create(CRDS, other)
    async with (
        serve([cluster]) as servers,
        PlanClient(KubeConfig(yaml.safe_dump(servers.kubeconfig())), user_agent="test") as client,
    ):
        assert await client.discover("example.com/v1", "Database") is None
        await client.discovery.refresh()
        await client.apply(CRDS, copy.deepcopy(CRD), field_manager="test")
        discovered = await client.discover("example.com/v1", "Database")
        assert discovered is not None
        assert discovered in await client.discovery.refresh()
        assert await client.list(discovered.resource) == []
    assert cluster.get(CRDS, "", "databases.example.com") is None
