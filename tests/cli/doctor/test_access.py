"""`fleetbus doctor`: rights and credentials of the components, on the hub and in the clusters.

API servers with RBAC, the roles of the rendered chart, tokens and certificates that end soon.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetbus.agent_calls.calls import AgentCalls
from fleetbus.clusters.access import kubeconfig_of
from fleetbus.clusters.member_rights import (
    impersonation_rules,
    token_rules,
    watcher_rules,
    writer_rules,
)
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.access.nats import nats_access
from fleetbus.process.access.secret_files import SecretFile, TlsFiles
from fleetbus.process.findings import Finding, Severity
from fleetbus_cli.doctor.certificate_files import Validity
from fleetbus_cli.doctor.expiry import (
    check_kubeconfig,
    check_nats_files,
    check_tls_files,
    check_validity,
)
from fleetbus_cli.doctor.hub import Component, check_components, check_versions, this_component
from fleetbus_cli.doctor.members import check_members, kubeconfig_namespaces, read_members
from fleetbus_cli.doctor.server_certificates import check_nats_certificates
from fleetbus_emulator.apiserver import Abort, ApiServers, Cluster, User, serve
from fleetbus_proto.resources import Resource
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.api.rendered_chart import NAMESPACE, VALUES, of_kind, render
from support.rigs.agents import agent_rig
from support.rigs.secured_api import grant
from support.rows import each_row
from support.servers.identities import Authority, Operator, secured_nats, user_key

KUBECONFIGS = "fleetbus-clusters"
ROOT = "token-of-root"
READER = "token-of-reader"
DAY = 86_400.0
PODS = Resource("core", "v1", "pods")
RBAC = "rbac.authorization.k8s.io/v1"
PLURALS = {
    "Role": f"{RBAC}/roles",
    "RoleBinding": f"{RBAC}/rolebindings",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ServiceAccount": "v1/serviceaccounts",
    "Deployment": "apps/v1/deployments",
}


def jwt(left: float, life: float = DAY, **claims: Any) -> str:
    """A token that is valid for so many more seconds of its life."""
    now = time.time()
    body = json.dumps({"iat": now + left - life, "exp": now + left, **claims}).encode()
    return f"e30.{base64.urlsafe_b64encode(body).rstrip(b'=').decode()}.c2ln"


@dataclass
class Fleet:
    """A hub with Clusters, and the member that their kubeconfigs lead to."""

    hub: Cluster
    member: Cluster
    servers: ApiServers

    def kubeconfig(self, cluster: str, token: str) -> str:
        document = self.servers.kubeconfig(token)
        server = next(
            entry["cluster"] for entry in document["clusters"] if entry["name"] == cluster
        )
        return kubeconfig_of(server, {"token": token})

    def client(self, token: str = ROOT) -> KubeClient:
        return KubeClient(KubeConfig(self.kubeconfig("hub", token), http=True, own=True))

    def join(
        self, name: str, token: str, watcher_token: str = "", *, is_renewed: bool = False
    ) -> None:
        self.member.credentials.add_token(token, f"writer-{name}")
        marks = {"fleetbus.dev/token-lifetime": "86400"} if is_renewed else {}
        self._put_secret(f"{name}-kubeconfig", token, marks)
        annotations = {"fleetbus.dev/written-resources": "configmaps,deployments.apps"}
        if watcher_token:
            self.member.credentials.add_token(watcher_token, f"watcher-{name}")
            self._put_secret(f"{name}-watcher", watcher_token, {})
            annotations["fleetbus.dev/watcher-secret"] = f"{KUBECONFIGS}/{name}-watcher"
        reference = {"namespace": KUBECONFIGS, "name": f"{name}-kubeconfig"}
        self.hub.create(
            "fleetbus.dev/v1alpha1/clusters",
            {
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"kubeconfigSecretRef": reference, "resources": ["v1/pods"]},
            },
        )

    def _put_secret(self, name: str, token: str, marks: dict[str, str]) -> None:
        text = self.kubeconfig("eu1", token)
        secret = {
            "metadata": {
                "name": name,
                "labels": {"fleetbus.dev/kubeconfig": "true"},
                "annotations": marks,
            },
            "data": {"kubeconfig": base64.b64encode(text.encode()).decode()},
        }
        self.hub.create("v1/secrets", secret, KUBECONFIGS)

    async def access(self) -> list[Finding]:
        async with self.client() as hub:
            return [finding async for finding in check_members(*await read_members(hub, {}))]


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Fleet]:
    monkeypatch.setenv("FLEETBUS_ALLOW_LOOPBACK", "1")
    root = User("root", ("system:masters",))
    hub = Cluster("hub", authorize="rbac", tokens={ROOT: root, READER: "reader"})
    member = Cluster("eu1", authorize="rbac", tokens={ROOT: root})
    for definition in crds():
        hub.create(CRDS, definition)
    for namespace in (NAMESPACE, KUBECONFIGS):
        hub.create("v1/namespaces", {"metadata": {"name": namespace}})
    member.create("v1/namespaces", {"metadata": {"name": "fleetbus-system"}})
    async with serve([hub, member], tls=True) as servers:
        yield Fleet(hub, member, servers)


def bad(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Everything that is not right, by the part that it is about."""
    faulty = [finding for finding in findings if finding.severity is not Severity.OK]
    assert all(finding.advice for finding in faulty)
    return [(finding.about, f"{finding.severity}: {finding.message}") for finding in faulty]


