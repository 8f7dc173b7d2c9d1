"""The rows of bindings."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns.printed import Printed, Row, printed
from fleetbus_emulator.apiserver.json_tree import listing, mapping


def _binding(row: Row) -> list[Any]:
    role = mapping(row.obj, "roleRef")
    subjects = listing(row.obj, "subjects")
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in subjects:
        namespace = f"{subject.get('namespace', '')}/"
        prefix = namespace if subject.get("kind") == "ServiceAccount" else ""
        by_kind.get(str(subject.get("kind")), []).append(prefix + str(subject.get("name", "")))
    named = f"{role.get('kind', '')}/{role.get('name', '')}"
    return [named, row.age, *(", ".join(names) for names in by_kind.values())]


_BINDING = printed("Role, Age", _binding, wide="Users, Groups, ServiceAccounts")

COLUMNS: dict[tuple[str, str], Printed] = {
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING,
}
