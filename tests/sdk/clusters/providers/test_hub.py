"""Providers that read objects of the hub, against an emulated one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.providers.cluster_api import ClusterApiProvider
from fleetbus.clusters.providers.cluster_inventory import ClusterInventoryProvider
from fleetbus.clusters.providers.secrets import SecretsProvider
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import KubeConfig, connect
from fleetbus.process.settings import ProviderSettings
from fleetbus_emulator.apiserver import Cluster
from support.api.custom_resource_definitions import CRDS, definition
from support.client_go.kubeconfigs import PLUGIN, V1
from support.rigs.hub_providers import (
    OURS,
    THEIRS,
    kubeconfig,
    secret,
    servers_of,
    telling,
)
from support.rows import each_row

# --- secrets --------------------------------------------------------------------------------------


async def test_t8_labelled_secrets_of_the_namespace_are_clusters(hub: Cluster, access: KubeConfig):
    hub.create("v1/secrets", secret("zoo", {**OURS, "region": "eu"}, kubeconfig=kubeconfig()))
    hub.create("v1/secrets", secret("jungle", THEIRS, kubeconfig=kubeconfig("https://two")))
    hub.create("v1/secrets", secret("other", {}, kubeconfig=kubeconfig()))
    hub.create("v1/secrets", secret("away", OURS, "kube-public", kubeconfig=kubeconfig()))
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        infos = await sets.next()
    assert servers_of(infos) == {"jungle": "https://two", "zoo": "https://one"}
    assert [dict(info.labels) for info in infos] == [{}, {"region": "eu"}]
    reads = [r for r in hub.requests if r.path.endswith("/secrets")]
    assert reads
    assert all("/namespaces/default/" in r.path and r.query["labelSelector"] for r in reads)


async def test_t8_secrets_come_change_and_go(hub: Cluster, access: KubeConfig):
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        assert await sets.next() == []
        hub.create("v1/secrets", secret("zoo", OURS, kubeconfig=kubeconfig()))
        assert servers_of(await sets.next()) == {"zoo": "https://one"}
        # An annotation changes nothing, so the next set is that of the next real change.
        hub.patch("v1/secrets", "default", "zoo", {"metadata": {"annotations": {"a": "b"}}})
        encoded = secret("zoo", OURS, kubeconfig=kubeconfig("https://two"))["data"]
        hub.patch("v1/secrets", "default", "zoo", {"data": encoded})
        assert servers_of(await sets.next()) == {"zoo": "https://two"}
        hub.patch("v1/secrets", "default", "zoo", {"metadata": {"labels": dict.fromkeys(OURS)}})
        assert await sets.next() == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"some-other-key": "x"}, "Secret default/bad has no data key 'kubeconfig'"),
        ({"kubeconfig": ""}, "Secret default/bad has no data key 'kubeconfig'"),
        ({"kubeconfig": "{"}, "Secret default/bad: invalid YAML"),
        (
            {"kubeconfig": kubeconfig(exec={"command": "sh"})},
            "Secret default/bad: user 'a': 'exec' is not allowed",
        ),
        (
            {"kubeconfig": kubeconfig(tokenFile="/etc/shadow")},
            "Secret default/bad: user 'a': 'tokenFile' is not allowed",
        ),
    ],
)
async def test_t8_s7_a_secret_that_cannot_be_used_is_a_problem_of_its_cluster(
    hub: Cluster, access: KubeConfig, data: Any, reason: str
):
    hub.create("v1/secrets", secret("bad", OURS, **data))
    hub.create("v1/secrets", secret("zoo", OURS, kubeconfig=kubeconfig()))
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        bad, zoo = await sets.next()
    assert servers_of([zoo]) == {"zoo": "https://one"}
    assert (bad.name, bad.config) == ("bad", None)
    assert bad.problem.startswith(reason)


async def test_a_secret_whose_name_no_cluster_can_have_is_skipped(
    hub: Cluster, access: KubeConfig, capsys: pytest.CaptureFixture[str]
):
    hub.create("v1/secrets", secret("a.b", OURS, kubeconfig=kubeconfig()))
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        assert await sets.next() == []
    assert "default/a.b" in capsys.readouterr().out


# --- cluster-api ----------------------------------------------------------------------------------


def install(hub: Cluster, group: str, version: str, plural: str, kind: str) -> str:
    hub.create(CRDS, definition(group, plural, kind, version))
    return f"{group}/{version}/{plural}"


INITIALIZED = {
    "v1beta2": {"initialization": {"controlPlaneInitialized": True}},
    "v1beta1": {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]},
}


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_an_initialized_cluster_of_cluster_api_joins(
    hub: Cluster, access: KubeConfig, version: str
):
    clusters = install(hub, "cluster.x-k8s.io", version, "clusters", "Cluster")
    hub.create(clusters, {"metadata": {"name": "eu1", "labels": {"region": "eu"}}}, "default")
    label = {"cluster.x-k8s.io/cluster-name": "eu1"}
    async with telling(ClusterApiProvider(access, namespace="default")) as sets:
        assert await sets.next() == []
        hub.patch(clusters, "default", "eu1", {"status": INITIALIZED[version]})
        assert servers_of(await sets.next()) == {
            "eu1": "! Secret default/eu1-kubeconfig is missing"
        }
        hub.create("v1/secrets", secret("eu1-kubeconfig", label, value=kubeconfig()))
        (info,) = await sets.next()
        assert servers_of([info]) == {"eu1": "https://one"}
        assert dict(info.labels) == {"region": "eu"}
        hub.delete(clusters, "default", "eu1")
        assert await sets.next() == []


async def test_clusters_of_several_namespaces_have_names_with_them(
    hub: Cluster, access: KubeConfig, capsys: pytest.CaptureFixture[str]
):
    clusters = install(hub, "cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
    for namespace, name in (("a", "b-c"), ("a-b", "c")):
        hub.create("v1/namespaces", {"metadata": {"name": namespace}})
        status = INITIALIZED["v1beta2"]
        hub.create(clusters, {"metadata": {"name": name}, "status": status}, namespace)
    async with telling(ClusterApiProvider(access)) as sets:
        assert [info.name for info in await sets.next()] == ["a-b-c"]
    assert "a-b/c" in capsys.readouterr().out


async def test_a_hub_without_the_type_has_no_such_clusters_until_it_is_installed(
    hub: Cluster, access: KubeConfig
):
    async with telling(ClusterApiProvider(access, namespace="default")) as sets:
        assert await sets.next() == []
        clusters = install(hub, "cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
        status = INITIALIZED["v1beta2"]
        hub.create(clusters, {"metadata": {"name": "eu1"}, "status": status}, "default")
        assert [info.name for info in await sets.next()] == ["eu1"]


# --- cluster-inventory ----------------------------------------------------------------------------


def profile_status(health: str, **fields: Any) -> dict[str, Any]:
    condition = {"type": "ControlPlaneHealthy", "status": health, "message": "as reported"}
    return {"status": {"conditions": [condition], **fields}}


@pytest.fixture
def profiles(hub: Cluster) -> str:
    return install(hub, "multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile")


def access_secret(name: str = "spoke-1", server: str = "https://one") -> dict[str, Any]:
    labels = {
        "x-k8s.io/cluster-inventory-consumer": "fleetbus",
        "x-k8s.io/cluster-profile": name,
    }
    return secret(f"{name}-access", labels, Config=kubeconfig(server))


async def test_t13_a_profile_joins_when_it_is_healthy_and_stays_when_it_is_not(
    hub: Cluster, access: KubeConfig, profiles: str
):
    provider = ClusterInventoryProvider(access, namespace="default")
    hub.create("v1/secrets", access_secret())
    async with telling(provider) as sets:
        assert await sets.next() == []
        hub.create(
            profiles, {"metadata": {"name": "spoke-1"}, **profile_status("False")}, "default"
        )
        hub.create("v1/secrets", access_secret("other"))
        hub.patch(profiles, "default", "spoke-1", profile_status("True"))
        assert servers_of(await sets.next()) == {"spoke-1": "https://one"}
        hub.patch(profiles, "default", "spoke-1", profile_status("False"))
        assert servers_of(await sets.next()) == {
            "spoke-1": "! ControlPlaneHealthy is False: as reported"
        }
        hub.patch(profiles, "default", "spoke-1", profile_status("True"))
        assert servers_of(await sets.next()) == {"spoke-1": "https://one"}
        renewed = access_secret(server="https://two")["data"]
        hub.patch("v1/secrets", "default", "spoke-1-access", {"data": renewed})
        assert servers_of(await sets.next()) == {"spoke-1": "https://two"}
        hub.delete(profiles, "default", "spoke-1")
        assert await sets.next() == []


async def test_t13_a_restart_does_not_let_an_unhealthy_member_leave(
    hub: Cluster, access: KubeConfig, profiles: str
):
    hub.create(profiles, {"metadata": {"name": "new"}}, "default")
    hub.create(profiles, {"metadata": {"name": "sick"}, **profile_status("False")}, "default")
    async with telling(ClusterInventoryProvider(access, namespace="default")) as sets:
        assert [info.name for info in await sets.next()] == ["sick"]


async def test_s7_only_a_plugin_of_our_own_list_runs(
    hub: Cluster, access: KubeConfig, profiles: str
):
    offered = {
        "accessProviders": [
            {
                "name": "gke",
                "cluster": {
                    "server": "https://one",
                    "proxy-url": "http://squid.example.org:3128",
                    "extensions": [
                        {
                            "name": "client.authentication.k8s.io/exec",
                            "extension": {"clusterName": "a"},
                        }
                    ],
                },
                "exec": {"command": "sh"},
            }
        ]
    }
    hub.create(
        profiles, {"metadata": {"name": "a"}, **profile_status("True", **offered)}, "default"
    )
    async with telling(ClusterInventoryProvider(access)) as sets:
        (info,) = await sets.next()
    assert info.config is None
    assert "no access provider of it (gke) is one of the option 'plugins'" in info.problem
    plugins = {"gke": {"command": "gke-auth", "apiVersion": "client.authentication.k8s.io/v1"}}
    async with telling(ClusterInventoryProvider(access, plugins=plugins)) as sets:
        (info,) = await sets.next()
    assert info.config is not None
    document: dict[str, Any] = json.loads(info.config.document)
    assert document["clusters"][0]["cluster"] == offered["accessProviders"][0]["cluster"]
    assert document["users"][0]["user"]["exec"] == {"interactiveMode": "Never"} | plugins["gke"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("insecure-skip-tls-verify", True, "'insecure-skip-tls-verify' is not allowed"),
        ("certificate-authority", "/etc/shadow", "'certificate-authority' is not allowed"),
        ("proxy-url", "http://169.254.169.254", "proxy-url: 169.254.169.254 is link-local"),
        ("proxy-url", "socks5://p:1080", "'proxy-url'"),
        ("certificate-authority-data", 5, "'certificate-authority-data' is not a string"),
        ("server", None, "has no server"),
    ],
)
async def test_s7_what_cannot_be_honoured_in_a_profile_is_a_problem(
    hub: Cluster, access: KubeConfig, profiles: str, field: str, value: object, reason: str
):
    cluster = {"server": "https://one", field: value}
    offered = {"accessProviders": [{"name": "gke", "cluster": cluster}]}
    hub.create(
        profiles, {"metadata": {"name": "a"}, **profile_status("True", **offered)}, "default"
    )
    plugins = {"gke": {"command": "gke-auth", "apiVersion": "client.authentication.k8s.io/v1"}}
    async with telling(ClusterInventoryProvider(access, plugins=plugins)) as sets:
        (info,) = await sets.next()
    assert info.config is None
    assert reason in info.problem


async def test_the_plugin_of_a_profile_sees_the_cluster(
    hub: Cluster, access: KubeConfig, profiles: str, tmp_path: Path
):
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(version=V1, status='{"token": "t"}'))
    plugin.chmod(0o755)
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"clusterName": "a"}}
    cluster = {"server": "https://one", "extensions": [extension]}
    offered = {"credentialProviders": [{"name": "ocm", "cluster": cluster}]}
    hub.create(
        profiles, {"metadata": {"name": "a"}, **profile_status("True", **offered)}, "default"
    )
    plugins = {"ocm": {"command": str(plugin), "apiVersion": V1, "provideClusterInfo": True}}
    async with telling(ClusterInventoryProvider(access, plugins=plugins)) as sets:
        (info,) = await sets.next()
    assert info.config is not None
    assert dict((await connect(info.config)).headers) == {"Authorization": "Bearer t"}
    exec_info = json.loads((tmp_path / "seen.json").read_text())
    assert exec_info["spec"]["cluster"] == {"server": "https://one", "config": {"clusterName": "a"}}


# --- options --------------------------------------------------------------------------------------


@each_row(
    ("kind", "options", "message"),
    [
        ("secrets", {}, "provider 'secrets': field 'namespace' must be a string"),
        ("secrets", {"namespace": "a", "labels": ["x"]}, "labels: 'x' is not one of fleetbus.dev"),
        (
            "secrets",
            {"namespace": "a", "nonsense": 1},
            "provider 'secrets': unknown field nonsense",
        ),
        ("cluster-api", {"namespace": 3}, "provider 'cluster-api': field 'namespace'"),
        ("cluster-inventory", {"plugins": {"a": "sh"}}, "field 'plugins' must be a map"),
    ],
)
def test_a_wrong_option_is_named(kind: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        build_provider(ProviderSettings.model_validate({"type": kind, **options}), None)


@each_row("kind", ["secrets", "cluster-api", "cluster-inventory"])
def test_each_provider_can_be_asked_for_by_its_type(kind: str):
    options = {"namespace": "fleet"}
    assert (
        build_provider(ProviderSettings.model_validate({"type": kind, **options}), None).name
        == kind
    )
