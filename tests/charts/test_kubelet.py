"""The kubelet of the tests runs pods as a kubelet would (tests/support/kubelet).

A part of `make scenarios`, like the one test that uses this kubelet: no test of `make test` does.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, Fail, User, serve
from fleetbus_emulator.controllers import CONTROL_PLANE, simulate
from support.eventually import eventually
from support.kubelet.isolation import in_isolation
from support.processes.programs import module

pytestmark = pytest.mark.full

Object = dict[str, Any]
ADDRESS = "10.1.0.1"
ABOVE = str(Path(sys.prefix).parents[1])
"""The folder of the checkout, of which a container sees parts: a volume there may not hide them."""
SHOW = (Path(__file__).parents[1] / "scripts/show_container.py").read_text()


@asynccontextmanager
async def kubelet(folder: Path) -> AsyncGenerator[Cluster]:
    admin = User("admin", ("system:masters", "system:authenticated"))
    cluster = Cluster("hub", tokens={"admin": admin}, authorize="rbac")
    async with (
        serve([cluster], host=ADDRESS, tls=True) as servers,
        simulate([cluster], controllers=CONTROL_PLANE),
    ):
        servers.write_kubeconfig(folder / "kubeconfig", "admin")
        options = ("--kubeconfig", str(folder / "kubeconfig"), "--folder", str(folder))
        command = module("support.kubelet", *options, "--hurry", "20")
        child = Child("kubelet", command, log=folder / "kubelet.log")
        try:
            yield cluster
        finally:
            await child.stop()


def deployment(template: Object) -> Object:
    return {
        "metadata": {"name": "app", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": template},
        },
    }


POD: Object = {
    "serviceAccountName": "default",
    "terminationGracePeriodSeconds": 5,
    "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
    "initContainers": [
        {
            "name": "first",
            "image": "fleetbus:1",
            "command": ["sh", "-c", "sleep 0.2; echo -n done > /shared/init"],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }
    ],
    "containers": [
        {
            "name": "app",
            "image": "fleetbus:1",
            "command": ["python", "-c", SHOW],
            "args": ["--where=$(PLACE)", "$$(PLACE)"],
            "ports": [{"name": "web", "containerPort": 8080}],
            "securityContext": {"readOnlyRootFilesystem": True},
            "envFrom": [{"secretRef": {"name": "s"}, "prefix": "S_"}],
            "env": [
                {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "PLACE", "value": "http://$(ADDRESS)"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
            ],
            "startupProbe": {"tcpSocket": {"port": "web"}, "failureThreshold": 50},
            "readinessProbe": {"exec": {"command": ["test", "-f", "/shared/init"]}},
            "volumeMounts": [
                {"name": "shared", "mountPath": "/shared"},
                {"name": "above", "mountPath": ABOVE},
                {"name": "secret", "mountPath": "/etc/app/secret", "readOnly": True},
                {"name": "several", "mountPath": "/etc/app/several", "readOnly": True},
            ],
        }
    ],
    "volumes": [
        {"name": "shared", "emptyDir": {}},
        {"name": "above", "emptyDir": {}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {
            "name": "several",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "audience": "fleetbus"}},
                    {"configMap": {"name": "c", "items": [{"key": "k", "path": "deep/k"}]}},
                ]
            },
        },
    ],
}


def claims(token: str) -> Object:
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


@in_isolation
async def test_a_container_has_what_its_pod_says_and_nothing_of_this_machine(tmp_path: Path):
    async with kubelet(tmp_path) as cluster:
        cluster.create("v1/configmaps", {"metadata": {"name": "c"}, "data": {"k": "v"}}, "default")
        cluster.create("apps/v1/deployments", deployment(POD))
        secret = {"metadata": {"name": "s"}, "stringData": {"key": "one"}}
        cluster.create("v1/secrets", secret, "default")  # late: the pod waits for it
        is_ready = lambda: _available(cluster)  # noqa: E731 -- of this cluster
        await eventually(is_ready, timedelta(seconds=20))
        (log,) = tmp_path.glob("logs/default/app-*/app.log")
        report = lines(log)[0]
        cluster.patch("v1/secrets", "default", "s", {"stringData": {"key": "two"}})
        await eventually(lambda: {"secret": "two"} in lines(log))
        cluster.delete("apps/v1/deployments", "default", "app")
        await eventually(lambda: not cluster.list("v1/pods"))
        assert lines(log)[-2:] == [{"ended": True}, {"done": True}]
    address = report["environment"]["ADDRESS"]
    assert report["arguments"] == [f"--where=http://{address}", "$(PLACE)"]
    assert report["environment"]["S_key"] == report["environment"]["KEY"] == "one"
    assert "PYTEST_CURRENT_TEST" not in report["environment"]
    assert report["init"] == "done"
    assert not report["written"]
    assert {"home", "opt", "srv"}.isdisjoint(report["root"])
    files = report["files"]
    assert files["/etc/app/several/deep/k"] == "v"
    assert claims(files["/etc/app/several/token"])["aud"] == ["fleetbus"]
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert files[f"{account}/namespace"] == "default"
    assert claims(files[f"{account}/token"])["sub"] == "system:serviceaccount:default:default"


@in_isolation
async def test_a_pod_that_is_gone_when_it_is_bound_ends_nothing(tmp_path: Path):
    async with kubelet(tmp_path) as cluster:
        cluster.faults.add(Fail(404), resource="pods", subresource="binding", count=2)
        cluster.create("v1/pods", {"metadata": {"name": "a"}, "spec": SLEEPS}, "default")
        await eventually(lambda: _phase(cluster, "a") == "Running", timedelta(seconds=30))
        cluster.faults.add(Fail(503), resource="pods", verb="delete", count=2)
        cluster.delete("v1/pods", "default", "a")
        await eventually(lambda: cluster.get("v1/pods", "default", "a") is None)


SLEEPS: Object = {
    "serviceAccountName": "default",
    "terminationGracePeriodSeconds": 1,
    "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
    "containers": [{"name": "c", "image": "fleetbus:1", "command": ["sleep", "100"]}],
}


def _phase(cluster: Cluster, name: str) -> str:
    pod = cluster.get("v1/pods", "default", name) or {}
    return pod.get("status", {}).get("phase", "")


def _available(cluster: Cluster) -> bool:
    found = cluster.get("apps/v1/deployments", "default", "app") or {}
    return found.get("status", {}).get("availableReplicas") == 1


def lines(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]
