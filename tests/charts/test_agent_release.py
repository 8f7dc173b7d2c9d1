"""charts/fleetbus-agent from installation to removal, with helm on a real API server.

Its RBAC decides what the agent's account may do. Part of `make scenarios`, as `test_helm_release`;
there is no node, so no pod runs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetbus.agents.nkeys import make_seed
from fleetbus_cli.clusters.agent_manifest import AgentInstall, manifest
from reference.agent_manifest import CHART, NAME
from support.api.rendered_chart import Object
from support.eventually import eventually
from support.processes.helm import Helm, Kubectl, helm_program, real_hub

pytestmark = pytest.mark.full
SPACES = (NAME, "shop", "other")
KINDS = ",".join(
    [
        *("deployments", "secrets", "serviceaccounts", "configmaps", "networkpolicies"),
        *("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
    ]
)
DOCS = CHART.parents[1] / "docs"
SEED = make_seed()
READ_ONLY: Object = {
    "cluster": "eu7",
    "nats": {"url": "tls://nats.example.com:4222", "ca": "-----BEGIN CERTIFICATE-----\nA\n"},
    "registration": {"seed": make_seed()},
}
NAMESPACES: Object = {"mode": "namespaces", "namespaces": ["shop"], "impersonate": ["other/cd"]}
IN_SHOP: Object = {**READ_ONLY, "access": NAMESPACES}
FULL: Object = {**READ_ONLY, "access": {"mode": "full"}}
(DELETE_BINDINGS,) = re.findall(
    "^kubectl (delete clusterrolebindings,.+)$", (DOCS / "agent.md").read_text(), re.MULTILINE
)
AGENT = f"system:serviceaccount:{NAME}:{NAME}"
READS = ("list pods -A", "watch nodes", "get namespaces")
WRITES = (
    *("patch configmaps -n shop", "create deployments.apps -n shop"),
    # The ClusterRole `edit` has these, too.
    *("get secrets -n shop", "impersonate serviceaccounts/any -n shop"),
)
ACTS = "impersonate serviceaccounts/cd -n other"
OWN = f"patch secrets/{NAME}-nkey -n {NAME}"
NEVER = ("get secrets -A", f"get secrets/other -n {NAME}", "patch configmaps -n default")


@dataclass
class Member:
    """The release, and who looks at it."""

    helm: Helm
    kubectl: Kubectl

    def upgrade(self, values: Object) -> None:
        """Install the release, or upgrade it."""
        self.helm.done("upgrade", "--install", NAME, CHART, values=values)

    def objects(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of everything that a release may leave."""
        metas = [(obj["kind"], obj["metadata"]) for obj in self.kubectl.list(KINDS, "-A")]
        return {(kind, meta.get("namespace", ""), meta["name"]) for kind, meta in metas}

    def is_set_up(self) -> bool:
        """Whether the controllers have done what they do in every cluster and namespace."""
        objects = self.objects()
        made = (("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt"))
        rules = self.done("get", "clusterrole", "view", "-o", "jsonpath={.rules}")
        return bool(rules) and all(
            (kind, namespace, name) in objects for kind, name in made for namespace in SPACES
        )

    def may(self, words: str) -> bool:
        """Whether the API server lets the agent's account do something."""
        _, output = self.kubectl.run("auth", "can-i", *words.split(), f"--as={AGENT}")
        (answer,) = {"yes", "no"} & set(output.split())
        return answer == "yes"

    def rights(self) -> set[str]:
        """List those that the agent's account may do."""
        return {words for words in (*READS, *WRITES, *NEVER, ACTS, OWN) if self.may(words)}

    def generation(self) -> int:
        """Return how often the specification of the pods has changed."""
        (deployment,) = self.kubectl.list("deployments", "-n", NAME)
        return deployment["metadata"]["generation"]

    def done(self, *arguments: str, text: str = "") -> str:
        """Run kubectl, which has to succeed."""
        status, output = self.kubectl.run(*arguments, text=text)
        assert status == 0, output
        return output


@pytest.fixture
async def member(tmp_path: Path) -> AsyncGenerator[Member]:
    helm = replace(helm_program(tmp_path), namespace=NAME)
    async with real_hub(tmp_path, controllers=True) as kubectl:
        opened = Member(replace(helm, kubeconfig=kubectl.kubeconfig), kubectl)
        for namespace in SPACES:
            opened.done("create", "namespace", namespace)
        await eventually(opened.is_set_up, timedelta(seconds=60))
        yield opened


@pytest.mark.parametrize("values", [READ_ONLY, IN_SHOP, FULL], ids=["read", "shop", "full"])
def test_helm_finds_nothing_to_complain_about(tmp_path: Path, values: Object):
    output = helm_program(tmp_path).done("lint", "--strict", CHART, values=values)
    assert "1 chart(s) linted, 0 chart(s) failed" in output


def test_s7_each_mode_gives_the_agent_its_rights_and_an_uninstallation_leaves_nothing(
    member: Member,
):
    before = member.objects()
    member.upgrade(READ_ONLY)
    assert member.rights() == {*READS, OWN}
    nkey = {"data": {"seed": base64.b64encode(SEED.encode()).decode()}}
    secret = ("-n", NAME, "secret", f"{NAME}-nkey")
    member.done("patch", *secret, "-p", json.dumps(nkey), f"--as={AGENT}")

    generation = member.generation()
    member.upgrade(READ_ONLY)
    assert member.generation() == generation, "an upgrade of nothing"
    member.upgrade(IN_SHOP)
    assert member.rights() == {*READS, *WRITES, ACTS, OWN}
    member.upgrade(FULL)
    assert member.rights() == {*READS, *WRITES, *NEVER, ACTS, OWN}
    member.upgrade(READ_ONLY)
    assert member.rights() == {*READS, OWN}
    assert json.loads(member.done("get", *secret, "-o", "json"))["data"] == nkey["data"]

    member.helm.done("uninstall", NAME)
    assert member.objects() == before


def test_the_manifest_of_a_join_gives_the_same_and_is_removed_by_itself(member: Member):
    before = member.objects()

    def text(**options: Any) -> str:
        install = AgentInstall(
            cluster="eu7", url="tls://n:4222", ca="CA", seed=SEED, image="r/f:1", **options
        )
        return yaml.safe_dump_all(manifest(install))

    for options, rights in (
        ({}, {*READS, OWN}),
        ({"rights": "full"}, {*READS, *WRITES, *NEVER, ACTS, OWN}),
        ({"rights": "namespaces", "namespaces": ("shop",)}, {*READS, *WRITES, OWN}),
    ):
        member.done(*DELETE_BINDINGS.split())
        member.done("apply", "-f", "-", text=text(**options))
        assert member.rights() == rights
    objects = text(rights="namespaces", namespaces=("shop",))
    member.done("delete", "--wait=false", "--ignore-not-found", "-f", "-", text=objects)
    assert member.objects() == before
