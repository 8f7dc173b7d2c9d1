"""New pods of a workload, and when a pod counts as available: pure computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.conditions import find_condition, is_true
from fleetbus_emulator.controllers.owners import owner_reference
from fleetbus_emulator.controllers.pod_groups import ENDED, PodState
from fleetbus_emulator.controllers.runtime.view import is_deleting

JsonObject = dict[str, Any]


def phase_of(pod: JsonObject) -> str:
    """The pod's phase."""
    return str(mapping(pod, "status").get("phase") or "Pending")


def has_ended(pod: JsonObject) -> bool:
    """Whether the pod's containers ended for good."""
    return phase_of(pod) in ENDED


def is_active(pod: JsonObject) -> bool:
    """Whether the pod counts as one that exists: it has not ended and is not being deleted."""
    return not has_ended(pod) and not is_deleting(pod)


def is_ready(pod: JsonObject) -> bool:
    """Whether the pod is ready."""
    return is_true(pod, "Ready")


def ready_in(
    pod: JsonObject, min_ready_seconds: float, seconds_since: Callable[[str], float]
) -> float | None:
    """Seconds until a ready pod counts as available; 0 if it does, None if it is not ready."""
    if not is_ready(pod):
        return None
    since = find_condition(pod, "Ready").get("lastTransitionTime") or ""
    return _remaining(since, min_ready_seconds, seconds_since)


def count_available(
    sizes: Iterable[tuple[PodState, int]],
    min_ready_seconds: float,
    seconds_since: Callable[[str], float],
) -> tuple[int, float | None]:
    """The number of available pods, and the seconds until the next ones are."""
    available, pending = 0, None
    for state, size in sizes:
        if not state.active or not state.ready:
            continue
        remaining = _remaining(state.ready_since, min_ready_seconds, seconds_since)
        if not remaining:
            available += size
        elif pending is None or remaining < pending:
            pending = remaining
    return available, pending


def _remaining(since: str, seconds: float, seconds_since: Callable[[str], float]) -> float:
    return max(0, seconds - seconds_since(since)) if seconds else 0


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
