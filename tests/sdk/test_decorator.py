"""The controller `Decorator` on an emulated cluster, in one process."""

from __future__ import annotations

import fleetbus
from fleetbus.testing import ControllerTest, controller_test

SERVICES = "v1/services"


async def test_d3_a_change_that_the_server_omits_is_written_once() -> None:
    shut = fleetbus.Decorator("shut", resource=SERVICES, selector="shut=true")

    @shut.decorate
    def _shut(obj: fleetbus.Object, _cluster: str) -> fleetbus.Object:
        obj["spec"]["publishNotReadyAddresses"] = False
        return obj

    def patches(t: ControllerTest) -> int:
        sent = t.clusters["a"].requests
        return sum(request.verb == "patch" and "fleetbus" in request.user_agent for request in sent)

    async with controller_test(shut) as t:
        cluster = t.clusters["a"]
        metadata = {"name": "s", "labels": {"shut": "true"}}
        spec = {"ports": [{"port": 80}], "publishNotReadyAddresses": True}
        cluster.create(SERVICES, {"metadata": metadata, "spec": spec}, "default")
        await t.run_until_idle()
        first = patches(t)
        assert first <= 2
        for number in range(3):
            foreign = {"metadata": {"annotations": {"theirs": str(number)}}}
            cluster.patch(SERVICES, "default", "s", foreign)
            await t.run_until_idle()
        assert patches(t) == first
        cluster.patch(SERVICES, "default", "s", {"spec": {"publishNotReadyAddresses": True}})
        await t.run_until_idle()
        service = cluster.get(SERVICES, "default", "s")
        assert service is not None
        assert not service["spec"].get("publishNotReadyAddresses")
