"""The kinds that a Kubernetes API serves, from the records of the snapshot's resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fleetbus.kube.resource_names import CATEGORIES, is_reserved, names_of
from fleetbus.snapshot import Definition, ResourceType
from fleetbus_proto.resources import CORE, is_built_in

VERBS: Final = ("get", "list", "watch")

# Kubernetes lists its own groups in this order, all others by name behind them. A client that finds
# a name in several groups takes the first.
_FIRST_GROUPS: Final = (
    CORE,
    "apps",
    "events.k8s.io",
    "autoscaling",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
)
_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_STAGES: Final = (None, "beta", "alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version.

    Attributes:
        group: `core` for the core group.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str
    short_names: Sequence[str]
    categories: Sequence[str]


def kinds_of(records: Iterable[ResourceType]) -> list[Kind]:
    """The kinds of records of one or several clusters: each in every version that is kept."""
    by_version = {(record.key, record.version): record for record in records}
    kinds = [_kind_of(record) for record in by_version.values()]
    return sorted(
        kinds, key=lambda kind: (_group_rank(kind.group), _rank(kind.version), kind.plural)
    )


def group_versions(kinds: Iterable[Kind]) -> dict[str, dict[str, list[Kind]]]:
    """Kinds by group and version, the preferred version of each group first."""
    groups: dict[str, dict[str, list[Kind]]] = {}
    for each in kinds:  # sorted
        groups.setdefault(each.group, {}).setdefault(each.version, []).append(each)
    return groups


def _kind_of(record: ResourceType) -> Kind:
    names = names_of(record.key)
    custom = record.definition or Definition()
    kind = record.kind or record.plural
    return Kind(
        group=record.group,
        version=record.version,
        plural=record.plural,
        kind=kind,
        namespaced=record.namespaced,
        singular=names[0] if names else custom.singular or kind.lower(),
        short_names=names[1:] if names else _unreserved(record.group, custom.short_names),
        categories=CATEGORIES.get(record.key, ()) if names else custom.categories,
    )


def _unreserved(group: str, short_names: Sequence[str]) -> Sequence[str]:
    """Drop what the table has for another type: clients find built-in groups before all others."""
    if not is_built_in(group):
        return short_names
    return [name for name in short_names if not is_reserved(name)]


def _group_rank(group: str) -> tuple[int, str]:
    is_first = group in _FIRST_GROUPS
    return (_FIRST_GROUPS.index(group) if is_first else len(_FIRST_GROUPS), group)


def _rank(version: str) -> tuple[int, int, int, str]:
    """Stable versions first, and of each stage the newest."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (len(_STAGES), 0, 0, version)
    return (_STAGES.index(match[2]), -int(match[1]), -int(match[3] or 0), version)
