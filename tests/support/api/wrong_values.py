"""Values of the chart that are refused, with a part of the refusal that names the key."""

from __future__ import annotations

from typing import Final

from support.api.rendered_chart import AUDIT, EU1, HUB, NAMESPACE, PAGER, SCALED, SHOP, Object

_ALL: Final = "*"


def _watch(**watch: object) -> Object:
    return {"watchers": {"clusters": [EU1, {**EU1, "name": "us1", "watch": watch}]}}


def _rule(**changed: object) -> Object:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], **changed}
    return {"reconcilers": [{**SHOP, "rules": [rule]}]}


def _reconciler(**changed: object) -> Object:
    return {"reconcilers": [{**SHOP, **changed}]}


NATS = {"url": "tls://n:4222"}
WRONG: Final[list[tuple[Object, str]]] = [
    ({"watcher": {}}, "watcher"),
    ({"enabled": False}, "enabled: false has no effect here"),
    ({"pods": {"securityContext": {"runAsUser": 0}}}, "/pods/securityContext/runAsUser"),
    ({"pods": {"securityContext": {"fsGroup": "1000"}}}, "/pods/securityContext/fsGroup"),
    ({"pods": {"securityContext": {"privileged": True}}}, "privileged"),
    ({"networkPolicy": {"dnsPorts": []}}, "/networkPolicy/dnsPorts"),
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
    ({"projector": {"reconciler": "shop"}}, "there is no entry shop in reconcilers"),
    (
        {"projector": {"reconciler": "shop"}, "reconcilers": [{**SHOP, "replicas": 3}]},
        "reconcilers: shop: replicas: its controllers run in the pods of the projector",
    ),
    ({"ha": "yes"}, "/ha"),
    ({"nats": {"embedded": {"replicas": 2}}}, "/nats/embedded/replicas"),
    ({"valkey": {"embedded": {"replicas": 2}}}, "/valkey/embedded/replicas"),
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
    ({"valkey": {"external": {"url": "http://v"}}}, "/valkey/external/url"),
    ({"valkey": {"embedded": {"enabled": False}}}, "exactly one of valkey.embedded.enabled"),
    ({"reconcilers": [{"name": "shop", "modules": ["a"]}]}, "missing property 'controllers'"),
    ({"reconcilers": [{**SHOP, "controllers": ["projector"]}]}, "no names for controllers"),
    (_rule(apiGroups=[_ALL]), "/reconcilers/0/rules/0/apiGroups/0"),
    (_rule(apiGroups=["apps/v1"]), "/reconcilers/0/rules/0/apiGroups/0"),
    (_rule(resources=["Pods"]), "/reconcilers/0/rules/0/resources/0"),
    (_rule(verbs=["gett"]), "/reconcilers/0/rules/0/verbs/0': value must be one of 'get', 'list'"),
    (_rule(resource=["pods"]), "additional properties 'resource' not allowed"),
    (_rule(resourceNames=[""]), "/reconcilers/0/rules/0/resourceNames/0"),
    (_reconciler(modules=["shop controllers"]), "/reconcilers/0/modules/0"),
    (_reconciler(modules=["shop/controllers"]), "'shop/controllers' does not match"),
    (_reconciler(module=["shop"]), "additional properties 'module' not allowed"),
    (_reconciler(env={"A": 5}), "/reconcilers/0/env/A': got number, want string or object"),
    (_reconciler(env={"a-b": "c"}), "/reconcilers/0/env': additional properties 'a-b' not allowe"),
    (_reconciler(env={"A": {"secretRef": {"name": "a"}}}), "'secretRef' not allowed"),
    (_reconciler(resources={"limits": {"memroy": "1Gi"}}), "'memroy' not allowed"),
    (_reconciler(resources={"limits": {"memory": "1gb"}}), "/resources/limits/memory"),
    (_reconciler(tolerations=[{"operater": "Exists"}]), "'operater' not allowed"),
    (_reconciler(affinity={"podAntiAfinity": {}}), "'podAntiAfinity' not allowed"),
    (_reconciler(nodeSelector={"disk": True}), "/reconcilers/0/nodeSelector/disk"),
    (
        _reconciler(autoscaling={**SCALED, "minReplicas": 9}),
        "reconcilers[0].autoscaling: maxReplicas is 4, which is less than minReplicas, 9",
    ),
    (
        _watch(resources=["v1/pods", "apps/deployments"]),
        'watchers.clusters[1].watch.resources[1]: "apps/deployments" is not a resource: write',
    ),
    (_watch(resources=["Pods"]), 'watch.resources[0]: "Pods" is not a resource'),
    (_watch(resources=[{"resource": "pods/v1"}]), 'watch.resources[0]: "pods/v1" is not a reso'),
    (
        _watch(resources=[{"resource": _ALL, "namespaces": ["shop"]}]),
        "watch.resources[0]: * cannot be narrowed; name the resources, each with its own namespac",
    ),
    (_watch(resources=[{"resource": "v1/pods", "namespace": "a"}]), "'namespace' not allowed"),
    (_watch(resources=[{"resource": "v1/pods", "namespaces": ["A"]}]), "/resources/0/namespaces/0"),
    (_watch(resources=[5]), "/watch/resources/0': got number, want string or object"),
    (_watch(deny=["v1/events"]), 'watch.deny[0]: "v1/events" is not a resource: write group/pl'),
    (_watch(transforms=[{"resource": "core/pods", "dorp": ["spec"]}]), "'dorp' not allowed"),
    (_watch(transforms=[{"resource": "v1 pods"}]), "/watch/transforms/0/resource"),
    (
        {"watchers": {"pool": {"watch": {"resources": ["apps/deployments"]}}}},
        "watchers.pool.watch.resources[0]",
    ),
    (
        {"nats": {"streamBytes": 8 << 30}},
        "nats.embedded.storage.size: 8Gi is too small: nats.streamBytes (8589934592)",
    ),
    (
        {"valkey": {"embedded": {"maxMemory": 3 << 30, "storage": {"size": "16Gi"}}}},
        "valkey.embedded.maxMemory: 3221225472 is too much for valkey.embedded.resources.limits",
    ),
    (
        {"valkey": {"embedded": {"storage": {"size": "3000Mi"}}}},
        "valkey.embedded.storage.size: 3000Mi is too small for valkey.embedded.maxMemory",
    ),
    ({"nats": {"embedded": {"allowFrom": [{"podSelektor": {}}]}}}, "'podSelektor' not allowed"),
    (
        {"agents": {"enabled": True, "service": {"type": "NodePort"}}, "tls": {"enabled": False}},
        "agents.service.type: NATS may be reached from outside of this cluster with TLS only",
    ),
    (
        {
            "agents": {"enabled": True, "service": {"type": "LoadBalancer"}},
            "nats": {
                "embedded": {"enabled": False},
                "external": {"url": "tls://n:4222", "secretName": "s"},
            },
        },
        "agents.service.type: it is for the embedded NATS",
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
        {"reconcilers": [SHOP], "externalSubscribers": [{**AUDIT, "durable": "shop-1"}]},
        "belongs to somebody else",
    ),
    (
        {"externalSubscribers": [{**AUDIT, "subjects": [*AUDIT["subjects"], *PAGER["subjects"]]}]},
        "another stream than the other subjects",
    ),
    (
        {"externalSubscribers": [{**PAGER, "subjects": ["fleetbus.votes.>"]}]},
        "/externalSubscribers/0/subjects",
    ),
    ({"credentials": {"seed": "short"}}, "/credentials/seed"),
    ({"clusters": {"namespace": NAMESPACE}}, "may not be the namespace of the release"),
    ({"clusters": {"providers": [{"type": "secrets"}]}}, "missing property 'namespace'"),
    (
        {"clusters": {"providers": [{"type": "secrets", "namespace": "a", "labels": ["b"]}]}},
        "/clusters/providers/0/labels/0': value must be one of 'fleetbus.dev/kubeconfig'",
    ),
    ({"queryApi": {"ingress": {"enabled": True, "host": "a.example"}}}, "tlsSecretName"),
    ({"tls": {"secretName": "mine"}}, "secretName"),
    ({"tls": {"issuerRef": {"kind": "Issuer"}}}, "missing property 'name'"),
    ({"queryApi": {"authority": "both"}}, "/queryApi/authority"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"log": {"level": "loud"}}, "/log/level"),
]
