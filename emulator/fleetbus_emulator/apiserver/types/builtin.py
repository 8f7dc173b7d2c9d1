"""The built-in types that are served, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetbus_emulator.apiserver.types import conversions
from fleetbus_emulator.apiserver.types.conversions import Conversion
from fleetbus_emulator.apiserver.types.resource import ResourceType, TypeVersion

STATUS = frozenset({"status"})
WORKLOAD = frozenset({"status", "scale"})
POD = frozenset({"status", "binding", "eviction", "log", "attach", "exec", "portforward"})


NO_OTHERS: Mapping[str, Conversion] = {}


def _type(
    group: str,
    plural: str,
    kind: str,
    *,
    version: str = "v1",
    others: Mapping[str, Conversion] = NO_OTHERS,
    conversion: Conversion | None = None,
    short: tuple[str, ...] = (),
    sub: frozenset[str] = frozenset(),
    **more: Any,
) -> ResourceType:
    """A type: its stored version, and others that are served by converting it."""
    versions = {
        name: TypeVersion(name, subresources=sub, conversion=converted)
        for name, converted in {version: conversion, **others}.items()
    }
    return ResourceType(
        group=group,
        plural=plural,
        kind=kind,
        versions=versions,
        singular=kind.lower(),
        list_kind=f"{kind}List",
        short_names=short,
        store=more.pop("store", (group, plural)),
        **more,
    )


NAMESPACES = _type(
    "",
    "namespaces",
    "Namespace",
    short=("ns",),
    sub=frozenset({"status", "finalize"}),
    namespaced=False,
    deletes_collection=False,
)
SERVICES = _type(
    "",
    "services",
    "Service",
    short=("svc",),
    sub=STATUS,
    categories=("all",),
    create_on_update=True,
)
PODS = _type(
    "",
    "pods",
    "Pod",
    short=("po",),
    sub=POD,
    categories=("all",),
    has_generation=True,
    answers_object=True,
)
CRDS = _type(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    short=("crd", "crds"),
    sub=STATUS,
    namespaced=False,
    has_generation=True,
    unconditional_update=False,
    categories=("api-extensions",),
)
PRIORITY_CLASSES = _type(
    "scheduling.k8s.io",
    "priorityclasses",
    "PriorityClass",
    short=("pc",),
    namespaced=False,
    has_generation=True,
)

CORE = [
    NAMESPACES,
    PODS,
    SERVICES,
    _type("", "configmaps", "ConfigMap", short=("cm",)),
    _type("", "secrets", "Secret"),
    _type("", "nodes", "Node", short=("no",), sub=STATUS, namespaced=False),
    _type("", "events", "Event", short=("ev",), create_on_update=True),
    _type(
        "",
        "serviceaccounts",
        "ServiceAccount",
        short=("sa",),
        sub=frozenset({"token"}),
        answers_object=True,
    ),
    _type("", "endpoints", "Endpoints", short=("ep",), create_on_update=True),
    _type("", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), sub=STATUS),
    _type("", "persistentvolumes", "PersistentVolume", short=("pv",), sub=STATUS, namespaced=False),
    _type(
        "",
        "replicationcontrollers",
        "ReplicationController",
        short=("rc",),
        sub=WORKLOAD,
        has_generation=True,
        categories=("all",),
    ),
    _type("", "podtemplates", "PodTemplate"),
    _type("", "limitranges", "LimitRange", short=("limits",), create_on_update=True),
    _type("", "resourcequotas", "ResourceQuota", short=("quota",), sub=STATUS),
]

APPS = [
    _type(
        "apps",
        plural,
        kind,
        short=(short,) if short else (),
        sub=sub,
        has_generation=True,
        categories=("all",) if short else (),
    )
    for plural, kind, short, sub in (
        ("deployments", "Deployment", "deploy", WORKLOAD),
        ("replicasets", "ReplicaSet", "rs", WORKLOAD),
        ("statefulsets", "StatefulSet", "sts", WORKLOAD),
        ("daemonsets", "DaemonSet", "ds", STATUS),
    )
] + [_type("apps", "controllerrevisions", "ControllerRevision")]

BATCH = [
    _type("batch", "jobs", "Job", sub=STATUS, has_generation=True, categories=("all",)),
    _type(
        "batch",
        "cronjobs",
        "CronJob",
        short=("cj",),
        sub=STATUS,
        has_generation=True,
        categories=("all",),
    ),
]

RBAC = [
    _type("rbac.authorization.k8s.io", plural, kind, namespaced=namespaced, create_on_update=True)
    for plural, kind, namespaced in (
        ("roles", "Role", True),
        ("rolebindings", "RoleBinding", True),
        ("clusterroles", "ClusterRole", False),
        ("clusterrolebindings", "ClusterRoleBinding", False),
    )
]

NETWORKING = [
    _type(
        "networking.k8s.io", "ingresses", "Ingress", short=("ing",), sub=STATUS, has_generation=True
    ),
    _type(
        "networking.k8s.io",
        "networkpolicies",
        "NetworkPolicy",
        short=("netpol",),
        has_generation=True,
    ),
    _type(
        "networking.k8s.io", "ingressclasses", "IngressClass", namespaced=False, has_generation=True
    ),
]

OTHERS = [
    CRDS,
    _type(
        "coordination.k8s.io",
        "leases",
        "Lease",
        create_on_update=True,
        unconditional_update=False,
    ),
    _type(
        "policy",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        short=("pdb",),
        unconditional_update=False,
        sub=STATUS,
        has_generation=True,
    ),
    _type(
        "autoscaling",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        version="v2",
        others={"v1": conversions.AUTOSCALERS},
        short=("hpa",),
        sub=STATUS,
        categories=("all",),
    ),
    _type("storage.k8s.io", "storageclasses", "StorageClass", short=("sc",), namespaced=False),
    PRIORITY_CLASSES,
    _type("node.k8s.io", "runtimeclasses", "RuntimeClass", namespaced=False),
    _type("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    _type(
        "events.k8s.io",
        "events",
        "Event",
        short=("ev",),
        store=("", "events"),
        conversion=conversions.EVENTS,
        create_on_update=True,
    ),
]

BUILTIN_TYPES: tuple[ResourceType, ...] = tuple(CORE + APPS + BATCH + RBAC + NETWORKING + OTHERS)
