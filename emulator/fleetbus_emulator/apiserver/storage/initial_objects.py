"""The objects that every cluster begins with: namespaces and the priority classes of the system."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from fleetbus_emulator.apiserver.types.builtin import NAMESPACES, PRIORITY_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.resource import ResourceType

JsonObject = dict[str, Any]
FIRST_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_UID_NAMESPACE: Final = uuid.UUID("b4f1d3a0-6a54-4a39-9a37-0f6f6e0f7c11")
_CRITICAL: Final = {
    "system-cluster-critical": (2_000_000_000, "can be moved to another node if necessary"),
    "system-node-critical": (2_000_001_000, "must not be moved from their current node"),
}


def create_first_objects(state: State, cluster: str) -> None:
    """Store them; their uids follow from the name of the cluster."""
    for rtype, obj in _first_objects():
        meta: JsonObject = obj["metadata"]
        meta["uid"] = str(uuid.uuid5(_UID_NAMESPACE, f"{cluster}/{meta['name']}"))
        meta["creationTimestamp"] = state.timestamp()
        state.put(rtype, ("", meta["name"]), obj, None)


def _first_objects() -> Iterator[tuple[ResourceType, JsonObject]]:
    for name in FIRST_NAMESPACES:
        yield (
            NAMESPACES,
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            },
        )
    for name, (value, mobility) in _CRITICAL.items():
        yield (
            PRIORITY_CLASSES,
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name, "generation": 1},
                "value": value,
                "description": f"For system critical pods that {mobility}.",
                "preemptionPolicy": "PreemptLowerPriority",
            },
        )
