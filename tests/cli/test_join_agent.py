"""`fleetbus join --agent`: what it writes on the hub, and what it prints for the member."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, read_record, record_secret
from fleetbus_cli.clusters.agent_manifest import AgentInstall, manifest
from reference.agent_manifest import NAME, render_agent, without_helm
from support.rows import each_row

if TYPE_CHECKING:
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet

Call = Callable[..., tuple[int, str, str]]
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
NAMESPACE = "fleetbus-clusters"
CA = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"

pytestmark = pytest.mark.fleet(["hub", "eu1", "eu2"], workloads=False)


@pytest.fixture
def agents(hub: EmulatedCluster) -> EmulatedCluster:
    """The hub, with what the chart says of agents."""
    data = {"url": "tls://nats.example.com:4222", "image": "r/fleetbus:1", "approval": "true"}
    metadata = {"name": "fleetbus-agents", "namespace": NAMESPACE}
    hub.create("v1/configmaps", {"metadata": metadata, "data": data | {"ca.crt": CA}})
    return hub


def record(hub: EmulatedCluster) -> AgentRecord | None:
    secret = hub.get("v1/secrets", NAMESPACE, "eu1-agent")
    return read_record(secret) if secret else None


def seed_in(text: str) -> str:
    (seed,) = set(re.findall(r"SU[A-Z2-7]{56}", text))
    return seed


def test_s3_a_join_prints_the_one_time_seed_and_stores_its_public_key(
    call: Call, agents: EmulatedCluster
):
    status, out, err = call("join", "eu1", "--agent", "-l", "region=eu")
    assert status == 0, err
    assert "fleetbus clusters accept eu1" in err
    seed = seed_in(out)
    written = record(agents)
    assert written is not None
    assert (written.one_time, written.key) == (public_key(seed), "")
    assert seed not in str(agents.list("v1/secrets"))
    cluster = agents.get(CLUSTERS, None, "eu1")
    assert cluster is not None
    assert cluster["spec"]["access"] == "Agent"
    assert cluster["metadata"]["labels"] == {"region": "eu"}
    objects = list(yaml.safe_load_all(out))
    assert [obj["kind"] for obj in objects][:2] == ["Namespace", "ServiceAccount"]
    (ca,) = [obj["data"]["ca.crt"] for obj in objects if obj["kind"] == "ConfigMap"]
    assert ca == CA
    # Again: another seed, and what the agent has stays.
    assert seed_in(call("join", "eu1", "--agent")[1]) != seed
    assert cluster["metadata"]["labels"] == {"region": "eu"}


@each_row(
    "options",
    [
        {},
        {"ca": CA},
        {"ca": CA, "rights": "full"},
        {"rights": "namespaces", "namespaces": ("shop", "mail")},
    ],
)
def test_a_manifest_has_the_objects_of_the_chart(options: dict[str, Any]):
    seed = make_seed()
    install = AgentInstall(cluster="eu1", url="tls://n:4222", seed=seed, image="r/f:1", **options)
    namespace, *objects = manifest(install)
    assert namespace["metadata"]["name"] == NAME
    values: dict[str, Any] = {
        "cluster": "eu1",
        "nats": {"url": "tls://n:4222", "ca": install.ca},
        "registration": {"seed": seed},
        "image": {"repository": "r/f", "tag": "1"},
        "access": {"mode": install.rights, "namespaces": list(install.namespaces)},
    }
    assert objects == without_helm(render_agent(values))
    assert seed not in repr(install)


@pytest.mark.usefixtures("agents")
@each_row(
    ("options", "chosen"),
    [
        ((), {}),
        (("--rights", "full"), {"rights": "full"}),
        (
            ("--writable", "shop", "--writable", "mail"),
            {"rights": "namespaces", "namespaces": ("shop", "mail")},
        ),
    ],
)
def test_the_command_for_helm_installs_the_same(
    call: Call, options: tuple[str, ...], chosen: dict[str, Any]
):
    status, out, err = call("join", "eu1", "--agent", "--helm", *options)
    assert status == 0, err
    command, _, rest = out.partition("\n")
    assert shlex.split(command)[:3] == ["helm", "install", NAME]
    assert command.endswith(" --values - <<'EOF'")
    values, _, end = rest.rpartition("EOF\n")
    assert end == ""
    install = AgentInstall(
        cluster="eu1",
        url="tls://nats.example.com:4222",
        ca=CA,
        seed=seed_in(values),
        image="r/fleetbus:1",
        **chosen,
    )
    assert without_helm(render_agent(yaml.safe_load(values))) == manifest(install)[1:]


def test_access_changes_both_ways_and_the_cluster_stays(
    call: Call, fleet: EmulatedFleet, agents: EmulatedCluster
):
    file = ("--file", str(fleet.kubeconfig), "--context")
    assert call("join", "eu1", *file, "eu1", "-l", "region=eu")[0] == 0
    before = agents.get(CLUSTERS, None, "eu1")
    assert before is not None
    status, _, err = call("join", "eu1", "--agent", "-l", "tier=gold")
    assert status == 0, err
    changed = agents.get(CLUSTERS, None, "eu1")
    assert changed is not None
    assert changed["metadata"]["uid"] == before["metadata"]["uid"]
    assert changed["metadata"]["labels"] == {"region": "eu", "tier": "gold"}
    assert changed["spec"]["access"] == "Agent"
    assert "kubeconfigSecretRef" not in changed["spec"]
    assert agents.get("v1/secrets", NAMESPACE, "eu1-kubeconfig") is None
    # Another cluster is not put in its place, and nothing changes.
    status, _, err = call("join", "eu1", *file, "eu2")
    assert status != 0
    assert "another cluster than 'eu1'" in err
    assert record(agents) is not None
    assert agents.get("v1/secrets", NAMESPACE, "eu1-kubeconfig") is None
    status, _, err = call("join", "eu1", *file, "eu1")
    assert status == 0, err
    direct = agents.get(CLUSTERS, None, "eu1")
    assert direct is not None
    assert direct["metadata"]["uid"] == before["metadata"]["uid"]
    assert direct["spec"]["access"] == "Direct"
    assert direct["spec"]["kubeconfigSecretRef"]["name"] == "eu1-kubeconfig"
    assert record(agents) is None


def test_s3_an_agent_that_waits_is_accepted_once(call: Call, agents: EmulatedCluster):
    key = public_key(make_seed())
    waiting = AgentRecord(cluster="eu1", pending=key, uid="0d8f", instance="agent-a")
    agents.create("v1/secrets", record_secret(waiting, NAMESPACE))
    status, out, err = call("clusters", "accept", "eu1")
    assert status == 0, err
    assert "agent-a" in out
    assert "0d8f" in out
    accepted = record(agents)
    assert accepted is not None
    assert (accepted.key, accepted.pending) == (key, "")


def test_s3_unjoin_revokes_the_agent(call: Call, agents: EmulatedCluster):
    assert call("join", "eu1", "--agent")[0] == 0
    status, _, err = call("unjoin", "eu1")
    assert status == 0, err
    assert record(agents) is None
    assert agents.get(CLUSTERS, None, "eu1") is None


@each_row(
    ("words", "problem"),
    [
        ((), "--file, its kubeconfig, is needed; or --agent"),
        (("--agent", "--context", "x"), "--context cannot be used with --agent"),
        (("--agent", "--bootstrap"), "--bootstrap cannot be used with --agent"),
        (("--agent", "--expires", "soon"), "--expires 'soon' is not a duration"),
        (("--agent", "--expires", "90d"), "between 1m and 30d"),
        (("--agent", "--rights", "root"), "--rights 'root': one of read-only"),
        (("--agent", "--rights", "full", "--writable", "a"), "--writable needs --rights"),
        (("--agent", "--rights", "namespaces"), "needs --writable NAMESPACE"),
        (("--agent", "--nats-ca", "/nowhere"), "--nats-ca (/nowhere): cannot be read"),
        (("--agent",), "the hub has no agents"),
        (("--helm",), "--helm needs --agent"),
    ],
)
def test_bad_options_are_named(
    call: Call, hub: EmulatedCluster, words: tuple[str, ...], problem: str
):
    status, _, err = call("join", "eu1", *words)
    assert status != 0
    assert problem in err
    assert "Traceback" not in err
    assert not hub.list(CLUSTERS)
