"""Objects with one value that no API server can read, and the words in which it says so.

The schema of server-side apply accepts these values; only Go refuses them, without their field.
"""

from __future__ import annotations

from typing import Any

_QUANTITY = "quantities must match the regular expression"
_BASE64 = "error decoding from json: illegal base64 data at input byte 2"
_POD = {"containers": [{"name": "c", "image": "i"}]}


def _object(api_version: str, kind: str, **parts: Any) -> dict[str, Any]:
    metadata = {"name": "w", "namespace": "default", "labels": {"a": "b"}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


def _deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
    fixed = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    return _object("apps/v1", "Deployment", spec={**fixed, **spec})


def _pod(**container: Any) -> dict[str, Any]:
    first = {"name": "first", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    return _object(
        "v1", "Pod", spec={"containers": [first, {"name": "c", "image": "i"} | container]}
    )


_LIMITS = ".spec.containers[1].resources.limits"
UNREADABLE: list[tuple[dict[str, Any], str, str]] = [
    (_deployment(replicas=1.5), ".spec.replicas", "cannot convert float64 to int32"),
    (
        _deployment(strategy={"rollingUpdate": {"maxUnavailable": 1, "maxSurge": True}}),
        ".spec.strategy.rollingUpdate.maxSurge",
        "json: cannot unmarshal bool into Go value of type int32",
    ),
    (_pod(resources={"limits": {"cpu": "two"}}), f"{_LIMITS}.cpu", _QUANTITY),
    (_pod(resources={"limits": {"cpu": 1, "memory": True}}), f"{_LIMITS}.memory", _QUANTITY),
    (
        _pod(livenessProbe={"httpGet": {"path": "/", "port": False}}),
        ".spec.containers[1].livenessProbe.httpGet.port",
        "json: cannot unmarshal bool into Go value of type int32",
    ),
    (
        _pod(ports=[{"containerPort": 80}, {"containerPort": 1.5}, {"containerPort": 81}]),
        ".spec.containers[1].ports[1]",
        "cannot convert float64 to int32",
    ),
    (
        _pod(livenessProbe={"grpc": {"port": 80}}, ports=[{"containerPort": 1.5}]),
        ".spec.containers[1].ports[0]",
        "cannot convert float64 to int32",
    ),
    (
        _object("v1", "Pod", spec={**_POD, "securityContext": {"supplementalGroups": [1, 2.5, 3]}}),
        ".spec.securityContext.supplementalGroups[1]",
        "cannot convert float64 to int64",
    ),
    (_object("v1", "Secret", data={"a": "YQ==", "k.v": "no base!"}), ".data.k.v", _BASE64),
    (_object("v1", "ConfigMap", binaryData={"a": "no base!"}), ".binaryData.a", _BASE64),
    (
        _object("coordination.k8s.io/v1", "Lease", spec={"renewTime": "now"}),
        ".spec.renewTime",
        'parsing time "now" as "2006-01-02T15:04:05.000000Z07:00": cannot parse',
    ),
    (
        _object(
            "coordination.k8s.io/v1", "Lease", spec={"leaseDurationSeconds": 1, "renewTime": 5}
        ),
        ".spec.renewTime",
        "json: cannot unmarshal number into Go value of type string",
    ),
    (
        _object(
            "v1",
            "PersistentVolumeClaim",
            spec={
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1 Gi"}},
            },
        ),
        ".spec.resources.requests.storage",
        _QUANTITY,
    ),
    (
        _object(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            spec={
                "maxReplicas": 3,
                "scaleTargetRef": {"kind": "Deployment", "name": "x"},
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {
                            "name": "cpu",
                            "target": {"type": "AverageValue", "averageValue": "much"},
                        },
                    }
                ],
            },
        ),
        ".spec.metrics[0].resource.target.averageValue",
        _QUANTITY,
    ),
]
"""Object, field, the end of the server's message."""
