"""Tells the health of one object from its status; rules of the spec come before those of its kind.

A kind without a rule is healthy as soon as it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fleetbus.kube.json_fields import mapping, string
from fleetbus_distributor.health import conditions, workloads
from fleetbus_distributor.health.fields import Tree
from fleetbus_distributor.health.result import Health, progressing
from fleetbus_distributor.health.rules import HealthRule


def health_of(obj: Mapping[str, Any], rules: Sequence[HealthRule] = ()) -> Health:
    """Tell the health of an object as it was read from its cluster.

    Args:
        obj: the object.
        rules: of the spec; the first one that selects the object decides.
    """
    if mapping(obj, "metadata").get("deletionTimestamp"):
        return progressing("Terminating", "it is being deleted")
    for rule in rules:
        if rule.selects_object(obj):
            return rule.evaluate(obj)
    group = string(obj, "apiVersion").rpartition("/")[0]
    evaluate = KINDS.get((group, string(obj, "kind")), conditions.by_conditions)
    return evaluate(obj, mapping(obj, "status"))


KINDS: Final[dict[tuple[str, str], Callable[[Tree, Tree], Health]]] = {
    ("apps", "Deployment"): workloads.deployment,
    ("apps", "ReplicaSet"): workloads.replica_set,
    ("apps", "StatefulSet"): workloads.stateful_set,
    ("apps", "DaemonSet"): workloads.daemon_set,
    ("batch", "Job"): workloads.job,
    ("", "Pod"): workloads.pod,
    ("", "ReplicationController"): workloads.replica_set,
    ("", "PersistentVolumeClaim"): conditions.persistent_volume_claim,
    ("", "PersistentVolume"): conditions.persistent_volume,
    ("", "Service"): conditions.service,
    ("", "Namespace"): conditions.namespace,
    ("policy", "PodDisruptionBudget"): conditions.pod_disruption_budget,
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
    ): conditions.custom_resource_definition,
}
