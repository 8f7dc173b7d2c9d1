"""A real API server accepts every rendered object, and its CEL rules say what a person understands.

Part of `make scenarios`, where the programs of `make e2e` are there: it takes seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.api.rendered_chart import NAMESPACE, VALUES, Object, render
from support.processes.helm import Kubectl, real_hub

pytestmark = pytest.mark.skipif(
    not os.environ.get("FLEETBUS_TEST_FULL"), reason="`make scenarios` runs it"
)
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Certificate"}
FIRST = {"Namespace": 0, "CustomResourceDefinition": 1}
MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
BOTH: Object = {"name": "a", "clusterSelector": {}}


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncGenerator[Kubectl]:
    async with real_hub(tmp_path) as kubectl:
        yield kubectl


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
