"""Objects whose fields a comparison without types takes for equal, or for different."""

from __future__ import annotations

from typing import Any

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
JAR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "either": {"x-kubernetes-int-or-string": True},
                "open": OPEN,
            },
        }
    },
}


def definition(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "jars.lab.example.org"},
        "spec": {
            "group": "lab.example.org",
            "scope": "Namespaced",
            "preserveUnknownFields": False,
            "names": {"plural": "jars", "singular": "jar", "kind": "Jar", "listKind": "JarList"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def named(name: str = "x", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "default", **metadata}


def texts(value: str) -> list[dict[str, Any]]:
    """Objects with one string in fields where a server takes it for nothing but a string."""
    container = {
        "name": "c",
        "image": "registry.example.com/c:1",
        "args": [value],
        "env": [{"name": "LEVEL", "value": value}],
    }
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    workload = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": pod}
    marks: dict[str, Any] = {"labels": {"version": value or "none"}, "annotations": {"note": value}}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": named(**marks),
            "data": {"RELEASE": value},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named(), "spec": workload},
        {
            "apiVersion": "lab.example.org/v1",
            "kind": "Jar",
            "metadata": named(),
            "spec": {"text": value, "either": value, "open": {"deep": [value, {"in": value}]}},
        },
    ]


PAIRS = ["1.1", "1.10", "1.100", "1", "1.0", "01", "1k", "1000", "1e3", "1Ki", "1024", "", "0"]
ZEROES: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named(creationTimestamp=None),
        "spec": {
            "replicas": 1,
            "paused": False,
            "minReadySeconds": 0,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}, "creationTimestamp": None},
                "spec": {
                    "hostNetwork": False,
                    "nodeName": "",
                    "tolerations": [],
                    "nodeSelector": {},
                    "containers": [
                        {
                            "name": "c",
                            "image": "registry.example.com/c:1",
                            "stdin": False,
                            "workingDir": "",
                            "env": [{"name": "EMPTY", "value": ""}],
                            "ports": [{"containerPort": 80, "hostPort": 0}],
                            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                            "volumeMounts": [
                                {"name": "conf", "mountPath": "/conf", "readOnly": False}
                            ],
                        }
                    ],
                    "volumes": [{"name": "conf", "emptyDir": {}}],
                },
            },
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": named(),
        "spec": {
            "clusterIP": "",
            "publishNotReadyAddresses": False,
            "selector": {"app": "x"},
            "ports": [{"name": "http", "port": 80, "nodePort": 0}],
        },
    },
    definition({"type": "object"}),
]
STORED_ANEW: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": named(),
        "data": {"a": "YQ==", "b": "", "c": None},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": named(),
        "spec": {"podSelector": {}, "ingress": [{}], "egress": [], "policyTypes": ["Egress"]},
    },
]
"""A server stores these anew with each apply, though nothing in them changes."""
