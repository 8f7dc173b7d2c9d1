"""Pods as a busy cluster has them: 5 to 8 KB each without managedFields, no two alike.

What varies follows from the index, so that every run has the same pods: twenty namespaces in each
cluster, one application for a hundred pods, a hundred nodes, and one pod in twenty that does not
run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

PER_APP: Final = 100
"""Pods of one application, which have the label `app.kubernetes.io/name=app-<number>`."""
NAMESPACES: Final = 20
_NODES: Final = 100
_BORN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SIDECARS: Final = ("istio-proxy", "log-shipper")


def namespace_of(index: int) -> str:
    """The namespace of a pod."""
    return f"team-{index // PER_APP % NAMESPACES}"


def name_of(index: int) -> str:
    """The name of a pod: that of its ReplicaSet and five letters."""
    letters = "bcdfghjklmnpqrstvwxz2456789"
    number, suffix = index * 7919 + 104729, ""
    for _ in range(5):
        number, at = divmod(number, len(letters))
        suffix += letters[at]
    return f"{_replica_set(index)}-{suffix}"


def _app(index: int) -> str:
    return f"app-{index // PER_APP}"


def _replica_set(index: int) -> str:
    return f"{_app(index)}-{index // PER_APP * 2654435761 % 2**32:010x}"


def _uid(index: int, kind: int = 0) -> str:
    return f"{index * 2654435761 % 2**32:08x}-{kind:04x}-4a5b-8c6d-{index:012x}"


def _at(index: int, seconds: int = 0) -> str:
    """Within ninety days, one at a time."""
    offset = timedelta(seconds=index * 7919 % 7_776_000 + seconds)
    return (_BORN + offset).strftime("%Y-%m-%dT%H:%M:%SZ")


def _image(name: str, index: int) -> str:
    return f"registry.example.com/platform/{name}:v1.{index // PER_APP % 40}.{index % 7}"


def _env(name: str, index: int, count: int) -> list[dict[str, Any]]:
    plain = [
        {
            "name": f"{name.upper().replace('-', '_')}_SETTING_{n}",
            "value": f"value-{index % 97}-{n}",
        }
        for n in range(count)
    ]
    pod_name = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
    password = {"secretKeyRef": {"name": f"{name}-credentials", "key": "password"}}
    return [
        *plain,
        {"name": "POD_NAME", "valueFrom": pod_name},
        {"name": "DATABASE_PASSWORD", "valueFrom": password},
    ]


def _probe(path: str) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "initialDelaySeconds": 5,
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def _container(name: str, index: int, *, settings: int) -> dict[str, Any]:
    return {
        "name": name,
        "image": _image(name, index),
        "args": ["serve", f"--instance={index}", "--log-format=json"],
        "ports": [
            {"name": "http", "containerPort": 8080, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 9090, "protocol": "TCP"},
        ],
        "env": _env(name, index, settings),
        "resources": {
            "limits": {"cpu": "1", "memory": f"{256 * (1 + index // PER_APP % 8)}Mi"},
            "requests": {"cpu": f"{50 * (1 + index // PER_APP % 10)}m", "memory": "128Mi"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app", "readOnly": True},
            {"name": "scratch", "mountPath": "/var/scratch"},
            {
                "name": "kube-api-access",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
        },
    }


def _containers(index: int) -> list[dict[str, Any]]:
    """One application container, and one or two beside it."""
    beside = _SIDECARS[: 1 + (index // PER_APP % 3 == 0)]
    settings = 4 + index // PER_APP % 8
    return [
        {
            **_container(_app(index), index, settings=settings),
            "livenessProbe": _probe("/healthz"),
            "readinessProbe": _probe("/readyz"),
        },
        *(_container(name, index, settings=2) for name in beside),
    ]


def _volumes(index: int) -> list[dict[str, Any]]:
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    ca = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return [
        {"name": "config", "configMap": {"name": f"{_app(index)}-config", "defaultMode": 420}},
        {"name": "scratch", "emptyDir": {}},
        {
            "name": "kube-api-access",
            "projected": {"sources": [token, {"configMap": ca}], "defaultMode": 420},
        },
    ]


def _spec(index: int) -> dict[str, Any]:
    absent = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "volumes": _volumes(index),
        "containers": _containers(index),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": _app(index),
        "serviceAccount": _app(index),
        "nodeName": f"node-{index * 31 % _NODES}",
        "securityContext": {"fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {
                                "matchLabels": {"app.kubernetes.io/name": _app(index)}
                            },
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            }
        },
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", **absent},
            {"key": "node.kubernetes.io/unreachable", **absent},
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def is_running(index: int) -> bool:
    """Nineteen in twenty run; of the others half wait for a node, and half crash."""
    return index % 20 != 13


def _status(index: int, containers: list[dict[str, Any]]) -> dict[str, Any]:
    if index % 40 == 13:
        unschedulable = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": _at(index, 1),
            "reason": "Unschedulable",
            "message": "0/100 nodes are available: 100 Insufficient memory.",
        }
        return {"phase": "Pending", "conditions": [unschedulable], "qosClass": "Burstable"}
    ready = is_running(index)
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [
            {
                "type": kind,
                "status": "True" if ready or "Ready" not in kind else "False",
                "lastProbeTime": None,
                "lastTransitionTime": _at(index, 4),
            }
            for kind in kinds
        ],
        "hostIP": f"10.0.{index * 31 % _NODES}.1",
        "hostIPs": [{"ip": f"10.0.{index * 31 % _NODES}.1"}],
        "podIP": f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}",
        "podIPs": [{"ip": f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"}],
        "startTime": _at(index, 2),
        "containerStatuses": [
            _container_status(index, container["name"], ready=ready) for container in containers
        ],
        "qosClass": "Burstable",
    }


def _container_status(index: int, name: str, *, ready: bool) -> dict[str, Any]:
    waiting = {
        "waiting": {
            "reason": "CrashLoopBackOff",
            "message": f"back-off 5m0s restarting failed container={name}",
        }
    }
    return {
        "name": name,
        "state": {"running": {"startedAt": _at(index, 3)}} if ready else waiting,
        "lastState": {},
        "ready": ready,
        "restartCount": index % 3 if ready else index % 500,
        "image": _image(name, index),
        "imageID": f"registry.example.com/platform/{name}@sha256:{index // PER_APP:064x}",
        "containerID": f"containerd://{index:064x}",
        "started": ready,
    }


def make_pod(index: int) -> dict[str, Any]:
    """One pod, as an API server serves it after the watcher's transform."""
    spec = _spec(index)
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name_of(index),
            "generateName": f"{_replica_set(index)}-",
            "namespace": namespace_of(index),
            "uid": _uid(index),
            "resourceVersion": str(1_000_000 + index),
            "creationTimestamp": _at(index),
            "labels": {
                "app.kubernetes.io/name": _app(index),
                "app.kubernetes.io/part-of": f"product-{index // PER_APP % 12}",
                "app.kubernetes.io/version": f"v1.{index // PER_APP % 40}.0",
                "pod-template-hash": _replica_set(index).rpartition("-")[2],
                "team": namespace_of(index),
            },
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "9090",
                "checksum/config": f"{index // PER_APP:064x}",
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": _replica_set(index),
                    "uid": _uid(index // PER_APP, 1),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
        "status": _status(index, spec["containers"]),
    }
