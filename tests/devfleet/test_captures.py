"""Captures as emulated clusters, and rehearsals on them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from fleetbus.errors import CaptureError, ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_cli.app import app
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.main import main
from fleetbus_cli.unknown import UnknownName
from fleetbus_devfleet.captures.opening import Opened, open_capture, read_opened
from fleetbus_devfleet.captures.prepare import Preparation
from fleetbus_devfleet.rehearsal.faults import Fault, FaultKind
from fleetbus_devfleet.rehearsal.manifest import read_manifest
from fleetbus_devfleet.rehearsal.outcome import ClusterResult, Follower, Result, WaveResult, decide
from fleetbus_devfleet.stack.captured_clusters import clusters_of
from fleetbus_emulator.apiserver.admin import AdminClient
from fleetbus_emulator.files import admin_port_file, kubeconfig_file
from support.eventually import eventually
from support.processes.in_process_commands import one_line, status_of
from support.rows import each_row
from support.wire import captures

_FLEETBUS = Path(sysconfig.get_path("scripts"), "fleetbus")
MAPS, DEPLOYMENTS, WIDGETS = "v1/configmaps", "apps/v1/deployments", "example.com/v1/widgets"
LONG = timedelta(minutes=5)
MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
FLEET = {"hub": {"role": "hub"}, "eu1": {"role": "member"}, "us1": {"role": "member"}}
MANIFEST = """
apiVersion: fleetbus.dev/v1alpha1
kind: MultiClusterResource
metadata: {name: flags, namespace: default}
spec:
  placement: {clusterSelector: {matchLabels: {role: member}}}
  template:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: flags}
    data: {colour: blue}
  rollout:
    waves: [{name: canary, clusters: [{name: eu1}], gates: [{name: smoke}]}]
    healthGate: {timeout: 2m}
