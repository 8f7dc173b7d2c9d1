"""The rights of fleetbus's ServiceAccounts, compared with the audit log of a real API server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.api.rbac import calls_of_audit_event, grants_of, missing, unused

KINDS: Final = "roles,rolebindings,clusterroles,clusterrolebindings"
_NAMESPACES: Final = ("fleetbus", "fleetbus-system")
_USERS: Final = tuple(f"system:serviceaccount:{namespace}:" for namespace in _NAMESPACES)
_OF_DOCTOR: Final = frozenset(
    {("list", "serviceaccounts"), ("list", "deployments"), ("list", "secrets")}
)
"""`fleetbus doctor` tries to list these of all namespaces, with the rights of the pod that it runs
in, and goes on without."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Rights:
    """Calls without a right, and rights without a call, as texts."""

    missing: list[str]
    unused: list[str]


def compare(objects: Sequence[Object], audit_log: Path) -> Rights:
    """Compare the roles that are bound to our accounts with what these have asked.

    Args:
        objects: all roles and bindings of the cluster.
        audit_log: of its API server.
    """
    bindings = [obj for obj in objects if obj["kind"].endswith("Binding") and _is_ours(obj)]
    names = {(binding["roleRef"]["kind"], binding["roleRef"]["name"]) for binding in bindings}
    roles = [obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) in names]
    calls = [
        call
        for event in map(json.loads, audit_log.read_text().splitlines())
        if event["user"]["username"].startswith(_USERS)
        for call in calls_of_audit_event(event)
        if call.user.startswith(_USERS)  # not an account that an author has named
        and (call.namespace or (call.verb, call.resource) not in _OF_DOCTOR)
    ]
    grants = grants_of([*roles, *bindings])
    return Rights(list(map(str, missing(grants, calls))), list(map(str, unused(grants, calls))))


def _is_ours(binding: Mapping[str, Any]) -> bool:
    return any(subject.get("namespace") in _NAMESPACES for subject in binding.get("subjects") or ())
