from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from fleetbus import testing
from fleetbus_emulator.apiserver import ApiError, Fail, FieldError, NotServed
from fleetbus_emulator.emulated_cluster import EmulatedCluster
from fleetbus_emulator.fleet import EmulatedFleet, emulated_fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_emulator.apiserver import Rule

pytestmark = pytest.mark.fleet(["alpha", "beta"])

WEB = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        },
    },
}
CRD_AND_CR = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, kind: Widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w1, namespace: default}
"""


def test_a_kubeconfig_leads_real_clients_to_each_cluster(fleet: EmulatedFleet):
    config: dict[str, Any] = yaml.safe_load(fleet.kubeconfig.read_text())
    assert [context["name"] for context in config["contexts"]] == ["alpha", "beta"]
    fleet["alpha"].create("v1/configmaps", {"metadata": {"name": "a"}}, "default")
    path = "/api/v1/namespaces/default/configmaps/a"
    urls = [entry["cluster"]["server"] for entry in config["clusters"]]
    assert [httpx.get(url + path).status_code for url in urls] == [200, 404]


def test_workloads_live(cluster: EmulatedCluster):
    cluster.create("apps/v1/deployments", WEB)
    ready = cluster.wait_for(
        "apps/v1/deployments",
        "default",
        "web",
        lambda obj: obj.get("status", {}).get("availableReplicas") == 2,
    )
    cluster.settle()
    assert ready["metadata"]["name"] == "web"
    assert len(cluster.list("v1/pods", "default", "app=web")) == 2


@pytest.mark.fleet(["alpha"], workloads=False)
def test_without_workloads_nothing_is_made_of_a_deployment(cluster: EmulatedCluster):
    cluster.create("apps/v1/deployments", WEB)
    cluster.settle()
    assert cluster.list("v1/pods") == []


async def test_an_async_test_may_block_its_own_loop(cluster: EmulatedCluster):
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        request = asyncio.create_task(client.get("/api/v1/namespaces/default"))
        await asyncio.sleep(0)
        assert cluster.get("v1/namespaces", None, "default") is not None
        assert (await request).status_code == 200


def test_faults_last_until_their_end(cluster: EmulatedCluster, fault: Callable[..., Rule]):
    url = f"{cluster.url}/api/v1/namespaces"
    with cluster.fault(Fail(503), verb="list"):
        assert httpx.get(url).status_code == 503
    assert httpx.get(url).status_code == 200
    rule = fault("alpha", Fail(429), verb="list", count=1)
    assert [httpx.get(url).status_code for _ in range(2)] == [429, 200]
    assert rule.hits == 1
    assert [request.status for request in cluster.requests][-4:] == [503, 200, 429, 200]


def test_a_stopped_cluster_refuses_and_starts_again_at_its_address(cluster: EmulatedCluster):
    url = cluster.url
    cluster.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    cluster.start()
    assert httpx.get(f"{url}/version").status_code == 200


def test_a_partitioned_cluster_hangs_and_goes_on_when_healed(cluster: EmulatedCluster):
    cluster.partition()
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{cluster.url}/version", timeout=0.05)
    cluster.heal()
    assert httpx.get(f"{cluster.url}/version").status_code == 200


@pytest.mark.fleet(["alpha"], workloads=False, tokens={"t0ken": "ada"}, authorize="rbac")
def test_users_and_rights_can_be_asked_for(cluster: EmulatedCluster):
    url = f"{cluster.url}/api/v1/namespaces"

    def status_of(token: str) -> int:
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}).status_code

    assert status_of("other") == 401
    assert status_of("t0ken") == 403
    cluster.create(
        "rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "ada"},
            "subjects": [{"kind": "User", "name": "ada"}],
            "roleRef": {"kind": "ClusterRole", "name": "view"},
        },
    )
    assert status_of("t0ken") == 200
    cluster.credentials.revoke_token("t0ken")
    assert status_of("t0ken") == 401


def test_a_kubeconfig_for_somebody_is_written(fleet: EmulatedFleet, tmp_path: Path):
    fleet.write_kubeconfig(tmp_path / "config", "t0ken")
    assert "t0ken" in (tmp_path / "config").read_text()


def test_a_file_of_manifests_is_loaded_with_its_crds(cluster: EmulatedCluster, tmp_path: Path):
    path = tmp_path / "all.yaml"
    path.write_text(CRD_AND_CR)
    assert [obj["kind"] for obj in cluster.load(path)] == ["CustomResourceDefinition", "Widget"]
    assert cluster.get("example.com/v1/widgets", "default", "w1") is not None


def test_what_kubectl_writes_as_a_list_is_loaded_object_by_object(
    cluster: EmulatedCluster, tmp_path: Path
):
    path = tmp_path / "list.yaml"
    items = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in "ab"]
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    assert [config_map["metadata"]["name"] for config_map in cluster.load(path)] == ["a", "b"]
    path.write_text("- no object\n")
    with pytest.raises(ValueError, match=r"list\.yaml: no object with apiVersion and kind"):
        cluster.load(path)


@pytest.mark.parametrize(
    ("gvr", "hint"),
    [
        ("v1/pdos", "did you mean 'v1/pods'?"),
        ("v1/configmap", "did you mean 'v1/configmaps'?"),
        ("apps/v1/Deployment", "did you mean 'apps/v1/deployments'?"),
        ("widgets", "types are named like"),
        ("", "types are named like"),
        ("a/b/c/d", "types are named like"),
    ],
)
def test_a_type_that_is_not_served_is_named(cluster: EmulatedCluster, gvr: str, hint: str):
    with pytest.raises(NotServed, match=re.escape(f"alpha serves no {gvr!r}; {hint}")):
        cluster.get(gvr, "default", "x")


def test_a_fault_for_what_is_not_served_warns(cluster: EmulatedCluster):
    with pytest.warns(UserWarning, match="no resource pdos is served; did you mean pods?"):
        cluster.add_fault(Fail(503), resource="pdos")
    cluster.add_fault(Fail(503), resource="pods")


def test_misspelt_words_for_faults_and_partitions_are_refused(cluster: EmulatedCluster):
    misspelt: Any = "fial"
    with pytest.raises(FieldError, match=r"action: must be an action like Fail\(503\), not 'fial'"):
        cluster.add_fault(misspelt)
    with pytest.raises(ValueError, match="'fial' is not a valid Partition"):
        cluster.partition(misspelt)
    assert httpx.get(f"{cluster.url}/readyz").status_code == 200


def test_refusals_are_errors_with_the_servers_words(cluster: EmulatedCluster):
    with pytest.raises(ApiError, match="Invalid value"):
        cluster.create("v1/configmaps", {"metadata": {"name": "No Name"}})
    with pytest.raises(NotServed):
        cluster.create("v1/nothings", {"metadata": {"name": "a"}})


def test_what_does_not_come_is_reported_with_the_object(cluster: EmulatedCluster):
    with pytest.raises(TimeoutError, match=r"-/default is not as expected: {.*Active"):
        cluster.wait_for(
            "v1/namespaces", None, "default", lambda _: False, within=timedelta(milliseconds=20)
        )


def test_the_ground_truth_is_at_hand(cluster: EmulatedCluster):
    before = cluster.resource_version
    cluster.create("v1/configmaps", {"metadata": {"name": "a"}}, "default")
    cluster.delete("v1/configmaps", "default", "a")
    assert len([commit for commit in cluster.history if commit.rv > before]) == 2


def test_a_cluster_is_filled_and_the_workloads_stay_at_rest(cluster: EmulatedCluster):
    cluster.settle()
    before = len(cluster.history)
    counts = cluster.fill(300, seed=3)
    cluster.settle()
    assert counts.total() == 300
    assert len(cluster.history) == before + 300
    assert len(cluster.list("v1/pods")) >= counts["v1/pods"] > 50


@pytest.mark.fleet(["alpha"], workloads=False)
def test_a_cluster_churns_while_the_context_lasts(cluster: EmulatedCluster):
    cluster.fill(60)
    before = len(cluster.history)
    with cluster.churning(per_second=500, seed=1):
        while len(cluster.history) < before + 20:
            time.sleep(0.005)
    after = len(cluster.history)
    time.sleep(0.02)
    assert len(cluster.history) == after


@pytest.mark.fleet(["alpha"], workloads=False)
def test_churn_that_finds_nothing_says_so_in_the_end(cluster: EmulatedCluster):
    leases = ["coordination.k8s.io/v1/leases"]
    with (
        pytest.raises(LookupError, match="nothing to change"),
        cluster.churning(per_second=500, only=leases),
    ):
        time.sleep(0.05)


def test_an_unknown_cluster_is_named_with_those_there_are(fleet: EmulatedFleet):
    with pytest.raises(KeyError, match="no cluster 'gamma' in this fleet, only alpha, beta"):
        fleet["gamma"]


@pytest.mark.parametrize("names", [["a", "a"], ["Not_A_Label"], 0])
def test_names_that_cannot_stand_in_a_fleet_are_refused(names: Any):
    with pytest.raises(ValueError, match="cluster"), emulated_fleet(names):
        pass


def test_no_thread_outlives_a_fleet():
    with emulated_fleet(1):
        assert any(thread.name == "emulated-fleet" for thread in threading.enumerate())
    assert all(thread.name != "emulated-fleet" for thread in threading.enumerate())


def test_a_client_in_the_midst_of_a_handshake_leaves_nothing_behind():
    with emulated_fleet(1, tls=True) as fleet:
        url = httpx.URL(fleet.clusters[0].url)
        client = socket.create_connection((url.host, url.port))
        assert fleet.clusters[0].open_watches == 0  # the loop has had a turn
    assert client.recv(1) == b""
    client.close()
    gc.collect()  # what was left open would complain now


def test_fleetbus_testing_finds_the_emulation():
    with testing.emulated_fleet(["alpha"], workloads=False, tls=True) as fleet:
        assert list(fleet.names) == ["alpha"]
        assert fleet["alpha"].url.startswith("https://")


pytest_plugins = ["pytester"]


def test_a_wrong_marker_fails_the_test_with_one_line(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fleet(3, nonsense=True)
        def test_it(fleet): ...
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:asyncio", "-p", "no:randomly")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.fleet:*nonsense*"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('"alpha"', "clusters are a number or a list of names, not 'alpha'"),
        ("[]", "a fleet needs at least one cluster"),
        ('authorize="rback"', "authorize is a function or"),
    ],
)
def test_a_wrong_option_of_the_marker_is_one_line(
    pytester: pytest.Pytester, options: str, message: str
):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.fleet({options})
        def test_it(fleet): ...
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:asyncio", "-p", "no:randomly")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"@pytest.mark.fleet: *{message}*"])
