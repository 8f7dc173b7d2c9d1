"""The pods of a workload: which count, which go first, how a new one looks: pure computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.conditions import find_condition, is_true
from fleetbus_devfleet.sim.owners import owner_reference
from fleetbus_devfleet.sim.view import is_deleting

JsonObject = dict[str, Any]
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ENDED = ("Succeeded", "Failed")
PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}


def phase_of(pod: JsonObject) -> str:
    """The pod's phase."""
    return str(mapping(pod, "status").get("phase", "Pending"))


def is_active(pod: JsonObject) -> bool:
    """Whether the pod counts as one that exists: it has not ended and is not being deleted."""
    return phase_of(pod) not in ENDED and not is_deleting(pod)


def is_ready(pod: JsonObject) -> bool:
    """Whether the pod is ready."""
    return is_true(pod, "Ready")


def ready_in(
    pod: JsonObject, min_ready_seconds: float, seconds_since: Callable[[str], float]
) -> float | None:
    """Seconds until a ready pod counts as available; 0 if it does, None if it is not ready."""
    if not is_ready(pod):
        return None
    if not min_ready_seconds:
        return 0
    since = find_condition(pod, "Ready")["lastTransitionTime"]
    return max(0, min_ready_seconds - seconds_since(since))


def deletion_rank(pod: JsonObject) -> tuple[int, int, bool, int]:
    """Sorts pods so that those come first whose loss hurts least."""
    cost = str(mapping(pod, "metadata", "annotations").get(DELETION_COST) or "0")
    placed = 1 if mapping(pod, "spec").get("nodeName") else 0
    phase = PHASE_ORDER.get(phase_of(pod), 1)
    return placed, phase, is_ready(pod), int(cost) if cost.lstrip("-").isdecimal() else 0


def new_pod(owner: JsonObject, template: JsonObject, **metadata: Any) -> JsonObject:
    """A pod of a template, managed by the owner; `metadata` has name or generateName at least."""
    meta = mapping(template, "metadata")
    copied = {name: meta[name] for name in ("labels", "annotations", "finalizers") if name in meta}
    return {
        "metadata": {
            **copied,
            "namespace": owner["metadata"]["namespace"],
            "ownerReferences": [owner_reference(owner)],
            **metadata,
        },
        "spec": mapping(template, "spec"),
    }
