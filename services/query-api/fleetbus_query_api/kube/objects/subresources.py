"""Subresources that follow from the object: its status, and its scale.

An API server answers a get of `status`, and of most others, with the whole object. `scale` is an
object of its own, which follows from a workload's replicas and selector.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import msgspec

from fleetbus.kube.json_fields import Tree, look, mapping, number
from fleetbus.kube.trees import read_tree
from fleetbus.snapshot import Entry
from fleetbus_proto.resources import is_built_in
from fleetbus_query_api.requests.kube_paths import ResourcePath
from fleetbus_query_api.responses.problem import UnavailableProblem
from fleetbus_query_api.responses.render import body_of
from fleetbus_query_api.tables.cells import count, render_selector
from fleetbus_query_api.tables.column import AGE, Column, column, name_of

SCALE: Final = "scale"
SCALE_VERSION: Final = "autoscaling/v1"
SCALE_KIND: Final = "Scale"
SCALE_COLUMNS: Final = (
    Column("Name", name_of),
    column("Desired", count("spec", "replicas"), type="integer"),
    column("Available", count("status", "replicas"), type="integer"),
    AGE,
)

_STATUS: Final = frozenset({"status"})
_SCALED: Final = frozenset({"status", SCALE})
_SERVED: Final[Mapping[str, Collection[str]]] = {
    "apps/deployments": _SCALED,
    "apps/replicasets": _SCALED,
    "apps/statefulsets": _SCALED,
    "core/replicationcontrollers": _SCALED,
    "core/pods": {"status", "ephemeralcontainers", "resize"},
    "certificates.k8s.io/certificatesigningrequests": {"status", "approval"},
    **dict.fromkeys(
        (
            "admissionregistration.k8s.io/validatingadmissionpolicies",
            "apiextensions.k8s.io/customresourcedefinitions",
            "apiregistration.k8s.io/apiservices",
            "apps/daemonsets",
            "autoscaling/horizontalpodautoscalers",
            "batch/cronjobs",
            "batch/jobs",
            "certificates.k8s.io/podcertificaterequests",
            "core/namespaces",
            "core/nodes",
            "core/persistentvolumeclaims",
            "core/persistentvolumes",
            "core/resourcequotas",
            "core/services",
            "flowcontrol.apiserver.k8s.io/flowschemas",
            "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
            "internal.apiserver.k8s.io/storageversions",
            "networking.k8s.io/ingresses",
            "networking.k8s.io/servicecidrs",
            "policy/poddisruptionbudgets",
            "resource.k8s.io/devicetaintrules",
            "resource.k8s.io/resourceclaims",
            "resource.k8s.io/resourcepoolstatusrequests",
            "scheduling.k8s.io/compositepodgroups",
            "scheduling.k8s.io/podgroups",
            "storage.k8s.io/csinodes",
            "storage.k8s.io/volumeattachments",
            "storagemigration.k8s.io/storageversionmigrations",
        ),
        _STATUS,
    ),
}
"""Those of built-in types that a get answers; in Kubernetes 1.37."""


def is_served(path: ResourcePath) -> bool:
    """Whether a get of the subresource can be answered; for a custom type only its status."""
    others = frozenset[str]() if is_built_in(path.group) else _STATUS
    return path.subresource in _SERVED.get(path.key, others)


def scale_of(entry: Entry) -> Entry:
    """The Scale of a workload.

    Raises:
        UnavailableProblem: the body of the workload is unknown.
    """
    body = body_of(entry)
    workload = read_tree(body) if body else None
    if not isinstance(workload, dict):
        raise UnavailableProblem(
            f"the scale of {entry.name} in cluster {entry.cluster} is unknown: its body is"
            f" {entry.degraded or 'absent'}"
        )
    return entry._replace(body=msgspec.json.encode(_scale(cast("Tree", workload))))


def _scale(workload: Tree) -> dict[str, Any]:
    fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    metadata = mapping(workload, "metadata")
    selector = look(workload, "spec", "selector")
    if workload.get("kind") == "ReplicationController":  # its selector is a map of labels
        selector = {"matchLabels": selector}
    status = {
        "replicas": number(workload, "status", "replicas"),
        "selector": render_selector(selector),
    }
    replicas = number(workload, "spec", "replicas")
    return {
        "kind": SCALE_KIND,
        "apiVersion": SCALE_VERSION,
        "metadata": {name: metadata[name] for name in fields if name in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {name: value for name, value in status.items() if value or name == "replicas"},
    }