"""


def obj(kind: str, name: str, *, namespace: str = "", **fields: Any) -> captures.Object:
    metadata = {"name": name, "uid": f"uid-{kind}-{name}", **fields.pop("metadata", {})}
    if namespace:
        metadata["namespace"] = namespace
    return {"kind": kind, "metadata": metadata, **fields}


def owned_by(name: str, uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid}
    return {"ownerReferences": [owner]}


@contextmanager
def emulator(folder: Path) -> Generator[None]:
    command = [sys.executable, "-m", "fleetbus_emulator", "--clusters", ",".join(FLEET)]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


# --- opening --------------------------------------------------------------------------------------


def test_the_hub_comes_first_and_a_capture_without_it_is_refused(tmp_path: Path):
    path = captures.write(tmp_path / "c.gz", {"eu1": {"region": "eu"}, "hub": {}})
    assert [
        (cluster.name, dict(cluster.labels)) for cluster in clusters_of(Capture.open(path))
    ] == [
        ("hub", {}),
        ("eu1", {"region": "eu"}),
    ]
    captures.write(path, {"eu1": {}, "us1": {}})
    with pytest.raises(CaptureError, match="the hub is not in it, only eu1, us1: capture it too"):
        clusters_of(Capture.open(path))


async def test_a_capture_is_opened_with_uids_owners_and_custom_resources(tmp_path: Path):
    owner = obj("ReplicaSet", "web", namespace="shop", spec={"replicas": 1}, status={"replicas": 1})
    pod = obj("Pod", "web-1", namespace="shop", metadata=owned_by("web", "uid-ReplicaSet-web"))
    orphan = obj("Pod", "left", namespace="shop", metadata=owned_by("gone", "uid-of-nobody"))
    path = captures.write(
        tmp_path / "c.gz",
        FLEET,
        [
            ("eu1", "v1/pods", pod),
            ("eu1", "v1/pods", orphan),
            ("eu1", "apps/v1/replicasets", owner),
            ("eu1", WIDGETS, obj("Widget", "w", namespace="far", spec={"any": [1]})),
            ("hub", "fleetbus.dev/v1alpha1/clusters", obj("Cluster", "eu1")),
            ("hub", "v1/namespaces", obj("Namespace", "kube-system")),
        ],
    )
    folder = tmp_path / "clusters"
    with emulator(folder):
        await eventually(kubeconfig_file(folder).exists)
        url = f"http://127.0.0.1:{admin_port_file(folder).read_text()}"
        opened = await open_capture(
            Capture.open(path), admin_url=url, kubeconfig=kubeconfig_file(folder)
        )
        async with (
            KubeClient(read_kube_config(kubeconfig_file(folder), "eu1")) as eu1,
            AdminClient(url) as admin,
        ):
            pods = {one["metadata"]["name"]: one for one in await eu1.list("v1/pods")}
            widget = await eu1.get(WIDGETS, "far", "w")
            hub = await admin.cluster("hub")
    assert pods.keys() == {"web-1", "left"}, "one pod for one replica"
    assert pods["web-1"]["metadata"]["ownerReferences"][0]["uid"] == "uid-ReplicaSet-web"
    assert not pods["left"]["metadata"].get("ownerReferences")
    assert widget is not None
    assert widget["spec"] == {"any": [1]}
    assert hub.uid == "uid-Namespace-kube-system"
    assert opened.owners_dropped == 1
    assert opened.objects["eu1"] == 4 + 4, "two definitions and two namespaces were made up"
    assert (opened.not_served, opened.refused) == ({}, [])
    opened.write(tmp_path / "opened.json")
    assert read_opened(tmp_path / "opened.json") == opened
    assert opened.notes() == ["1 objects lost an owner that was not captured"]
    assert read_opened(tmp_path / "nothing") is None
    assert Opened().notes() == []


# --- the words of a rehearsal ---------------------------------------------------------------------


@each_row(
    ("text", "expected"),
    [
        ("eu1 dies", (FaultKind.DIES, "", "", None)),
        ("eu1 dies in wave 2", (FaultKind.DIES, "", "2", None)),
        ("eu1  returns after 10s", (FaultKind.RETURNS, "", "", timedelta(seconds=10))),
        (
            "eu1 refuses deploy in wave canary",
            (FaultKind.REFUSES, "deployments.apps", "canary", None),
        ),
        ("eu1 is slow", (FaultKind.SLOW, "", "", None)),
        ("eu1 never becomes healthy", (FaultKind.UNHEALTHY, "", "", None)),
    ],
)
def test_a_fault_is_read(text: str, expected: tuple[Any, ...]):
    fault = Fault.read(text)
    assert (fault.cluster, fault.kind, fault.resource, fault.wave, fault.after) == (
        "eu1",
        *expected,
    )
    fault.check(["hub", "eu1"], ["canary"], LONG)


@each_row("text", ["", "eu1", "eu1 explodes", "eu1 dies in wave", "eu1 dies after 5"])
def test_another_fault_is_refused_with_the_grammar(text: str):
    with pytest.raises(ConfigError, match=r"is not of the form CLUSTER dies\|returns\|refuses"):
        Fault.read(text)


def test_a_fault_of_an_unknown_cluster_or_wave_is_refused():
    with pytest.raises(UnknownName, match="cluster 'eu2' is not in the fleet; did you mean 'eu1'"):
        Fault.read("eu2 dies").check(["hub", "eu1"], [], LONG)
    with pytest.raises(ConfigError, match="its waves are canary, remaining, or 1 to 2"):
        Fault.read("eu1 dies in wave 3").check(["eu1"], ["canary"], LONG)
    with pytest.raises(ConfigError, match=r"no wave '2': spec\.rollout names no waves"):
        Fault.read("eu1 dies in wave 2").check(["eu1"], [], LONG)
    with pytest.raises(ConfigError, match="the rehearsal ends after 300s: --timeout"):
        Fault.read("eu1 dies after 5m").check(["eu1"], ["canary"], LONG)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "invalid YAML"),
        ("", "has 0 documents, not one MultiClusterResource"),
        ("kind: Pod\napiVersion: v1", "but Pod of v1"),
        (MANIFEST.replace("name: flags, ", "", 1), "needs metadata.name and spec"),
        (MANIFEST.replace("placement:", "placment:"), r"spec\.placment: unknown field"),
        (
            MANIFEST.replace("  rollout:", "  policy: {deletion: Keep}\n  rollout:"),
            r"spec\.policy\.deletion: Input",
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str, message: str):
    path = tmp_path / "mcr.yaml"
    path.write_text(content)
    with pytest.raises(CaptureError, match=message):
        read_manifest(path, "default", speed=1)
    with pytest.raises(CaptureError, match="No such file"):
        read_manifest(tmp_path / "nowhere", "default", speed=1)


def test_timers_are_scaled_and_named(tmp_path: Path):
    path = tmp_path / "mcr.yaml"
    path.write_text(MANIFEST.replace("{name: smoke}", "{name: quiet, period: 10m}"))
    manifest_read = read_manifest(path, "default", speed=20)
    rollout = manifest_read.spec["rollout"]
    assert rollout["healthGate"] == {"timeout": "6s"}
    assert rollout["waves"][0]["gates"] == [{"name": "quiet", "period": "30s"}]
    assert len(manifest_read.scaled) == 2
    assert read_manifest(path, "default", speed=1).scaled == []


def test_a_cluster_of_a_later_wave_that_was_written_is_a_failure():
    waves = [WaveResult("one", ["eu1"], "Failed"), WaveResult("two", ["us1"])]
    broken = ClusterResult("eu1", "one", state="Unreachable")
    status = {"rollout": {"phase": "Failed"}}

    def result(*clusters: ClusterResult, breaks: str = "eu1") -> tuple[Result, str]:
        return decide(status, waves, clusters, {breaks}, is_late=False)

    assert result(broken, ClusterResult("us1", "two"))[0] is Result.CONTAINED
    written = ClusterResult("us1", "two", state="Applied", changed=["core/configmaps default/x"])
    assert result(broken, written)[0] is Result.FAILED
    assert result(broken, ClusterResult("us1", "two"), breaks="us1")[0] is Result.FAILED


def test_a_held_deletion_is_unfinished_and_not_a_failure():
    """It waits for a person, as docs/capture.md says."""
    status = {"held": {"objects": 1, "clusters": ["eu1"]}, "rollout": {"phase": "Complete"}}
    clusters = [
        ClusterResult("us1", state="Applied", health="Healthy"),
        ClusterResult("eu1", state="Held", health="Healthy"),
    ]
    result, why = decide(status, [], clusters, set(), is_late=False)
    assert result is Result.UNFINISHED
    assert why == "the deletion of 1 object is held until you confirm it"
    other = ClusterResult("ap1", state="Conflict")
    assert decide(status, [], [*clusters, other], set(), is_late=False)[0] is Result.FAILED


@pytest.mark.parametrize("breaks", [set[str](), {"eu1"}])
def test_an_edit_that_the_distributor_refuses_is_a_failure(breaks: set[str]):
    """The clusters have what the spec before asked for, which says nothing about this one."""
    message = "spec.rollout.waves[1]: exactly one of clusters, clusterSelector and percent"
    ready = {"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": message}
    clusters = [
        ClusterResult("eu1", state="Unreachable" if breaks else "Applied"),
        ClusterResult("us1", state="Applied", health="Healthy"),
    ]
    decision = decide({"conditions": [ready]}, [], clusters, breaks, is_late=False)
    assert decision == (Result.FAILED, f"the distributor refuses it: InvalidSpec: {message}")


def test_an_edit_that_is_suspended_is_unfinished():
    ready = {"type": "Ready", "status": "False", "reason": "Suspended", "message": "suspend is on"}
    clusters = [ClusterResult("eu1", state="Applied", health="Healthy")]
    decision = decide({"conditions": [ready]}, [], clusters, set(), is_late=False)
    assert decision == (Result.UNFINISHED, "suspend is on")


def test_a_rollout_that_is_taken_away_is_no_news():
    follower = Follower()
    assert follower.see({"rollout": {"phase": "Complete"}}, 0.0) == ["the rollout is complete"]
    assert follower.see({}, 1.0) == []


# --- a rehearsal ----------------------------------------------------------------------------------


@pytest.mark.full
def test_a_rehearsal_runs_the_real_rollout_on_copies_and_contacts_nobody_else(tmp_path: Path):
    """The hub's Cluster and kubeconfig name an address that listens: nobody connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as real:
        real.setblocking(False)
        address = f"http://127.0.0.1:{real.getsockname()[1]}"
        secret = obj("Secret", "eu1-kubeconfig", namespace="fleetbus", data={"kubeconfig": address})
        reference = {"kubeconfigSecretRef": {"namespace": "fleetbus", "name": "eu1-kubeconfig"}}
        fleet = captures.write(
            tmp_path / "fleet.gz",
            FLEET,
            [
                ("hub", "v1/secrets", secret),
                ("hub", "fleetbus.dev/v1alpha1/clusters", obj("Cluster", "eu1", spec=reference)),
                ("us1", MAPS, obj("ConfigMap", "other", namespace="default", data={})),
            ],
        )
        manifest = tmp_path / "mcr.yaml"
        manifest.write_text(MANIFEST)
        command = [str(_FLEETBUS), "rehearse", "-f", str(manifest), "--from", str(fleet)]
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "KUBECONFIG": str(tmp_path / "none")}
        (tmp_path / "tmp").mkdir()
        broken = subprocess.run(
            [*command, "-o", "json", "--vote", "smoke=pass", "--fault", "us1 dies in wave 2"],
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
            check=False,
        )
        with pytest.raises(BlockingIOError):
            real.accept()
    assert broken.returncode == 0, broken.stderr
    report = json.loads(broken.stdout)
    assert report["result"] == "contained"
    assert [(wave["name"], wave["phase"]) for wave in report["waves"]] == [
        ("canary", "Passed"),
        ("remaining", "Failed"),
    ]
    by_name = {cluster["name"]: cluster for cluster in report["clusters"]}
    assert by_name["eu1"]["created"] == ["core/configmaps default/flags"]
    assert (by_name["us1"]["state"], by_name["us1"]["created"]) == ("Unreachable", [])
    assert [fault["fault"] for fault in report["faults"]] == ["us1 dies in wave 2"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.full
def test_an_interrupted_rehearsal_leaves_nothing(tmp_path: Path):
    fleet = captures.write(tmp_path / "fleet.gz", FLEET)
    manifest = tmp_path / "mcr.yaml"
    manifest.write_text(MANIFEST)
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [str(_FLEETBUS), "rehearse", "-f", str(manifest), "--from", str(fleet)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
    )
    assert process.stderr is not None
    assert "starting 3 emulated clusters" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "interrupted; every process is stopped" in process.stderr.read()
    assert process.wait(30) == 130
    process.stderr.close()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_bad_input_is_one_line_with_status_1_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fleet = captures.write(tmp_path / "fleet.gz", FLEET)
    foreign = tmp_path / "foreign.gz"
    foreign.write_bytes(orjson.dumps({"format": "other"}))
    manifest = tmp_path / "mcr.yaml"
    manifest.write_text(MANIFEST)
    monkeypatch.setattr(app, "registered_groups", [])
    before = sorted(tmp_path.iterdir())
    rehearse = ["rehearse", "-f", str(manifest), "--from"]
    for words, message in (
        ([*rehearse, str(foreign)], "is not a capture of fleetbus"),
        ([*rehearse, str(fleet), "--fault", "eu9 dies"], "cluster 'eu9' is not in the fleet"),
        ([*rehearse, str(fleet), "--fault", "eu1 refuses deploymnets"], "mean 'deployments'?"),
        (["dev", "up", "--dir", str(tmp_path / "dev"), "--from", str(foreign)], "is not a capture"),
    ):
        monkeypatch.setattr(sys, "argv", ["fleetbus", *words])
        assert status_of(main) == 1
        assert message in one_line(capsys)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "body",
    [
        b'["ownerReferences"]',
        b'{"metadata":5,"ownerReferences":1}',
        b'{"metadata":{"ownerReferences":[5]},"spec":5}',
        b'{"metadata":{"ownerReferences":{}},"spec":{"policy":[]}}',
    ],
)
def test_an_object_that_somebody_has_made_up_breaks_no_preparation(tmp_path: Path, body: bytes):
    path = tmp_path / "c.gz"
    resource = {"kind": "MultiClusterResource", "metadata": {"name": "m", "namespace": "a"}}
    captures.write(
        path, {"hub": {}}, [("hub", "fleetbus.dev/v1alpha1/multiclusterresources", resource)]
    )
    preparation = Preparation(Capture.open(path), suspended=True)
    (captured,) = Capture.open(path).objects()
    hostile = msgspec.structs.replace(captured, object=msgspec.Raw(body))
    (line,) = preparation.lines("hub", [hostile])
    assert json.loads(line)["type"] == "fleetbus.dev/v1alpha1/multiclusterresources"


def test_a_capture_with_an_object_of_an_unnamed_cluster_is_refused(tmp_path: Path):
    path = tmp_path / "c.gz"
    config_map = {"kind": "ConfigMap", "metadata": {"name": "m", "namespace": "a"}}
    captures.write(path, {"hub": {}}, [("elsewhere", "v1/configmaps", config_map)])
    with pytest.raises(CaptureError, match="lacks the cluster 'elsewhere' of an object"):
        Preparation(Capture.open(path))
