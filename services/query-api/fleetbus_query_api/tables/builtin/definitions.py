"""The columns of what an API server serves and how it stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, text
from fleetbus_query_api.tables.cells import at, is_true, some, strings
from fleetbus_query_api.tables.column import (
    AGE,
    CREATED_AT,
    NAME,
    UNSET,
    Column,
    column,
    wide,
)

_MIGRATION_STATES: Final = frozenset({"Running", "Failed", "Succeeded"})


def _versions(definition: Tree) -> str:
    served = (each for each in first_maps(definition, "spec", "versions") if each.get("served"))
    marked = (f"{text(v, 'name')}{'(storage)' if v.get('storage') else ''}" for v in served)
    return ",".join(sorted(marked))


def _is_established(definition: Tree) -> bool:
    return is_true(definition, "status", "conditions", kind="Established")


def _stored_versions(storage_version: Tree) -> str:
    servers = first_maps(storage_version, "status", "storageVersions")
    return (
        some([f"{text(s, 'apiServerID')}={text(s, 'encodingVersion')}" for s in servers]) or UNSET
    )


def _migrated(migration: Tree) -> str:
    resource, group = (text(migration, "spec", "resource", name) for name in ("resource", "group"))
    return f"{resource}.{group}" if group else resource


def _migration_state(migration: Tree) -> str:
    conditions = first_maps(migration, "status", "conditions")
    states = [text(c, "type") for c in conditions if c.get("status") == "True"]
    return next((each for each in reversed(states) if each in _MIGRATION_STATES), "Unknown")


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "apiextensions.k8s.io/customresourcedefinitions": (
        NAME,
        column("Scope", at("spec", "scope")),
        column("Versions", _versions),
        CREATED_AT,
        wide("Group", at("spec", "group")),
        wide("Kind", at("spec", "names", "kind")),
        wide("ShortNames", lambda tree: ",".join(strings(tree, "spec", "names", "shortNames"))),
        wide("Established", _is_established, type="boolean"),
    ),
    "internal.apiserver.k8s.io/storageversions": (
        NAME,
        column("CommonEncodingVersion", at("status", "commonEncodingVersion", default=UNSET)),
        column("StorageVersions", _stored_versions),
        AGE,
    ),
    "storagemigration.k8s.io/storageversionmigrations": (
        replace(NAME, format=""),  # so it is in Kubernetes
        column("Resource", _migrated),
        column("Status", _migration_state),
    ),
}
