"""A rehearsal of what is deployed already says what the fleet itself would write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fleetbus_cli.capture.reading import Capture
from fleetbus_devfleet.rehearsal.captured import CapturedResource, missing_types
from fleetbus_devfleet.rehearsal.manifest import read_manifest
from support.rows import each_row
from support.wire import captures

_FLEETBUS = str(Path(sysconfig.get_path("scripts"), "fleetbus"))
_MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
_TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "flags"},
    "data": {"colour": "blue"},
}
_SPEC: dict[str, Any] = {
    "placement": {"clusterSelector": {"matchLabels": {"role": "member"}}},
    "templates": [_TEMPLATE],
    "rollout": {"waves": [{"name": "canary", "clusters": [{"name": "eu1"}]}]},
}


def _resource(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": "flags", "namespace": "default"}
    kind = {"apiVersion": "fleetbus.dev/v1alpha1", "kind": "MultiClusterResource"}
    return {**kind, "metadata": metadata, "spec": spec, **more}


def test_a_capture_without_it_is_of_a_first_deployment(tmp_path: Path):
    path = tmp_path / "mcr.json"
    path.write_text(json.dumps(_resource(_SPEC)))
    manifest = read_manifest(path, "default", speed=1)
    clusters: dict[str, dict[str, str]] = {"hub": {}, "eu1": {}}
    empty = captures.write(tmp_path / "c.gz", clusters)
    assert CapturedResource.find(Capture.open(empty), manifest) is None
    deployed = _resource(_SPEC)
    full = captures.write(tmp_path / "c.gz", clusters, [("hub", _MCR, deployed)])
    assert CapturedResource.find(Capture.open(full), manifest) == CapturedResource(deployed)


@each_row(("phase", "is_paused"), [("Complete", False), ("Failed", True), ("Progressing", True)])
def test_the_copies_settle_without_opening_a_wave(phase: str, is_paused: bool):
    before = CapturedResource(_resource(_SPEC, status={"rollout": {"phase": phase}}))
    assert before.settled_spec["rollout"].get("paused", False) is is_paused
    assert before.notes() == []


def test_what_the_copies_cannot_show_is_a_note():
    suspended = CapturedResource(_resource({**_SPEC, "policy": {"suspend": True}}))
    assert "it was suspended when it was captured" in suspended.notes()[0]
    hidden = CapturedResource(_resource({"placement": {}}))
    assert "hides templates that may be Secrets" in hidden.notes()[0]
    for state, reason in (("Conflict", "FieldConflict"), ("Drifted", "Drifted")):
        status = {"clusters": [{"name": "eu1", "state": state, "reason": reason}]}
        (note,) = CapturedResource(_resource(_SPEC, status=status)).notes()
        assert "others have changed fields in eu1" in note
    # The copies have the marks of owners, so this conflict is in the report.
    status = {"clusters": [{"name": "eu1", "state": "Conflict", "reason": "NotOurs"}]}
    assert CapturedResource(_resource(_SPEC, status=status)).notes() == []


def test_types_that_were_not_captured_are_notes(tmp_path: Path):
    path = tmp_path / "mcr.json"
    path.write_text(json.dumps(_resource(_SPEC)))
    manifest = read_manifest(path, "default", speed=1)
    clusters: dict[str, dict[str, str]] = {"hub": {}, "eu1": {}}
    pods = captures.write(tmp_path / "c.gz", clusters, kinds={"v1/pods": "Pod"})
    first, second = missing_types(Capture.open(pods), manifest)
    assert "no MultiClusterResources, so this is a first deployment" in first
    assert "no objects of ConfigMap, so each of them counts as created" in second
    kinds = {_MCR: "MultiClusterResource", "v1/configmaps": "ConfigMap"}
    full = captures.write(tmp_path / "c.gz", clusters, kinds=kinds)
    assert missing_types(Capture.open(full), manifest) == []


@pytest.mark.full
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="install kubectl")
def test_only_the_edit_counts_as_a_change(tmp_path: Path):
    def run(*words: str) -> str:
        command = [_FLEETBUS, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
        return done.stdout

    def rehearse(colour: str, *words: str) -> tuple[str, list[list[str]]]:
        template = {**_TEMPLATE, "data": {"colour": colour}}
        manifest = tmp_path / f"{colour}.json"
        manifest.write_text(json.dumps(_resource({**_SPEC, "templates": [template]})))
        command = ["rehearse", "-f", str(manifest), "--from", str(fleet), "-o", "json", *words]
        report = json.loads(run(*command))
        return report["result"], [cluster["changed"] for cluster in report["clusters"]]

    stack, fleet = str(tmp_path / "stack"), tmp_path / "fleet.gz"
    run("dev", "up", "--clusters", "3", "--dir", stack)
    try:
        state = json.loads(Path(stack, "stack.json").read_text())
        hub = ("--hub-kubeconfig", f"{stack}/kubeconfig", "--hub-context", "hub")
        deployed = tmp_path / "deployed.json"
        deployed.write_text(json.dumps(_resource(_SPEC)))
        kubectl = ("kubectl", "--kubeconfig", f"{stack}/kubeconfig", "--context", "hub")
        subprocess.run([*kubectl, "apply", "-f", str(deployed)], check=True, timeout=60)
        run("rollout", "status", "flags", "--wait", "1m", *hub)
        stores = ("--nats-url", state["nats_url"], "--redis-url", state["redis_url"])
        run("capture", "--keep-values", "-o", str(fleet), *stores)
    finally:
        run("dev", "down", "--dir", stack)
    flags = ["core/configmaps default/flags"]
    assert rehearse("blue") == ("completed", [[], []])
    assert rehearse("red") == ("completed", [flags, flags])
    fault = ("--fault", "eu1 refuses configmaps")
    assert rehearse("red", *fault) == ("contained", [[], []])