async def collect(checks: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in checks]


# --- clusters -----------------------------------------------------------------------------------

WRITTEN = [Resource("core", "v1", "configmaps"), Resource("apps", "v1", "deployments")]


async def test_accounts_with_the_rights_of_a_join_are_not_blamed(fleet: Fleet):
    """Also a token in the middle of its life, which is renewed at half of it."""
    fleet.join("one", jwt(DAY * 0.45), jwt(DAY * 300, DAY * 365), is_renewed=True)
    fleet.join("pool", jwt(DAY))
    grant(fleet.member, "writer-one", *writer_rules(WRITTEN))
    grant(fleet.member, "writer-one", *token_rules("fleetbus-writer"), namespace="fleetbus-system")
    grant(fleet.member, "watcher-one", *watcher_rules([PODS]))
    grant(fleet.member, "writer-pool", *writer_rules(WRITTEN), *watcher_rules([PODS]))
    findings = await fleet.access()
    assert bad(findings) == []
    assert {finding.about for finding in findings} == {
        "access to one",
        "access of watcher one",
        "access to pool",
    }


async def test_each_missing_right_is_named_with_its_component_cluster_and_remedy(fleet: Fleet):
    fleet.join("one", jwt(DAY), jwt(DAY, DAY, who="watcher"))
    grant(fleet.member, "writer-one", *writer_rules(WRITTEN[:1]))
    grant(fleet.member, "watcher-one", *watcher_rules([]))
    findings = await fleet.access()
    assert bad(findings) == [
        (
            "access to one",
            (
                "error: distributor and controllers may not create, delete, get, list, patch,"
                " update deployments.apps"
            ),
        ),
        ("access of watcher one", "error: watcher may not list, watch pods"),
    ]
    advice = [finding.advice for finding in findings if finding.severity is Severity.ERROR]
    assert ["ClusterRole fleetbus-writer" in advice[0], "fleetbus-watcher" in advice[1]] == [
        True
    ] * 2
    assert all("fleetbus join one" in text for text in advice)


async def test_d16_accounts_that_a_join_named_must_be_open_to_the_writer(fleet: Fleet):
    fleet.join("one", jwt(DAY))
    accounts = "shop/deployer,shop/other,not a name"
    annotations = {"fleetbus.dev/impersonated-accounts": accounts}
    fleet.hub.patch(
        "fleetbus.dev/v1alpha1/clusters", None, "one", {"metadata": {"annotations": annotations}}
    )
    fleet.member.create("v1/namespaces", {"metadata": {"name": "shop"}})
    grant(fleet.member, "writer-one", *writer_rules(WRITTEN), *watcher_rules([PODS]))
    grant(fleet.member, "writer-one", *impersonation_rules(["deployer"]), namespace="shop")
    refused = "distributor and controllers, and the watcher pool may not impersonate"
    assert bad(await fleet.access()) == [
        ("access to one", f"error: {refused} serviceaccounts other in namespace shop")
    ]


