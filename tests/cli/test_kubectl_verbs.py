"""apply, create, delete and edit of `kubectl-multicluster`, with a real kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from fleetbus_emulator.apiserver import Cluster, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl: https://kubernetes.io/docs/tasks/tools/"
)
Run = Callable[..., Awaitable[tuple[int, str, str]]]
RESOURCE = "fleetbus.dev/v1alpha1/multiclusterresources"
# As the README of multi_resource_operator has it.
MANIFEST = """\
apiVersion: mulitcluster.practice.com/v1alpha1
kind: MultiClusterResource
metadata:
  name: mypod.pod
  namespace: default
spec:
  template:
    apiVersion: v1
    kind: Pod
    metadata:
      name: multicluster-pod
      namespace: default
    spec:
      containers:
        - image: busybox
          name: example-container
          command: ["sleep", "3600"]
  placement:
    clusters:
      - name: tencent1
      - name: tencent2
  customize:
    clusters:
      - name: tencent1
        action:
          - path: "/spec/containers/0/image"
            op: "replace"
            value:
              - "nginx:1.19.0-alpine"
"""
OTHER = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data:
  text: |
    apiVersion: mulitcluster.practice.com/v1alpha1
"""


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncGenerator[tuple[Cluster, Run]]:
    cluster = Cluster("hub")
    for definition in crds():
        cluster.create(CRDS, definition)
    async with serve([cluster]) as servers:

        async def run(
            *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
        ) -> tuple[int, str, str]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fleetbus_cli.kubectl", *arguments),
                env={**os.environ, **(env or {"FLEETBUS_HUB_KUBECONFIG": str(path)})},
                cwd=tmp_path,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate(stdin.encode())
            return process.returncode or 0, out.decode(), err.decode()

        path = tmp_path / "kubeconfig"
        servers.write_kubeconfig(path)
        yield cluster, run


async def test_t18_an_old_manifest_is_applied_under_the_group_of_fleetbus_and_says_so(
    hub: tuple[Cluster, Run], tmp_path: Path
):
    cluster, run = hub
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "mcr.yaml").write_text(MANIFEST)
    (folder / "notes.yml").write_text(OTHER)
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first"}}
    (folder / "first.json").write_text(json.dumps(named))
    status, out, err = await run("apply", "-f", str(folder))
    assert (status, "multiclusterresource.fleetbus.dev/mypod.pod created" in out) == (0, True), err
    warning = "apiVersion mulitcluster.practice.com/v1alpha1 is read as fleetbus.dev/v1alpha1"
    assert err.splitlines() == [f"kubectl-multicluster: {folder}: {warning}"]
    resource = cluster.get(RESOURCE, "default", "mypod.pod")
    assert resource is not None
    action = resource["spec"]["customize"]["clusters"][0]["action"]
    assert action[0]["value"] == ["nginx:1.19.0-alpine"]
    assert cluster.get("v1/configmaps", "default", "first") is not None
    # The text of a ConfigMap is nobody's apiVersion.
    notes = cluster.get("v1/configmaps", "default", "notes")
    assert notes is not None
    assert notes["data"]["text"].startswith("apiVersion: mulitcluster")
    status, out, _ = await run("delete", f"--filename={folder / 'mcr.yaml'}")
    assert (status, "deleted" in out) == (0, True)
    assert cluster.get(RESOURCE, "default", "mypod.pod") is None


@pytest.mark.slow
async def test_t18_create_reads_json_and_standard_input_and_passes_on_all_else(
    hub: tuple[Cluster, Run],
):
    cluster, run = hub
    document = {
        "apiVersion": "mulitcluster.practice.com/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": "x"},
        "spec": {"template": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}},
    }
    status, out, err = await run("create", "-f-", "-o", "name", stdin=json.dumps(document))
    assert (status, out) == (0, "multiclusterresource.fleetbus.dev/x\n"), err
    # Both short names; kubectl's own messages and exit status.
    for name in ("rr", "mcr"):
        status, _, err = await run("delete", name, "missing")
        assert (status, 'multiclusterresources.fleetbus.dev "missing" not found' in err) == (
            1,
            True,
        )
    status, _, err = await run("delete", "rr", "x")
    assert status == 0
    assert cluster.get(RESOURCE, "default", "x") is None
    status, _, err = await run("apply", "-f")
    assert (status, "needs an argument" in err) == (1, True)
    status, _, err = await run("apply", "-f", "/nowhere.yaml")
    assert (status, "/nowhere.yaml" in err, "Traceback" in err) == (1, True, False)


async def test_t19_the_hub_is_the_one_that_the_file_of_the_seed_names_and_edit_is_kubectls(
    hub: tuple[Cluster, Run], tmp_path: Path
):
    cluster, run = hub
    cluster.create("v1/configmaps", {"metadata": {"name": "notes"}, "data": {"a": "1"}}, "default")
    folder = tmp_path / ".multi-cluster-operator"
    folder.mkdir()
    (folder / "config").write_text(f"masterClusterKubeConfigPath: {tmp_path / 'kubeconfig'}\n")
    home = {"HOME": str(tmp_path), "KUBECONFIG": "", "FLEETBUS_HUB_KUBECONFIG": ""}
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^  a: /  b: /' \"$1\"\n")
    editor.chmod(0o700)
    environment = {**home, "KUBE_EDITOR": str(editor)}
    status, out, err = await run("edit", "cm", "notes", env=environment)
    assert (status, "configmap/notes edited" in out) == (0, True), err
    assert (cluster.get("v1/configmaps", "default", "notes") or {})["data"] == {"b": "1"}
    # A kubeconfig that was chosen by the variable of kubectl counts more.
    status, _, err = await run("delete", "cm", "notes", env={**home, "KUBECONFIG": "/nowhere"})
    assert status == 1, err
    assert cluster.get("v1/configmaps", "default", "notes") is not None
