"""The objects of Kubernetes that tests create, distribute and reconcile."""

from __future__ import annotations

from typing import Any


def config_map(
    name: str = "m",
    *,
    namespace: str = "default",
    metadata: dict[str, Any] | None = None,
    **data: Any,
) -> dict[str, Any]:
    """A ConfigMap with these data; with `k: v` if there are none."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
        "data": data or {"k": "v"},
    }


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    """A Pod of one container, in no namespace unless the metadata name one."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }


def deployment(
    name: str = "web", image: str = "busybox", *, namespace: str = "default", replicas: int = 1
) -> dict[str, Any]:
    """A Deployment of pods with one container."""
    labels = {"app": name}
    containers = [{"name": "main", "image": image}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
