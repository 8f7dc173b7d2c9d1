"""Pods as API servers send them, for servers that answer from memory."""

from __future__ import annotations

import json
from typing import Any


def _container(name: str) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    return {
        "name": name,
        "image": f"registry.example.com/team/{name}:1.2.3",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{n}", "value": "some value"} for n in range(8)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(3)],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True},
    }


def _template() -> bytes:
    """About 5.7 KB, as an API server sends it, managedFields and all."""
    fields: dict[str, Any] = {f"f:field-{n}": {".": {}, "f:name": {}} for n in range(55)}
    managed = {"manager": "kubelet", "operation": "Update", "fieldsV1": fields}
    names = ("main", "sidecar")
    spec: dict[str, Any] = {
        "containers": [_container(name) for name in names],
        "nodeName": "node-7",
        "tolerations": [{"key": f"key-{n}", "operator": "Exists"} for n in range(3)],
        "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(3)],
    }
    status: dict[str, Any] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": name,
                "ready": True,
                "restartCount": 0,
                "image": "i",
                "imageID": "sha256:0",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for name in names
        ],
    }
    metadata: dict[str, Any] = {
        "name": "NAME",
        "namespace": "ns",
        "uid": "UID",
        "resourceVersion": "VERSION",
        "labels": {"app": "app"},
        "annotations": {"example.com/note": "x" * 200},
        "managedFields": [managed],
    }
    pod: dict[str, Any] = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
    return json.dumps(pod, separators=(",", ":")).encode()


_HEAD, _UID_AND_REST = _template().split(b"NAME")
_TO_UID, _VERSION_AND_REST = _UID_AND_REST.split(b"UID")
_TO_VERSION, _TAIL = _VERSION_AND_REST.split(b"VERSION")


def pod(index: int, version: int) -> bytes:
    """One pod; its uid follows from the index."""
    parts = (_HEAD, b"pod-%d" % index, _TO_UID, b"uid-%d" % index, _TO_VERSION, b"%d" % version)
    return b"".join((*parts, _TAIL))