async def test_tokens_about_to_expire_or_refused_are_named_and_never_shown(fleet: Fleet):
    soon, late = jwt(DAY * 0.1), jwt(DAY * 0.3)
    fleet.join("one", soon)
    fleet.join("two", late, is_renewed=True)
    fleet.join("three", jwt(-10))
    for name in ("one", "two", "three"):
        rules = (*writer_rules(WRITTEN), *watcher_rules([PODS]))
        grant(fleet.member, f"writer-{name}", *rules)
        grant(
            fleet.member,
            f"writer-{name}",
            *token_rules("fleetbus-writer"),
            namespace="fleetbus-system",
        )
    findings = await fleet.access()
    messages = dict(bad(findings))
    assert messages["access to one"].startswith("warning: the token in Secret")
    assert "expires in 14" in messages["access to one"]
    assert "and was not renewed" in messages["access to two"]
    assert "error: the token in Secret" in messages["access to three"]
    assert "expired at" in messages["access to three"]
    text = str(findings)
    assert soon not in text
    assert late not in text


async def test_a_cluster_without_its_secret_is_blamed_alone(fleet: Fleet):
    fleet.join("one", jwt(DAY))
    grant(fleet.member, "writer-one", *writer_rules(WRITTEN), *watcher_rules([PODS]))
    fleet.hub.create(
        "fleetbus.dev/v1alpha1/clusters",
        {
            "metadata": {"name": "lost"},
            "spec": {"kubeconfigSecretRef": {"namespace": KUBECONFIGS, "name": "none"}},
        },
    )
    [(about, message)] = bad(await fleet.access())
    assert about == "access to lost"
    assert f"Secret {KUBECONFIGS}/none is missing" in message


async def test_a_cluster_that_does_not_answer_needs_no_other_credentials(fleet: Fleet):
    fleet.join("one", jwt(DAY))
    fleet.member.faults.add(Abort())
    [finding] = [each for each in await fleet.access() if each.severity is Severity.ERROR]
    assert finding.about == "access to one"
    assert "no answer from the API server" in finding.message
    assert finding.advice.startswith("does it run")


async def test_a_secret_that_may_not_be_read_hides_no_other_cluster(fleet: Fleet):
    """As of a watcher that runs elsewhere: the projector may read only those of the release."""
    fleet.join("one", jwt(DAY), jwt(DAY, DAY, who="watcher"))
    fleet.join("two", jwt(DAY * 0.1))
    clusters = {"apiGroups": ["fleetbus.dev"], "resources": ["clusters"], "verbs": ["list"]}
    names = [f"{name}-kubeconfig" for name in ("one", "two")]
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    grant(fleet.hub, "reader", clusters, secrets | {"resourceNames": names})
    for name in ("one", "two"):
        grant(fleet.member, f"writer-{name}", *writer_rules(WRITTEN), *watcher_rules([PODS]))
    async with fleet.client(READER) as hub:
        findings = await collect(check_members(*await read_members(hub, {})))
    messages = dict(bad(findings))
    assert "expires in" in messages["access to two"]
    assert messages.keys() == {"access to two", "access of watcher one"}
    assert messages["access of watcher one"].startswith(
        'warning: secrets "one-watcher" is forbidden'
    )


# --- agents -------------------------------------------------------------------------------------


