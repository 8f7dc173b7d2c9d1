"""A join with limited accounts where the API server's certificate cannot be verified (rule S7)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetbus.clusters.access import SecretReader, read_kubeconfig
from fleetbus.clusters.membership import NotPossible
from fleetbus.clusters.providers.cluster import CLUSTERS, SECRETS, infos_of
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus_cli.bootstrap.enroll import enroll
from fleetbus_cli.bootstrap.options import BootstrapOptions
from fleetbus_emulator.apiserver import Cluster, User, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS

ROOT = "token-of-root"
WATCHED = ("v1/pods",)


@dataclass
class Clusters:
    """A hub and a member; the kubeconfig of the member's administrator verifies nothing."""

    member: Cluster
    hub_config: KubeConfig
    admin: KubeConfig


@pytest.fixture
async def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Clusters]:
    monkeypatch.setenv("FLEETBUS_ALLOW_LOOPBACK", "1")
    root = User("root", ("system:masters",))
    hub, member = (Cluster(n, authorize="rbac", tokens={ROOT: root}) for n in ("hub", "eu1"))
    for definition in crds():
        hub.create(CRDS, definition)
    for name in ("fleetbus-clusters", "fleetbus"):
        hub.create("v1/namespaces", {"metadata": {"name": name}})
    async with serve([hub, member], tls=True) as servers:
        servers.write_kubeconfig(tmp_path / "hub", ROOT)
        document = servers.kubeconfig(ROOT)
        for cluster in document["clusters"]:
            del cluster["cluster"]["certificate-authority-data"]
            cluster["cluster"]["insecure-skip-tls-verify"] = True
        (tmp_path / "admin").write_text(json.dumps(document))
        yield Clusters(
            member,
            read_kube_config(tmp_path / "hub", "hub"),
            read_kube_config(tmp_path / "admin", "eu1"),
        )


async def test_it_is_only_left_unverified_where_that_is_said(clusters: Clusters):
    async with KubeClient(clusters.hub_config) as hub:
        with pytest.raises(NotPossible, match="or join with --insecure"):
            await enroll(hub, "eu1", clusters.admin, BootstrapOptions(watched=WATCHED, pool=True))
        options = BootstrapOptions(watched=WATCHED, pool=True, insecure=True)
        await enroll(hub, "eu1", clusters.admin, options)
        (cluster,) = await hub.list(CLUSTERS)
        assert cluster["spec"]["insecureSkipTLSVerify"] is True
        (secret,) = await hub.list(SECRETS, "fleetbus-clusters")
    place = ("fleetbus-clusters", "eu1-kubeconfig")
    reader = SecretReader(read_kubeconfig)
    (info,), problems = infos_of({("", "eu1"): cluster}, {place: secret}, reader)
    assert (info.problem, problems) == ("", {})
    async with KubeClient(info.config) as client:  # as the processes of the fleet do
        assert await client.kube_system_uid() == info.uid


async def test_a_watcher_of_its_own_verifies_so_that_it_is_refused(clusters: Clusters):
    """It reads a file, which does not have the field of the Cluster: it could never connect."""
    async with KubeClient(clusters.hub_config) as hub:
        options = BootstrapOptions(watched=WATCHED, insecure=True)
        with pytest.raises(NotPossible, match="--insecure needs --pool"):
            await enroll(hub, "eu1", clusters.admin, options)
        assert await hub.list(CLUSTERS) == []
    assert clusters.member.get("v1/namespaces", None, "fleetbus-system") is None
