"""`Cluster.patch_status`: a merge patch of the status alone, remembered like every other write."""

from __future__ import annotations

import pytest

import fleetbus
from fleetbus import Conflict, IncompleteObject, Invalid, NotFound, Request
from fleetbus.run.current import ObjectRef, Run, running
from fleetbus.testing import controller_test
from support.objects import pod
from support.rigs.one_cluster import PODS, Rig

DEPLOYMENTS = "apps/v1/deployments"
REF = ObjectRef("eu1", "core/pods", "prod", "web")


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.server.create(PODS, pod("web", labels={"app": "a"}), "prod")
    return rig


def writes(rig: Rig) -> list[tuple[str, str]]:
    return [
        (request.method, request.path) for request in rig.server.requests if request.method != "GET"
    ]


async def test_fields_are_merged_into_the_status_and_nothing_else_changes(rig: Rig) -> None:
    before = await rig.show()
    patched = await rig.cluster.patch_status(PODS, "prod", "web", {"message": "hi", "reason": "x"})
    assert (patched["status"]["message"], patched["status"]["reason"]) == ("hi", "x")
    patched = await rig.cluster.patch_status(PODS, "prod", "web", {"reason": None})
    assert patched["status"]["message"] == "hi"
    assert "reason" not in patched["status"]
    assert patched["spec"] == before["spec"]
    assert writes(rig)[-1] == ("PATCH", "/api/v1/namespaces/prod/pods/web/status")


async def test_r5_r10_a_run_remembers_the_patch_and_does_not_send_it_again(rig: Rig) -> None:
    await rig.show()
    before = len(writes(rig))
    first = Run(Request("copier", "eu1", "prod", "web"))
    with running(first):
        patched = await rig.cluster.patch_status(PODS, "prod", "web", {"message": "hi"})
        assert first.writes[REF].resource_version == patched["metadata"]["resourceVersion"]
    await rig.show()
    again = Run(first.request)
    again.recall(first.note())
    with running(again):
        known = await rig.cluster.patch_status(PODS, "prod", "web", {"message": "hi"})
        assert known["status"]["message"] == "hi"
        assert len(writes(rig)) == before + 1
        await rig.cluster.patch_status(PODS, "prod", "web", {"message": "ho"})
    assert len(writes(rig)) == before + 2


@pytest.mark.parametrize("expected", [{"uid": "another"}, {"resource_version": "1"}])
async def test_r4_the_status_of_another_object_or_version_is_left_alone(
    rig: Rig, expected: dict[str, str]
) -> None:
    before = await rig.show()
    with pytest.raises(Conflict):
        await rig.cluster.patch_status(PODS, "prod", "web", {"message": "hi"}, **expected)
    assert await rig.show() == before


async def test_what_cannot_be_written_is_refused(rig: Rig) -> None:
    before = len(writes(rig))
    with pytest.raises(Invalid, match="takes the fields below status"):
        await rig.cluster.patch_status(PODS, "prod", "web", {"status": {"message": "hi"}})
    with pytest.raises(IncompleteObject):
        await rig.cluster.patch_status(PODS, "prod", "web", {"message": "<redacted>"})
    assert len(writes(rig)) == before
    with pytest.raises(NotFound):
        await rig.cluster.patch_status(PODS, "prod", "nobody", {"message": "hi"})
    rig.server.create("v1/configmaps", {"metadata": {"name": "x"}}, "prod")
    with pytest.raises(NotFound):
        await rig.cluster.patch_status("v1/configmaps", "prod", "x", {"message": "hi"})


async def test_a_controller_under_test_writes_a_status(valkey_url: str) -> None:
    controller = fleetbus.Controller("observer")
    controller.watch(DEPLOYMENTS, clusters=["a"])

    @controller.reconcile
    async def observe(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        deployment = await cluster.get(DEPLOYMENTS, request.namespace, request.name)
        if deployment is not None:
            status = {"observedGeneration": deployment["metadata"]["generation"]}
            await cluster.patch_status(DEPLOYMENTS, request.namespace, request.name, status)

    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    async with controller_test(controller, store=valkey_url) as t:
        a = t.clusters["a"]
        a.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec}, "default")
        await t.run_until_idle()
        found = a.get(DEPLOYMENTS, "default", "web")
        assert found is not None
        assert found["status"]["observedGeneration"] == 1
        (write,) = t.writes
        assert (write.verb, write.resource) == ("patch", f"{DEPLOYMENTS}/status")
