"""The garbage collector and the end of namespaces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from emulator.support.sim_rig import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    conditions,
    live,
    names,
    owned,
    pod,
    workload,
)
from fleetbus_emulator.apiserver import ApiError, Change, Cluster
from fleetbus_emulator.controllers import Simulator, simulate
from support.api.custom_resource_definitions import CRDS, definition

WIDGETS = "example.com/v1/widgets"
ROOT = "kube-root-ca.crt"
FURNITURE = [ROOT]


@pytest.fixture
async def simulator() -> AsyncGenerator[Simulator]:
    with capture_logs() as logs:
        async with simulate(Cluster("alpha", seed=1), seed=1) as (simulator,):
            await simulator.settled()
            yield simulator
    assert [line for line in logs if line["log_level"] == "error"] == []


@pytest.fixture
def cluster(simulator: Simulator) -> Cluster:
    return simulator.cluster


def config_maps(cluster: Cluster, namespace: str = "default") -> list[str]:
    return [name for name in names(cluster, CONFIG_MAPS, namespace) if name not in FURNITURE]


def plain(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.create(CONFIG_MAPS, {"metadata": {"name": name}})


async def test_dependents_go_with_their_owner(simulator: Simulator, cluster: Cluster):
    owner = plain(cluster, "owner")
    child = cluster.create(CONFIG_MAPS, owned("child", owner))
    cluster.create(CONFIG_MAPS, owned("grandchild", child))
    plain(cluster, "other")
    await simulator.settled()
    assert config_maps(cluster) == ["child", "grandchild", "other", "owner"]
    cluster.delete(CONFIG_MAPS, "default", "owner")
    await simulator.settled()
    assert config_maps(cluster) == ["other"]


async def test_an_object_whose_owner_never_existed_is_collected(
    simulator: Simulator, cluster: Cluster
):
    owner = plain(cluster, "owner")
    for wrong in ({"uid": "0-0-0"}, {"name": "other"}):
        false = {**owner, "metadata": {**owner["metadata"], **wrong}}
        cluster.create(CONFIG_MAPS, owned("child", false))
        await simulator.settled()
        assert config_maps(cluster) == ["owner"]


async def test_an_owner_in_another_namespace_does_not_count(simulator: Simulator, cluster: Cluster):
    owner = plain(cluster, "owner")
    cluster.create(CONFIG_MAPS, owned("child", owner), "kube-public")
    await simulator.settled()
    assert config_maps(cluster, "kube-public") == []


async def test_an_owner_of_an_unknown_kind_is_left_alone(simulator: Simulator, cluster: Cluster):
    owner = {**plain(cluster, "owner"), "apiVersion": "example.com/v1", "kind": "Widget"}
    cluster.create(CONFIG_MAPS, owned("child", owner))
    await simulator.settled()
    assert config_maps(cluster) == ["child", "owner"]


async def test_one_of_two_owners_is_enough(simulator: Simulator, cluster: Cluster):
    first, second = plain(cluster, "first"), plain(cluster, "second")
    cluster.create(CONFIG_MAPS, owned("child", first, second))
    cluster.delete(CONFIG_MAPS, "default", "first")
    await simulator.settled()
    (left,) = live(cluster, CONFIG_MAPS, "child")["metadata"]["ownerReferences"]
    assert left["name"] == "second"
    cluster.delete(CONFIG_MAPS, "default", "second")
    await simulator.settled()
    assert config_maps(cluster) == []


async def test_foreground_keeps_the_owner_until_its_blocking_dependents_are_gone(
    simulator: Simulator, cluster: Cluster
):
    owner = plain(cluster, "owner")
    child = owned("child", owner, blocking=True)
    child["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.create(CONFIG_MAPS, child)
    cluster.delete(CONFIG_MAPS, "default", "owner", policy="Foreground")
    await simulator.settled()
    assert live(cluster, CONFIG_MAPS, "owner")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in live(cluster, CONFIG_MAPS, "child")["metadata"]
    cluster.patch(CONFIG_MAPS, "default", "child", {"metadata": {"finalizers": []}})
    await simulator.settled()
    assert config_maps(cluster) == []


async def test_foreground_waits_only_for_dependents_that_block(
    simulator: Simulator, cluster: Cluster
):
    owner = plain(cluster, "owner")
    child = owned("child", owner)
    child["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.create(CONFIG_MAPS, child)
    cluster.delete(CONFIG_MAPS, "default", "owner", policy="Foreground")
    await simulator.settled()
    assert config_maps(cluster) == ["child"]
    assert "deletionTimestamp" in live(cluster, CONFIG_MAPS, "child")["metadata"]


@contextmanager
def noting_deletions(cluster: Cluster) -> Generator[list[str]]:
    """The resources of the objects that go meanwhile, in their order."""
    gone: list[str] = []

    def note(change: Change) -> None:
        if change.type == "DELETED":
            gone.append(change.resource)

    stop = cluster.subscribe(note)
    yield gone
    stop()


async def test_foreground_goes_down_the_tree_leaves_first(simulator: Simulator, cluster: Cluster):
    cluster.create(DEPLOYMENTS, workload("web", replicas=2))
    await simulator.settled()
    with noting_deletions(cluster) as gone:
        cluster.delete(DEPLOYMENTS, "default", "web", policy="Foreground")
        await simulator.settled()
    assert gone == ["pods", "pods", "replicasets", "deployments"]


async def test_background_lets_the_owner_go_first(simulator: Simulator, cluster: Cluster):
    cluster.create(DEPLOYMENTS, workload("web", replicas=2))
    await simulator.settled()
    cluster.delete(DEPLOYMENTS, "default", "web")
    assert names(cluster, DEPLOYMENTS) == []
    await simulator.settled()
    assert names(cluster, REPLICA_SETS) == names(cluster, PODS) == []


async def test_orphaned_dependents_stay_without_an_owner(simulator: Simulator, cluster: Cluster):
    owner = plain(cluster, "owner")
    cluster.create(CONFIG_MAPS, owned("child", owner))
    cluster.delete(CONFIG_MAPS, "default", "owner", policy="Orphan")
    await simulator.settled()
    assert config_maps(cluster) == ["child"]
    assert "ownerReferences" not in live(cluster, CONFIG_MAPS, "child")["metadata"]


async def test_custom_resources_own_and_are_owned(simulator: Simulator, cluster: Cluster):
    cluster.create(CRDS, definition("example.com", "widgets", "Widget"))
    owner = cluster.create(WIDGETS, {"metadata": {"name": "w"}})
    cluster.create(CONFIG_MAPS, owned("child", owner))
    await simulator.settled()
    assert config_maps(cluster) == ["child"]
    cluster.delete(WIDGETS, "default", "w")
    await simulator.settled()
    assert config_maps(cluster) == []


async def test_what_dangled_before_the_start_is_collected_too():
    cluster = Cluster("alpha", seed=1)
    cluster.create(CRDS, definition("example.com", "widgets", "Widget"))
    owner = cluster.create(WIDGETS, {"metadata": {"name": "w"}})
    cluster.create(CONFIG_MAPS, owned("child", owner))
    cluster.create(CONFIG_MAPS, owned("lost", {**owner, "metadata": {"name": "w", "uid": "0"}}))
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
        assert config_maps(cluster) == ["child"]


# namespaces -------------------------------------------------------------------------------------


async def test_every_namespace_has_its_account_and_certificate(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    await simulator.settled()
    for namespace in ("default", "kube-system", "team"):
        assert names(cluster, "v1/serviceaccounts", namespace) == ["default"]
        assert names(cluster, CONFIG_MAPS, namespace) == [ROOT]
    cluster.delete(CONFIG_MAPS, "team", ROOT)
    await simulator.settled()
    assert names(cluster, CONFIG_MAPS, "team") == [ROOT]


async def test_the_certificate_is_restored_when_somebody_changes_it(
    simulator: Simulator, cluster: Cluster
):
    before = live(cluster, CONFIG_MAPS, ROOT)["data"]
    cluster.patch(CONFIG_MAPS, "default", ROOT, {"data": {"ca.crt": "mine", "more": "x"}})
    await simulator.settled()
    assert live(cluster, CONFIG_MAPS, ROOT)["data"] == before


async def test_pods_leave_a_namespace_before_what_they_need(simulator: Simulator, cluster: Cluster):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "settings"}}, "team")
    held_pod = pod("held")
    held_pod["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.create(PODS, held_pod, "team")
    await simulator.settled()
    with noting_deletions(cluster) as gone:
        cluster.delete(NAMESPACES, None, "team")
        await simulator.settled()
        assert names(cluster, CONFIG_MAPS, "team") == [ROOT, "settings"]
        cluster.patch(PODS, "team", "held", {"metadata": {"finalizers": []}})
        await simulator.settled()
    assert (gone[0], gone[-1]) == ("pods", "namespaces")


async def test_a_namespace_says_that_all_is_well_before_it_goes(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    await simulator.settled()
    last: list[dict[str, Any]] = []
    stop = cluster.subscribe(lambda c: last.append(c.new) if c.resource == "namespaces" else None)
    cluster.delete(NAMESPACES, None, "team")
    await simulator.settled()
    stop()
    assert {status for status, _ in conditions(last[-1]).values()} == {"False"}
    assert len(conditions(last[-1])) == 5
    assert last[-1]["spec"]["finalizers"] == ["kubernetes"]


async def test_another_finalizer_in_its_spec_holds_a_namespace(
    simulator: Simulator, cluster: Cluster
):
    namespace = cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    finalized = {**namespace, "spec": {"finalizers": ["kubernetes", "example.com/keep"]}}
    cluster.update(NAMESPACES, finalized, subresource="finalize")
    cluster.delete(NAMESPACES, None, "team")
    await simulator.settled()
    left = live(cluster, NAMESPACES, "team", "")
    assert left["spec"]["finalizers"] == ["example.com/keep"]
    cluster.update(NAMESPACES, {**left, "spec": {}}, subresource="finalize")
    assert "team" not in names(cluster, NAMESPACES, "")


async def test_a_deleted_namespace_is_cleared_and_goes(simulator: Simulator, cluster: Cluster):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    cluster.create(DEPLOYMENTS, workload("web", replicas=3), "team")
    cluster.create(PODS, pod("bare"), "team")
    await simulator.settled()
    cluster.delete(NAMESPACES, None, "team")
    with pytest.raises(ApiError, match="being terminated"):
        cluster.create(PODS, pod("late"), "team")
    await simulator.settled()
    assert "team" not in names(cluster, NAMESPACES, "")
    assert names(cluster, PODS, "team") == names(cluster, CONFIG_MAPS, "team") == []


async def test_a_finalizer_inside_holds_the_namespace_which_says_so(
    simulator: Simulator, cluster: Cluster
):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    body = {"metadata": {"name": "held", "finalizers": ["example.com/keep"]}}
    cluster.create(CONFIG_MAPS, body, "team")
    cluster.delete(NAMESPACES, None, "team")
    await simulator.settled()
    namespace = live(cluster, NAMESPACES, "team", "")
    assert namespace["status"]["phase"] == "Terminating"
    by_type = conditions(namespace)
    assert by_type["NamespaceContentRemaining"] == ("True", "SomeResourcesRemain")
    assert by_type["NamespaceFinalizersRemaining"] == ("True", "SomeFinalizersRemain")
    cluster.patch(CONFIG_MAPS, "team", "held", {"metadata": {"finalizers": []}})
    await simulator.settled()
    assert "team" not in names(cluster, NAMESPACES, "")
