"""The chart as helm renders it, and the values that tests try."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
import yaml

CHART: Final = pathlib.Path(__file__).parents[3] / "charts" / "fleetbus"
NAMESPACE: Final = "fleetbus"
SEED: Final = "s" * 40
Object = dict[str, Any]

SHOP: Final[Object] = {
    "name": "shop",
    "image": {"repository": "registry.example.com/shop", "tag": "1"},
    "modules": ["shop.controllers"],
    "controllers": ["shop", "shop-stock"],
    "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
}
AUDIT: Final[Object] = {"name": "audit", "subjects": ["fleetbus.events.eu1.>"]}
PAGER: Final[Object] = {"name": "pager", "subjects": ["fleetbus.distribution.shop.>"]}
EU1: Final[Object] = {"name": "eu1", "kubeconfigSecret": {"name": "eu1-watcher"}}
HUB: Final[Object] = {
    "name": "hub",
    "watch": {"resources": ["v1/pods", {"resource": "apps/v1/deployments", "namespaces": ["a"]}]},
}
SCALED: Final[Object] = {"enabled": True, "minReplicas": 1, "maxReplicas": 4, "queueDepth": 100}
_EXTERNAL: Final[Object] = {
    "nats": {
        "embedded": {"enabled": False},
        "external": {
            "url": "tls://nats.example.com:4222",
            "secretName": "nats-login",
            "authentication": "creds",
            "tls": {"ca": True, "clientCertificate": True},
        },
    },
    "valkey": {
        "embedded": {"enabled": False},
        "external": {
            "url": "rediss+sentinel://s1:26379,s2:26379/main/0",
            "secretName": "valkey-login",
            "sentinelAuthentication": True,
            "tls": {"ca": True},
        },
    },
}
VALUES: Final[dict[str, Object]] = {
    "defaults": {},
    "everything": {
        "credentials": {"seed": SEED},
        "watchers": {"clusters": [HUB, EU1, {**EU1, "name": "us1"}]},
        "reconcilers": [
            {**SHOP, "autoscaling": SCALED},
            {
                **SHOP,
                "name": "mail",
                "controllers": ["mail"],
                "autoscaling": {**SCALED, "type": "keda", "prometheus": "http://prometheus:9090"},
            },
        ],
        "rolloutVoters": [{"name": "ci", "subjects": ["fleetbus.votes.shop.>"]}],
        "externalSubscribers": [AUDIT, {**AUDIT, "name": "other", "durable": "mine"}, PAGER],
        "archiver": {
            "enabled": True,
            "url": "s3://events/fleet",
            "endpoint": "https://minio.example.com:9000",
            "credentialsSecret": "archive-login",
            "caSecret": "archive-ca",
            "keep": "30d",
        },
        "queryApi": {
            "tls": {"secretName": "api-tls"},
            "ingress": {"enabled": True, "host": "f.example.com", "tlsSecretName": "f-tls"},
        },
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
    },
    "one process": {"projector": {"reconciler": "shop"}, "reconcilers": [SHOP]},
    "high availability": {"ha": True, "reconcilers": [SHOP]},
    "three servers, certificates of yours": {
        "nats": {"embedded": {"replicas": 3, "tls": {"secretName": "nats-tls"}}},
        "valkey": {"embedded": {"replicas": 3, "tls": {"secretName": "valkey-tls"}}},
        "pods": {"topologySpreadRequired": True},
    },
    "external": _EXTERNAL,
    "members decide": {"queryApi": {"authority": "member"}},
    "members with agents": {
        "agents": {"enabled": True, "url": "tls://nats.example.com:4222", "approval": True}
    },
    "archive on a volume": {"archiver": {"enabled": True, "persistence": {"enabled": True}}},
    "no hub, no pool": {
        "hub": {"cluster": ""},
        "watchers": {"clusters": [EU1], "pool": {"enabled": False}},
        "distributor": {"enabled": False},
        "queryApi": {"enabled": False},
        "crds": {"install": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudgets": {"enabled": False},
        "tests": {"enabled": False},
        "clusters": {"createNamespace": False},
    },
    **{
        f"examples/{path.name}": yaml.load(path.read_text(), yaml.CSafeLoader)
        for path in sorted((CHART / "examples").glob("*.yaml"))
    },
}
"""The combinations that matter, by name."""


def helm() -> Any:
    """The helm library; the test is skipped where there is none."""
    reason = "helm-python-sdk, which `make install` brings on linux x86_64 only, is missing"
    return pytest.importorskip("helm_python", reason=reason)


def render(values: Object, *, name: str = "fb") -> list[Object]:
    """The objects that helm renders, new for each caller."""
    return json.loads(_render(json.dumps(values), name))


def render_files(values: Object, *, name: str = "fb") -> dict[str, str]:
    """Render the chart: the texts by path, NOTES included."""
    return dict(_files(json.dumps(values), name))


@functools.cache
def _files(values: str, name: str) -> dict[str, str]:
    return render_anew(json.loads(values), name)


def render_anew(values: Object, name: str = "fb") -> dict[str, str]:
    """The texts of the templates by path, as another call of helm makes them."""
    with helm().Chart.load(str(CHART)) as chart:
        return chart.render(values, name=name, namespace=NAMESPACE)


@functools.cache
def _render(values: str, name: str) -> str:
    files = _files(values, name)
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return json.dumps(
        [one for text in texts for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    )


def find(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """The objects of these kinds."""
    return [one for one in objects if one["kind"] in kinds]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Kind and name of whatever makes pods, with their spec."""
    for one in of_kind(objects, "Deployment", "StatefulSet"):
        yield f"{one['kind']} {one['metadata']['name']}", one["spec"]["template"]["spec"]
    for one in of_kind(objects, "Pod"):
        yield f"Pod {one['metadata']['name']}", one["spec"]


def secret(objects: list[Object], name: str) -> dict[str, str]:
    """The texts of a Secret."""
    return cast("dict[str, str]", find(objects, "Secret", name)["stringData"])
