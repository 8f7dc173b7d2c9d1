"""Objects that the conformance cases send, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]
SPEC: JsonObject = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "replicas": {"type": "integer", "default": 3},
        "color": {"type": "string", "enum": ["red", "green"]},
        "note": {"type": "string", "nullable": True},
        "port": {"x-kubernetes-int-or-string": True},
        "items": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
            },
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "plain": {"type": "array", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
STATUS: JsonObject = {
    "type": "object",
    "properties": {
        "phase": {"type": "string"},
        "replicas": {"type": "integer"},
        "selector": {"type": "string"},
    },
}


def version(name: str, *, storage: bool = True, served: bool = True) -> JsonObject:
    """A version of widgets, with both subresources."""
    return {
        "name": name,
        "served": served,
        "storage": storage,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "required": ["spec"],
                "properties": {"spec": SPEC, "status": STATUS},
            }
        },
    }


def definition(
    group: str, plural: str, kind: str, *, versions: tuple[str, ...] = ("v1",), **spec: Any
) -> JsonObject:
    """A CustomResourceDefinition; the first of the versions is the stored one."""
    listed = [version(name, storage=name == versions[0]) for name in versions]
    names = {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": listed, **spec},
    }


def config_map(name: str, metadata: JsonObject | None = None, **data: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **(metadata or {})},
        "data": data,
    }


def deployment(name: str, **spec: Any) -> JsonObject:
    """A Deployment of nothing."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.9"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def pod(name: str, metadata: JsonObject | None = None, **spec: Any) -> JsonObject:
    containers = [{"name": "c", "image": "registry.k8s.io/pause:3.9"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


@dataclass(frozen=True)
class Space:
    """The namespace and the API group of one run."""

    namespace: str
    group: str

    @property
    def widgets(self) -> str:
        return f"/apis/{self.group}/v1/namespaces/{self.namespace}/widgets"

    @property
    def betas(self) -> str:
        """The same objects in another version."""
        return self.widgets.replace("/v1/", "/v1beta1/")

    def core(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"

    def apps(self, plural: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/{plural}"

    def widget(self, name: str | None, metadata: dict[str, Any] | None = None, **spec: Any) -> Any:
        named = {"name": name} if name else {}
        return {
            "apiVersion": f"{self.group}/v1",
            "kind": "Widget",
            "metadata": {**named, **(metadata or {})},
            "spec": {"size": 3, **spec},
        }
