"""Calls to an emulated cluster without sockets, for tests of the API server itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import orjson

from fleetbus_emulator.apiserver import Cluster, Request, Response, Watch

JsonObject = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@dataclass(frozen=True)
class Reply:
    status: int
    document: Any
    headers: dict[str, str]
    content_type: str

    @property
    def meta(self) -> JsonObject:
        return self.document["metadata"]

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.document["items"]]

    @property
    def rv(self) -> str:
        return self.meta["resourceVersion"]

    @property
    def message(self) -> str:
        return self.document["message"]


class Calls:
    """Sends requests to one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def request(self, method: str, path: str, body: Any = None, **options: str) -> Response | Watch:
        headers = {"user-agent": options.pop("agent", "pytest/1.0")}
        for option, header in (
            ("content", "content-type"),
            ("accept", "accept"),
            ("if_none_match", "if-none-match"),
        ):
            if option in options:
                headers[header] = options.pop(option)
        if "bearer" in options:
            headers["authorization"] = f"Bearer {options.pop('bearer')}"
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        query = {name.rstrip("_"): value for name, value in options.items()}
        request = Request(method, path, query, headers, data)
        return self.cluster.handle(request, self.cluster.match_faults(request))

    def call(self, method: str, path: str, body: Any = None, **options: str) -> Reply:
        answer = self.request(method, path, body, **options)
        assert isinstance(answer, Response), "expected no watch"
        json = answer.content_type.startswith("application/json")
        document = orjson.loads(answer.body) if json else answer.body.decode()
        return Reply(answer.status, document, answer.headers, answer.content_type)

    def get(self, path: str, **options: str) -> Reply:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("PUT", path, body, **options)

    def delete(self, path: str, body: Any = None, **options: str) -> Reply:
        return self.call("DELETE", path, body, **options)

    def merge(self, path: str, body: Any, **options: str) -> Reply:
        return self.call("PATCH", path, body, content=MERGE, **options)

    def apply(self, path: str, body: Any, manager: str, **options: str) -> Reply:
        return self.call("PATCH", path, body, content=APPLY, fieldManager=manager, **options)

    def watch(self, path: str, **options: str) -> Watch:
        answer = self.request("GET", path, watch="1", **options)
        assert isinstance(answer, Watch), "expected a watch"
        return answer


def events(watch: Watch) -> list[JsonObject]:
    """The events that the watch has now."""
    return [orjson.loads(line) for line in watch.read().splitlines()]


def changes(watch: Watch) -> list[str]:
    """The events that the watch has now, as TYPE:name."""
    return [f"{e['type']}:{e['object']['metadata'].get('name')}" for e in events(watch)]


def config_map(name: str, metadata: JsonObject | None = None, **data: str) -> JsonObject:
    return {"metadata": {"name": name, **(metadata or {})}, "data": data}


def deployment(name: str, **spec: Any) -> JsonObject:
    labels = {"app": name}
    pod = {"containers": [{"name": "c", "image": "nginx:1"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def widget(name: str, metadata: JsonObject | None = None, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"size": 3, **spec},
    }


_NAMED = {"type": "object", "required": ["name"]}
_NAMED_PROPERTIES = {"name": {"type": "string"}, "value": {"type": "string"}}
_SPEC: JsonObject = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "replicas": {"type": "integer", "default": 3},
        "color": {"type": "string", "enum": ["red", "green"]},
        "port": {"x-kubernetes-int-or-string": True},
        "note": {"type": "string", "nullable": True},
        "items": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {**_NAMED, "properties": _NAMED_PROPERTIES},
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "list": {"type": "array", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
_STATUS: JsonObject = {
    "type": "object",
    "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}},
}


def with_widgets() -> Calls:
    """A cluster of which nothing is random, with the CRD of widgets.example.com."""
    calls = Calls(Cluster("alpha", seed=1))
    calls.post(CRDS, widget_definition())
    return calls


def widget_definition(*more_versions: str) -> JsonObject:
    """The CRD of widgets.example.com."""
    version: JsonObject = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "required": ["spec"],
                "properties": {"spec": _SPEC, "status": _STATUS},
            }
        },
    }
    others = [{**copy.deepcopy(version), "name": v, "storage": False} for v in more_versions]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version, *others],
        },
    }
