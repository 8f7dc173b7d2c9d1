"""A child is compared as its API server compares it."""

from __future__ import annotations

from typing import Any

import fleetbus
from fleetbus.children.policy import Child
from fleetbus.testing import ControllerTest, controller_test

Object = dict[str, Any]
MAPS = "v1/configmaps"


async def test_d3_a_child_that_its_server_writes_otherwise_is_applied_once() -> None:
    """The server omits `false`, and would answer each further apply that nothing changes."""
    controller = fleetbus.Children(
        "services",
        parents=MAPS,
        children="v1/services",
        parent_clusters=["a"],
        parent_selector="managed",
    )
    spec: Object = {"publishNotReadyAddresses": False, "ports": [{"port": 80, "nodePort": 0}]}

    @controller.desired
    async def _desired(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
        metadata = {"name": "s", "namespace": "default"}
        labels = {"level": parent["data"]["level"]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata | {"labels": labels}}
        return [Child("b", service | {"spec": spec})]

    def patches(t: ControllerTest) -> int:
        return sum(request.verb == "patch" for request in t.clusters["b"].requests)

    async with controller_test(controller) as t:
        parent: Object = {"metadata": {"name": "p", "labels": {"managed": "yes"}}}
        t.clusters["a"].create(MAPS, parent | {"data": {"level": "1.1"}}, "default")
        await t.run_until_idle()
        assert patches(t) == 1
        for number in range(3):
            t.clusters["a"].patch(MAPS, "default", "p", {"data": {"n": str(number)}})
            foreign = {"metadata": {"annotations": {"theirs": str(number)}}}
            t.clusters["b"].patch("v1/services", "default", "s", foreign)
            await t.run_until_idle()
        assert patches(t) == 1
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"level": "1.10"}})
        await t.run_until_idle()
        made = t.clusters["b"].get("v1/services", "default", "s")
        assert made is not None
        assert made["metadata"]["labels"]["level"] == "1.10"
        other = {"spec": {"publishNotReadyAddresses": True}}
        t.clusters["b"].patch("v1/services", "default", "s", other)
        await t.run_until_idle()
        made = t.clusters["b"].get("v1/services", "default", "s")
        assert made is not None
        assert not made["spec"].get("publishNotReadyAddresses")
