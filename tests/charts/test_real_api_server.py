"""A real API server accepts every rendered object, and its CEL rules say what a person understands.

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.binaries import ProgramsMissingError, find_programs
from e2e.planes import ADMIN_TOKEN, Plane
from support.api.rendered_chart import NAMESPACE, VALUES, Object, render

pytestmark = pytest.mark.skipif(
    not os.environ.get("FLEETBUS_TEST_FULL"), reason="`make scenarios` runs it"
)
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
FIRST = {"Namespace": 0, "CustomResourceDefinition": 1}
MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
BOTH: Object = {"name": "a", "clusterSelector": {}}


@dataclass
class Kubectl:
    """kubectl, as the administrator of the hub."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, text: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [self.program, "--kubeconfig", self.kubeconfig, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncGenerator[Kubectl]:
    try:
        programs = find_programs()
    except ProgramsMissingError as e:
        pytest.skip(str(e))
    plane = Plane("hub", tmp_path / "hub", programs)
    try:
        await plane.start()
        yield Kubectl(programs / "kubectl", plane.write_kubeconfig("admin", token=ADMIN_TOKEN))
    finally:
        await plane.aclose()


def test_it_accepts_all_objects_and_upgrades_and_refuses_with_words(kubectl: Kubectl):
    kubectl.run("create", "namespace", NAMESPACE)
    for values in VALUES.values():
        objects = [one for one in render(values) if one["kind"] not in OF_OPERATORS]
        objects.sort(key=lambda one: FIRST.get(one["kind"], 2))
        text = "\n---\n".join(map(json.dumps, objects))
        status, said = kubectl.run(
            *("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-"),
            text=text,
        )
        assert status == 0, said
    kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    assert refusal(kubectl, {"template": MAP}) == ""
    assert refusal(kubectl, {"templates": [MAP]}) == ""
    said = refusal(kubectl, {"template": MAP, "templates": [MAP]})
    assert "set either template, for one object, or templates, for several" in said
    said = refusal(kubectl, {"template": MAP, "customize": {"clusters": [BOTH]}})
    assert "set either name or clusterSelector" in said


def refusal(kubectl: Kubectl, spec: Object) -> str:
    body = {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": spec,
    }
    status, said = kubectl.run("create", "--dry-run=server", "-f", "-", text=json.dumps(body))
    return said if status else ""
