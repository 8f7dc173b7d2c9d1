"""Rule D12: CRDs, namespaces, rights, configuration, workloads; the other way round for deletes.

A workload that arrives before its ConfigMap starts with an error; a CRD that goes first takes
its instances along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

_STAGES: tuple[frozenset[str], ...] = (
    frozenset({"CustomResourceDefinition"}),
    frozenset({"Namespace"}),
    frozenset(
        {
            "ServiceAccount",
            "Role",
            "ClusterRole",
            "RoleBinding",
            "ClusterRoleBinding",
            "ResourceQuota",
            "LimitRange",
            "PodSecurityPolicy",
            "NetworkPolicy",
            "PriorityClass",
            "StorageClass",
        }
    ),
    frozenset({"ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Service"}),
)
_WORKLOADS = frozenset(
    {"Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"}
)


class HasKind(Protocol):
    """Anything that says its kind."""

    @property
    def kind(self) -> str:
        """The Kubernetes kind."""
        ...


ItemT = TypeVar("ItemT", bound=HasKind)


def stage(kind: str) -> int:
    """The step in which a kind is applied; unknown kinds come after workloads.

    Custom resources, webhooks and ingresses refer to workloads more often than the reverse.
    """
    for number, kinds in enumerate(_STAGES):
        if kind in kinds:
            return number
    return len(_STAGES) if kind in _WORKLOADS else len(_STAGES) + 1


def for_apply(items: Sequence[ItemT]) -> list[ItemT]:
    """Sort for applying; inside a stage the author's order stays."""
    return sorted(items, key=lambda item: stage(item.kind))


def for_delete(items: Sequence[ItemT]) -> list[ItemT]:
    """The exact reverse of `for_apply`."""
    return list(reversed(for_apply(items)))