async def test_a_cluster_with_an_agent_is_checked_through_it(
    fleet: Fleet, nats_url: str, tmp_path: Path
):
    """The rights are those of the agent's account."""
    annotations = {"fleetbus.dev/written-resources": "configmaps,deployments.apps"}
    fleet.hub.create(
        "fleetbus.dev/v1alpha1/clusters",
        {
            "metadata": {"name": "eu1", "annotations": annotations},
            "spec": {"access": "Agent", "resources": ["v1/pods"]},
        },
    )
    fleet.member.credentials.add_token("agent-token", "agent")
    grant(fleet.member, "agent", *writer_rules(WRITTEN[:1]), *watcher_rules([PODS]))
    document = yaml.safe_load(fleet.kubeconfig("eu1", "agent-token"))

    async def check(calls: AgentCalls | None) -> list[Finding]:
        async with fleet.client() as hub:
            members, not_checked = await read_members(hub, {})
            # No component needs rights on Secrets of the whole hub for it.
            assert kubeconfig_namespaces(members) == set()
            return await collect(check_members(members, not_checked, calls))

    assert bad(await check(None)) == [
        ("access to eu1", "warning: its agent was not asked: NATS does not answer")
    ]
    async with agent_rig(nats_url, tmp_path) as rig:
        [missing] = await check(rig.calls)
        assert "no agent of the cluster is connected" in missing.message
        assert "fleetbus-agent doctor" in missing.advice

        agent = await rig.start(document)
        [(_, refused)] = bad(await check(rig.calls))
        assert refused.startswith("error: the agent may not create, delete, get")
        assert "deployments.apps" in refused

        grant(fleet.member, "agent", *writer_rules(WRITTEN), *watcher_rules([PODS]))
        [fine] = await check(rig.calls)
        assert fine.severity is Severity.OK
        assert "through its agent" in fine.message

        await fleet.servers.stop("eu1")
        [down] = await check(rig.calls)
        assert "the agent answers; is the API server of eu1 running?" in down.advice
        await rig.stop(agent)


# --- the hub ------------------------------------------------------------------------------------


def install(hub: Cluster) -> None:
    """Create what a rendered chart has of rights, and its Deployments with their pods ready."""
    for obj in of_kind(render(VALUES["everything"]), *PLURALS):
        hub.create(PLURALS[obj["kind"]], obj, obj["metadata"].get("namespace"))


async def test_the_components_of_the_chart_have_their_rights(fleet: Fleet):
    """The doctor asks for what the chart gives; without it the component is named."""
    install(fleet.hub)
    async with fleet.client() as hub:
        findings = await collect(check_components(hub, [KUBECONFIGS]))
        assert bad(findings) == []
        assert {finding.about for finding in findings} >= {
            *("projector on hub", "distributor on hub", "query-api on hub", "watcher-pool on hub")
        }
        name = f"{NAMESPACE}:fb-fleetbus-projector"
        fleet.hub.delete(f"{RBAC}/clusterrolebindings", None, name)
        fleet.hub.delete(f"{RBAC}/rolebindings", KUBECONFIGS, name)
        findings = await collect(check_components(hub, [KUBECONFIGS]))
    messages = [message for about, message in bad(findings) if about == "projector on hub"]
    assert "error: fb-fleetbus-projector may not get, list, watch clusters.fleetbus.dev" in messages
    assert "error: fb-fleetbus-projector may not patch clusters/status.fleetbus.dev" in messages
    secrets = f"secrets in namespace {KUBECONFIGS}"
    assert f"error: fb-fleetbus-projector may not get, list, patch, watch {secrets}" in messages
    assert {about for about, _ in bad(findings)} == {"projector on hub"}


async def test_deployments_of_two_versions_and_without_pods_are_reported(fleet: Fleet):
    install(fleet.hub)
    place = {"name": "fb-fleetbus-projector", "namespace": NAMESPACE}
    patch = {"metadata": {"labels": {"app.kubernetes.io/version": "0.0.1"}}}
    async with fleet.client() as hub:
        await hub.patch("apps/v1/deployments", place["namespace"], place["name"], patch)
        messages = bad(await collect(check_versions(hub)))
    assert next(message for about, message in messages if about == "versions").startswith(
        "warning: the components have different versions: "
    )
    assert any(
        "replicas are ready" in message for about, message in messages if about == "components"
    )


async def test_a_user_with_few_rights_sees_what_was_not_checked(fleet: Fleet):
    async with fleet.client(READER) as hub:
        [(about, message)] = bad(await collect(check_components(hub, [KUBECONFIGS])))
    assert about == "hub"
    assert "were not checked" in message


