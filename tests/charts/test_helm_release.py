"""A release from installation to removal, with the helm program on a real API server.

Secrets stay, and upgrades change no more than they must. Part of `make scenarios`. There are no
controllers, so no pod ever runs.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api.rendered_chart import AUDIT, CHART, EU1, NAMESPACE, Object
from support.processes.helm import Helm, Kubectl, helm_program, real_hub

pytestmark = pytest.mark.full
INSTALL = CHART.parents[1] / "docs" / "operations" / "install.md"
KINDS = ",".join(
    [
        *("deployments", "statefulsets", "services", "secrets", "serviceaccounts", "pods"),
        *("roles", "rolebindings", "clusterroles", "clusterrolebindings", "networkpolicies"),
        *("poddisruptionbudgets", "configmaps", "crds", "namespaces"),
    ]
)
FIRST: Object = {"watchers": {"clusters": [EU1]}, "externalSubscribers": [AUDIT]}
WIDER: Object = {**FIRST, "watchers": {"clusters": [EU1, {**EU1, "name": "us1"}]}}
CLUSTER: Object = {
    "apiVersion": "fleetbus.dev/v1alpha1",
    "kind": "Cluster",
    "metadata": {"name": "eu1"},
    "spec": {"kubeconfigSecretRef": {"namespace": "fleetbus-clusters", "name": "eu1"}},
}


@dataclass
class Release:
    """The release, and who looks at it."""

    helm: Helm
    kubectl: Kubectl

    def secrets(self) -> dict[str, Any]:
        """The data of each Secret."""
        secrets_listed = self.kubectl.list("secrets", "-n", NAMESPACE)
        ours = [secret for secret in secrets_listed if "helm" not in secret["type"]]
        return {secret["metadata"]["name"]: secret.get("data") for secret in ours}

    def generations(self) -> dict[str, int]:
        """Return how often each specification of pods has changed."""
        workloads = self.kubectl.list("deployments,statefulsets", "-n", NAMESPACE)
        return {o["metadata"]["name"]: o["metadata"]["generation"] for o in workloads}

    def columns(self) -> list[str]:
        """The printer columns of Cluster."""
        (crd,) = self.kubectl.list("crds", "--field-selector=metadata.name=clusters.fleetbus.dev")
        return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]

    def expire(self, name: str) -> None:
        """Let a year pass since a certificate was made."""
        past = "fleetbus.dev/renew-after=2026-01-01"
        status, output = self.kubectl.run(
            *("annotate", "--overwrite", "-n", NAMESPACE, "secret", name, past)
        )
        assert status == 0, output


@pytest.fixture
async def release(tmp_path: Path) -> AsyncGenerator[Release]:
    helm_program(tmp_path)
    async with real_hub(tmp_path) as kubectl:
        yield Release(helm_program(tmp_path, kubectl.kubeconfig), kubectl)


def with_older_definitions(folder: Path) -> Path:
    """The chart before Cluster had the column Objects."""
    older = folder / "older" / "fleetbus"
    shutil.copytree(CHART, older)
    path = older / "files" / "crds" / "clusters.yaml"
    crd = yaml.load(path.read_text(), yaml.CSafeLoader)
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    columns[:] = [column for column in columns if column["name"] != "Objects"]
    path.write_text(yaml.safe_dump(crd))
    return older


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_a_release_from_installation_to_removal(release: Release, tmp_path: Path):
    helm = release.helm
    helm.upgrade(FIRST, with_older_definitions(tmp_path))
    assert "Objects" not in release.columns()
    release.kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    status, output = release.kubectl.run("create", "-f", "-", text=json.dumps(CLUSTER))
    assert status == 0, output

    secrets, generations = release.secrets(), release.generations()
    assert "fb-fleetbus-ca" in secrets
    helm.upgrade(FIRST)
    assert changed(secrets, release.secrets()) == set(), "an upgrade of nothing"
    assert changed(generations, release.generations()) == set()
    assert "Objects" in release.columns(), "definitions are upgraded, too"

    helm.upgrade(WIDER)
    added = {"fb-fleetbus-watcher-us1-nats", "fb-fleetbus-nats-config"}
    assert changed(secrets, release.secrets()) == added
    restarted = {"fb-fleetbus-watcher-us1"}
    assert changed(generations, release.generations()) == restarted, "no store restarts"
    helm.done("rollback", "fb", "2")
    assert changed(secrets, release.secrets()) == set()

    check_second_fleet(release)
    check_larger_disk(release)
    check_agents(release)
    check_renewal(release)
    check_removal(release)
    helm.upgrade(FIRST)  # the definitions that were kept do not stand in the way
    helm.done("uninstall", "fb")
    check_take_over(release)


def check_second_fleet(release: Release) -> None:
    """Refuses another release: both would act on the same custom resources."""
    status, output = release.helm.run("install", "other", CHART, values=FIRST)
    assert status
    assert "the hub of the release fb in the namespace fleetbus" in output


def check_take_over(release: Release) -> None:
    """Gives what an uninstalled release has kept to another one, as install.md says."""
    status, output = release.helm.run("install", "other", CHART, values=FIRST)
    assert status
    assert "docs/operations/install.md#a-second-fleet" in output
    (commands,) = re.findall(r"<!-- take over -->\n```\n(.+?)```", INSTALL.read_text(), re.DOTALL)
    for line in commands.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "kubectl"
        status, output = release.kubectl.run(*arguments)
        assert status == 0, output
    release.helm.done("install", "other", CHART, values=FIRST)
    assert [each["metadata"]["name"] for each in release.kubectl.list("clusters.fleetbus.dev")]


def check_larger_disk(release: Release) -> None:
    """Replaces the StatefulSet of NATS, as docs/operations/sizing.md says."""
    # `--cascade=orphan` needs the garbage collector, and there are no pods to keep.
    status, output = release.kubectl.run(
        "delete", "statefulset", "fb-fleetbus-nats", "-n", NAMESPACE
    )
    assert status == 0, output
    larger = {"nats": {"embedded": {"storage": {"size": "16Gi"}}}}
    release.helm.upgrade({**FIRST, **larger})
    stateful_sets = release.kubectl.list("statefulsets", "-n", NAMESPACE)
    (nats,) = [
        stateful_set
        for stateful_set in stateful_sets
        if stateful_set["metadata"]["name"] == "fb-fleetbus-nats"
    ]
    claim = nats["spec"]["volumeClaimTemplates"][0]["spec"]
    assert claim["resources"]["requests"]["storage"] == "16Gi"
    release.kubectl.run("delete", "statefulset", "fb-fleetbus-nats", "-n", NAMESPACE)
    release.helm.upgrade(FIRST)


def check_renewal(release: Release) -> None:
    """Replaces certificates by age and by tls.rotate; no pod restarts for it."""
    secrets, generations = release.secrets(), release.generations()
    release.expire("fb-fleetbus-nats-tls")
    release.helm.upgrade(FIRST)
    renewed = release.secrets()
    assert changed(secrets, renewed) == {"fb-fleetbus-nats-tls"}
    assert renewed["fb-fleetbus-nats-tls"]["ca.crt"] == secrets["fb-fleetbus-ca"]["tls.crt"]
    release.helm.upgrade({**FIRST, "tls": {"rotate": "2"}})
    assert changed(renewed, release.secrets()) == {
        *("fb-fleetbus-ca", "fb-fleetbus-nats-tls", "fb-fleetbus-valkey-tls"),
        *("fb-fleetbus-query-api-tls", "fb-fleetbus-subscriber-audit-nats"),
    }
    rotated = release.secrets()
    release.helm.upgrade({**FIRST, "tls": {"rotate": "2"}})
    assert changed(rotated, release.secrets()) == set()
    assert changed(generations, release.generations()) == set()


def check_agents(release: Release) -> None:
    """Replaces the certificate of NATS once, for the name by which agents reach it."""
    before = release.secrets()
    agents = {**FIRST, "agents": {"enabled": True, "url": "tls://nats.example.com:4222"}}
    release.helm.upgrade(agents)
    enabled = release.secrets()
    assert "fb-fleetbus-nats-tls" in changed(before, enabled)
    assert "fb-fleetbus-valkey-tls" not in changed(before, enabled)
    release.helm.upgrade(agents)
    assert changed(enabled, release.secrets()) == set()
    release.helm.upgrade(FIRST)


def check_removal(release: Release) -> None:
    """Leaves the definitions, their objects, and the namespace of the clusters."""
    text = release.helm.done("get", "hooks", "fb")
    status, output = release.kubectl.run("create", "--dry-run=server", "-f", "-", text=text)
    assert status == 0, output
    release.helm.done("uninstall", "fb")
    left = release.kubectl.list(KINDS, "-A", "-l", "app.kubernetes.io/instance=fb")
    assert {(obj["kind"], obj["metadata"]["name"]) for obj in left} == {
        ("CustomResourceDefinition", "clusters.fleetbus.dev"),
        ("CustomResourceDefinition", "inventorychunks.fleetbus.dev"),
        ("CustomResourceDefinition", "multiclusterresources.fleetbus.dev"),
        ("Namespace", "fleetbus-clusters"),
    }
    assert release.secrets() == {}
    assert [
        cluster["metadata"]["name"] for cluster in release.kubectl.list("clusters.fleetbus.dev")
    ]
