"""Values of the chart that are refused, with a part of the refusal that names the key."""

from __future__ import annotations

from typing import Final

from support.api.rendered_chart import AUDIT, EU1, HUB, NAMESPACE, SHOP, Object

_ALL: Final = "*"
NATS = {"url": "tls://n:4222"}
WRONG: Final[list[tuple[Object, str]]] = [
    ({"watcher": {}}, "watcher"),
    ({"watchers": {"cluster": []}}, "cluster"),
    ({"watchers": {"clusters": [{**EU1, "replica": 2}]}}, "replica"),
    ({"watchers": {"clusters": [{**EU1, "name": "EU_1"}]}}, "/watchers/clusters/0/name"),
    ({"watchers": {"clusters": [{**EU1, "watch": {"resource": []}}]}}, "resource"),
    ({"watchers": {"clusters": [{"replicas": 2}]}}, "missing property 'name'"),
    ({"watchers": {"clusters": [{"name": "eu1"}]}}, "eu1: kubeconfigSecret is missing"),
    ({"watchers": {"clusters": [{"name": "hub"}]}}, "hub: watch.resources is needed"),
    ({"watchers": {"clusters": [EU1, EU1]}}, "two entries have the name eu1"),
    (
        {"watchers": {"clusters": [{**HUB, "watch": {"resources": [_ALL]}}]}},
        "on the hub name resources as v1/pods",
    ),
    ({"distributor": {"impersonate": ["deployer"]}}, "/distributor/impersonate/0"),
    ({"distributor": {"requireServiceAccount": "yes"}}, "/distributor/requireServiceAccount"),
    ({"projector": {"replicas": 0}}, "/projector/replicas"),
    ({"projector": {"replicas": "two"}}, "/projector/replicas"),
    ({"nats": {"embedded": {"replicas": 2}}}, "/nats/embedded/replicas"),
    ({"nats": {"embedded": {"enabled": False}}}, "exactly one of nats.embedded.enabled"),
    ({"nats": {"external": {"url": "nats://n:4222"}}}, "exactly one of nats.embedded.enabled"),
    (
        {"nats": {"embedded": {"enabled": False}, "external": {**NATS, "secrets": {"pool": "p"}}}},
        "nats.external.secretName: it is needed, because watcher-hub has none",
    ),
    (
        {"nats": {"embedded": {"enabled": False}, "external": {**NATS, "secrets": {"poool": "p"}}}},
        "nats.external.secrets.poool: no component has this name",
    ),
    ({"valkey": {"embedded": {"replicas": 3}}}, "replicas"),
    ({"valkey": {"external": {"url": "http://v"}}}, "/valkey/external/url"),
    ({"valkey": {"embedded": {"enabled": False}}}, "exactly one of valkey.embedded.enabled"),
    ({"reconcilers": [{"name": "shop", "modules": ["a"]}]}, "missing property 'controllers'"),
    ({"reconcilers": [{**SHOP, "controllers": ["projector"]}]}, "no names for controllers"),
    (
        {
            "reconcilers": [
                {**SHOP, "rules": [{"apiGroups": [_ALL], "resources": ["pods"], "verbs": ["get"]}]}
            ]
        },
        "/reconcilers/0/rules/0/apiGroups/0",
    ),
    (
        {"externalSubscribers": [{**AUDIT, "subjects": ["fleetbus.>"]}]},
        "/externalSubscribers/0/sub",
    ),
    (
        {"externalSubscribers": [{**AUDIT, "subjects": ["$JS.>"]}]},
        "/externalSubscribers/0/subjects",
    ),
    ({"externalSubscribers": [{**AUDIT, "durable": "projector"}]}, "belongs to somebody else"),
    (
        {"reconcilers": [SHOP], "externalSubscribers": [{**AUDIT, "durable": "shop-a"}]},
        "belongs to somebody else",
    ),
    ({"credentials": {"seed": "short"}}, "/credentials/seed"),
    ({"clusters": {"namespace": NAMESPACE}}, "may not be the namespace of the release"),
    ({"clusters": {"providers": [{"type": "secrets"}]}}, "missing property 'namespace'"),
    ({"queryApi": {"ingress": {"enabled": True, "host": "a.example"}}}, "tlsSecretName"),
    ({"tls": {"secretName": "mine"}}, "secretName"),
    ({"tls": {"issuerRef": {"kind": "Issuer"}}}, "missing property 'name'"),
    ({"queryApi": {"authority": "both"}}, "/queryApi/authority"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"log": {"level": "loud"}}, "/log/level"),
]