async def test_who_may_not_list_deployments_is_warned_but_not_in_a_pod(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with fleet.client(READER) as hub:
        [(about, message)] = bad(await collect(check_versions(hub)))
        assert about == "versions"
        assert "cannot be read" in message
        token = tmp_path / "token"
        token.write_text(jwt(DAY, sub="system:serviceaccount:fleet:fb-fleetbus-projector"))
        monkeypatch.setattr("fleetbus_cli.doctor.hub.TOKEN", token)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "hub")
        findings = await collect(check_versions(hub))
    assert not bad(findings)
    assert [finding.message for finding in findings] == [
        "not compared: fb-fleetbus-projector may not list Deployments"
    ]


def test_in_a_pod_of_the_chart_its_component_is_known():
    def of(name: str) -> Component | None:
        return this_component(lambda: jwt(DAY, sub=f"system:serviceaccount:fleet:{name}"))

    assert of("fb-fleetbus-query-api") == Component("query-api", "fleet", "fb-fleetbus-query-api")
    components = [of(f"fb-fleetbus-{name}") for name in ("pool", "reconciler-shop", "nats")]
    assert [component.kind if component else "" for component in components] == [
        "watcher-pool",
        "reconciler",
        "",
    ]
    assert this_component(str) is None


# --- files and servers --------------------------------------------------------------------------


@each_row(
    ("left", "life", "is_renewed", "severity"),
    [
        (6 * DAY, 365 * DAY, False, "warning"),
        (8 * DAY, 365 * DAY, False, "ok"),
        (3000, 3600, False, "ok"),
        (600, 3600, False, "warning"),
        (0.45 * DAY, DAY, True, "ok"),
        (0.35 * DAY, DAY, True, "warning"),
        (-1, DAY, True, "error"),
    ],
)
def test_a_warning_comes_in_the_last_fifth_of_a_life_and_in_the_last_week_at_most(
    left: float, life: float, is_renewed: bool, severity: str
):
    ends = datetime.now(UTC) + timedelta(seconds=left)
    validity = Validity(ends - timedelta(seconds=life), ends)
    assert check_validity("x", "it", validity, "do", is_renewed=is_renewed).severity == severity


def test_creds_and_certificates_in_files_are_checked(tmp_path: Path):
    operator, authority = Operator(), Authority(tmp_path)
    creds = tmp_path / "creds"
    creds.write_text(operator.creds(user_key(), iat=1, exp=int(time.time() + 100)))
    values = {"url": "tls://127.0.0.1", "creds_file": creds, "ca_file": authority.ca}
    expiring, of_ca = check_nats_files(nats_access(values))
    assert expiring.severity is Severity.WARNING
    assert f"the JWT of FLEETBUS_NATS_CREDS_FILE ({creds}) expires in" in expiring.message
    assert of_ca.severity is Severity.OK
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n")
    [finding] = check_tls_files("store", TlsFiles(SecretFile("FLEETBUS_REDIS_CA_FILE", broken)))
    assert finding.severity is Severity.ERROR
    assert "c2VjcmV0" not in str(finding)


async def test_client_certificates_of_kubeconfigs_are_checked():
    cluster = Cluster("eu1")
    async with serve([cluster], tls=True) as servers:
        document = servers.kubeconfig(user=User("admin", ("system:masters",)))
    config = KubeConfig(yaml.safe_dump(document), source="Secret a/b")
    [finding] = check_kubeconfig("access", config, "join again")
    assert "the client certificate in Secret a/b" in finding.message


async def test_the_certificate_of_a_server_is_seen_on_the_connection(tmp_path: Path):
    good, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    cert, key = good.issue("nats")
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'
    async with secured_nats(tmp_path / "nats", tls) as nats:
        address = nats.address.replace("nats://", "tls://")
        trusted = nats_access({"url": address, "ca_file": good.ca})
        [finding] = await collect(check_nats_certificates(trusted))
        assert finding.severity is Severity.OK
        assert "is valid until 3000" in finding.message
        foreign = nats_access({"url": address, "ca_file": other.ca})
        [finding] = await collect(check_nats_certificates(foreign))
        assert finding.severity is Severity.ERROR
        assert "FLEETBUS_NATS_CA_FILE" in finding.advice
