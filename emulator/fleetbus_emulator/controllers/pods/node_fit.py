"""Nodes that fit a pod: selectors, affinity, taints. Resources and priorities are not counted."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.validation import selector_matches
from fleetbus_emulator.controllers.conditions import find_condition, is_true

JsonObject = dict[str, Any]
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def is_dead(node: JsonObject | None) -> bool:
    """Whether a node is there, but its kubelet is not: its Ready condition says so."""
    return find_condition(node or {}, "Ready").get("status") in ("False", "Unknown")


def taints_of(node: JsonObject) -> list[JsonObject]:
    """The taints, those included that the node is about to be given for its condition."""
    spec = mapping(node, "spec")
    taints = listing(spec, "taints")
    if spec.get("unschedulable"):
        taints = [*taints, {"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}]
    if not is_true(node, "Ready"):
        taints = [*taints, {"key": NOT_READY, "effect": NO_SCHEDULE}]
    return taints


def toleration_of(taint: JsonObject, pod_spec: JsonObject) -> JsonObject | None:
    """The pod's toleration of a taint; None if it has none."""
    for toleration in listing(pod_spec, "tolerations"):
        if _tolerates(toleration, taint):
            return toleration
    return None


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def target_of(pod: JsonObject) -> str:
    """The node that a pod is on, or the one that a DaemonSet made it for; empty if any will do."""
    spec = mapping(pod, "spec")
    placed = str(spec.get("nodeName") or "")
    if placed:
        return placed
    for term in listing(spec, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"):
        for field in listing(term, "matchFields"):
            if mapping(field).get("key") == "metadata.name":
                return str(next(iter(listing(field, "values")), ""))
    return ""


def selects_node(pod_spec: JsonObject, node: JsonObject) -> bool:
    """Whether the pod's nodeSelector and its required node affinity select the node."""
    labels = mapping(node, "metadata", "labels")
    if not mapping(pod_spec, "nodeSelector").items() <= labels.items():
        return False
    terms = listing(pod_spec, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    return not terms or any(_term_holds(term, node, labels) for term in terms)


def _term_holds(term: Any, node: JsonObject, labels: JsonObject) -> bool:
    expressions, fields = listing(term, "matchExpressions"), listing(term, "matchFields")
    if not expressions and not fields:
        return False
    names = {"metadata.name": node["metadata"]["name"]}
    return selector_matches({"matchExpressions": expressions}, labels) and selector_matches(
        {"matchExpressions": fields}, names
    )


def tolerates_all(pod_spec: JsonObject, node: JsonObject, effects: tuple[str, ...]) -> bool:
    """Whether the pod tolerates every taint of the node that has one of these effects."""
    taints = [taint for taint in taints_of(node) if taint.get("effect") in effects]
    return all(toleration_of(taint, pod_spec) is not None for taint in taints)


def takes(node: JsonObject, pod_spec: JsonObject) -> bool:
    """Whether the scheduler may place the pod on the node."""
    if not selects_node(pod_spec, node):
        return False
    return tolerates_all(pod_spec, node, (NO_SCHEDULE, NO_EXECUTE))
