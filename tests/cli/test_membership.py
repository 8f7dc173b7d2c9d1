"""Join and unjoin, through the command line, against an emulated hub and members."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fleetbus.clusters.leaving import LEFT_LABEL, LEFT_UID
from fleetbus.clusters.membership import JOINED_LABEL
from fleetbus_emulator.apiserver import Fail

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import Rule
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet

Call = Callable[..., tuple[int, str, str]]
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
NAMESPACE = "fleetbus-clusters"

pytestmark = pytest.mark.fleet(["hub", "eu1"], workloads=False)


def join(call: Call, fleet: EmulatedFleet, *more: str) -> tuple[int, str, str]:
    return call("join", "eu1", "--file", str(fleet.kubeconfig), "--context", "eu1", *more)


def test_t20_a_joined_cluster_has_a_secret_and_a_cluster(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    status, out, err = join(call, fleet, "-l", "region=eu", "-l", "tier=gold")
    assert (status, err) == (0, "")
    assert out.startswith("cluster eu1 joined the fleet\n  fleetbus-watcher --cluster eu1 ")
    commands = [
        line.split("   ")[0].split()[1:] for line in out.splitlines() if "  fleetbus " in line
    ]
    assert commands[1:] == [["get", "pods", "--cluster", "eu1"], ["unjoin", "eu1"]]
    for command in commands:
        assert call(*command, "--help")[0] == 0, f"the CLI has no {command}"
    cluster = hub.get(CLUSTERS, None, "eu1")
    assert cluster is not None
    assert cluster["metadata"]["labels"] == {"region": "eu", "tier": "gold"}
    access = {"namespace": NAMESPACE, "name": "eu1-kubeconfig"}
    assert cluster["spec"]["kubeconfigSecretRef"] == access
    assert not any(cluster["spec"][key] for key in ("insecureSkipTLSVerify", "allowHTTP"))
    secret = hub.get("v1/secrets", NAMESPACE, "eu1-kubeconfig")
    assert secret is not None
    assert secret["metadata"]["labels"] == {
        "fleetbus.dev/kubeconfig": "true",
        JOINED_LABEL: "eu1",
    }
    kubeconfig = json.loads(base64.b64decode(secret["data"]["kubeconfig"]))
    assert [c["name"] for c in kubeconfig["clusters"]] == ["eu1"]  # the hub's access is not in it


def test_t20_an_unjoined_cluster_leaves_a_record_and_a_join_takes_it_back(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet)
    fleet["eu1"].create("v1/configmaps", {"metadata": {"name": "mine"}}, "default")
    uid = (hub.get(CLUSTERS, None, "eu1") or {})["metadata"]["uid"]
    assert call("unjoin", "eu1")[0] == 0
    assert hub.get(CLUSTERS, None, "eu1") is None
    assert hub.get("v1/secrets", NAMESPACE, "eu1-kubeconfig") is None
    (record,) = hub.list("v1/configmaps", NAMESPACE, LEFT_LABEL)
    assert record["metadata"]["labels"] == {LEFT_LABEL: "eu1"}
    assert record["metadata"]["annotations"] == {LEFT_UID: uid}
    assert fleet["eu1"].get("v1/configmaps", "default", "mine") is not None
    assert join(call, fleet)[0] == 0
    assert hub.list("v1/configmaps", NAMESPACE, LEFT_LABEL) == []


def test_d7_the_record_is_there_before_the_cluster_goes(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet)
    call("unjoin", "eu1")
    steps = [(r.verb, r.path.rsplit("/", 1)[-1]) for r in hub.requests if r.method != "GET"]
    assert steps[-3:] == [("create", "configmaps"), ("delete", "eu1"), ("delete", "eu1-kubeconfig")]


def test_d7_a_second_leave_is_recorded_for_the_cluster_that_leaves_then(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    join(call, fleet)
    call("unjoin", "eu1")
    reference = {"kubeconfigSecretRef": {"namespace": NAMESPACE, "name": "mine"}}
    again = hub.create(CLUSTERS, {"metadata": {"name": "eu1"}, "spec": reference})
    assert call("unjoin", "eu1")[0] == 0
    (record,) = hub.list("v1/configmaps", NAMESPACE, LEFT_LABEL)
    assert record["metadata"]["annotations"] == {LEFT_UID: again["metadata"]["uid"]}


@pytest.mark.parametrize("is_reported_by_its_watcher", [False, True])
def test_w13_d5_a_cluster_joins_under_one_name(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster, is_reported_by_its_watcher: bool
):
    join(call, fleet)
    if is_reported_by_its_watcher:
        uid = (fleet["eu1"].get("v1/namespaces", None, "kube-system") or {})["metadata"]["uid"]
        patched = hub.patch(CLUSTERS, None, "eu1", {"metadata": {"annotations": None}})
        hub.update_status(CLUSTERS, {**patched, "status": {"uid": uid}})
    status, out, err = call("join", "two", "-f", str(fleet.kubeconfig), "--context", "eu1")
    assert (status, out) == (2, "")
    assert "this cluster is already in the fleet as 'eu1'" in err
    assert hub.get(CLUSTERS, None, "two") is None
    assert hub.get("v1/secrets", NAMESPACE, "two-kubeconfig") is None
    assert call("unjoin", "eu1")[0] == 0
    assert call("join", "two", "-f", str(fleet.kubeconfig), "--context", "eu1")[0] == 0


def test_a_secret_that_no_join_wrote_outlives_an_unjoin(call: Call, hub: EmulatedCluster):
    hub.create("v1/secrets", {"metadata": {"name": "mine"}, "data": {}}, NAMESPACE)
    reference = {"kubeconfigSecretRef": {"namespace": NAMESPACE, "name": "mine"}}
    hub.create(CLUSTERS, {"metadata": {"name": "eu1"}, "spec": reference})
    assert call("unjoin", "eu1")[0] == 0
    assert hub.get("v1/secrets", NAMESPACE, "mine") is not None


def test_t20_the_hub_cannot_leave(call: Call, fleet: EmulatedFleet, hub: EmulatedCluster):
    call("join", "home", "--file", str(fleet.kubeconfig), "--context", "hub")
    assert call("unjoin", "home") == (
        2,
        "",
        "fleetbus: cluster 'home' is the hub of the fleet and cannot leave it\n",
    )
    assert hub.get(CLUSTERS, None, "home") is not None
    assert hub.list("v1/configmaps", NAMESPACE, LEFT_LABEL) == []


def test_t20_a_name_is_taken_once(call: Call, fleet: EmulatedFleet):
    join(call, fleet)
    status, out, err = join(call, fleet)
    assert (status, out) == (2, "")
    assert err.startswith("fleetbus: the name 'eu1' is taken: a cluster of the fleet has it; ")
    assert f"update the Secret {NAMESPACE}/eu1-kubeconfig" in err
    message = "fleetbus: cluster 'eu2' is not in the fleet; did you mean 'eu1'?\n"
    assert call("unjoin", "eu2") == (1, "", message)


def test_t20_a_dead_address_writes_nothing_unless_that_is_wanted(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster
):
    fleet["eu1"].stop()
    status, _, err = join(call, fleet)
    assert (status, err.startswith("fleetbus: cluster 'eu1' cannot be used: ")) == (2, True)
    assert hub.get(CLUSTERS, None, "eu1") is None
    assert hub.list("v1/secrets", NAMESPACE) == []
    assert join(call, fleet, "--no-check")[0] == 0


@pytest.mark.parametrize(
    ("user", "field"),
    [
        (
            {"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1beta1"}},
            "exec",
        ),
        ({"client-key": "/etc/key"}, "client-key"),
    ],
)
def test_s7_t20_what_runs_code_or_reads_files_is_refused(
    call: Call, fleet: EmulatedFleet, tmp_path: Path, user: dict[str, Any], field: str
):
    document: dict[str, Any] = yaml.safe_load(fleet.kubeconfig.read_text())
    document["users"][0]["user"] = user
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    status, _, err = call("join", "eu1", "--file", str(path), "--context", "eu1")
    assert status == 2
    assert f"{field!r} is not allowed" in err
    assert "kubectl config view --minify --flatten" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["join", "EU_1", "--file", "{}"], "cluster name 'EU_1' is not a DNS-1123 label"),
        (["join", "a", "--file", "/no/such"], "/no/such: cannot read the kubeconfig"),
        (["join", "a", "--file", "{}", "--context", "x"], "context 'x' is not one of hub, eu1"),
        (["join", "a", "--file", "{}", "-l", "x"], "--label 'x' is not key=value"),
    ],
)
def test_bad_input_is_one_line(
    call: Call, fleet: EmulatedFleet, arguments: list[str], message: str
):
    status, _, err = call(*[a.format(fleet.kubeconfig) for a in arguments])
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


def test_a_hub_that_refuses_is_reported_and_nothing_is_left(
    call: Call, fleet: EmulatedFleet, hub: EmulatedCluster, fault: Callable[..., Rule]
):
    fault("hub", Fail(403), verb="create", resource="clusters.fleetbus.dev")
    status, _, err = join(call, fleet)
    assert (status, "the hub refused" in err) == (1, True)
    assert hub.list("v1/secrets", NAMESPACE) == []


def test_without_a_hub_the_command_says_how_to_name_one(
    call: Call, fleet: EmulatedFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("FLEETBUS_HUB_KUBECONFIG")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    message = (
        f"fleetbus: no hub is set: no dev fleet runs in {tmp_path} or a parent folder; start one"
        " with `fleetbus dev up`, give --hub-kubeconfig FILE, or set FLEETBUS_HUB_KUBECONFIG\n"
    )
    assert join(call, fleet) == (2, "", message)
