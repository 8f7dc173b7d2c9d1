"""The RBAC rules that fleetbus needs on a member cluster.

Two ServiceAccounts connect to a member: the watcher, which only reads, and the writer, which the
distributor and controllers use. Their rules follow from the resources that are named: no wildcards,
and no verb that would let an account extend its own rights (`escalate`, `bind`). The writer may
`impersonate` the ServiceAccounts that are named, and nobody else.

All clients may read `/version`, `/readyz` and the discovery documents by the cluster's own default
roles, so no rule here names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from fleetbus.errors import ConfigError
from fleetbus_proto.resources import CORE, Resource, is_resource_name

NAMESPACE: Final = "fleetbus-system"
"""The namespace on a member that holds the ServiceAccounts."""
WATCHER: Final = "fleetbus-watcher"
WRITER: Final = "fleetbus-writer"

PolicyRule: TypeAlias = dict[str, Any]
"""A PolicyRule of rbac.authorization.k8s.io/v1."""

_WATCH: Final = ("list", "watch")
_WRITE: Final = ("get", "list", "create", "update", "patch", "delete")
_WRITE_SUBRESOURCE: Final = ("get", "update", "patch")
_WRITE_SPECIAL: Final[Mapping[str, tuple[str, ...]]] = {
    # Deleting a namespace deletes everything in it, so fleetbus never does (rule D10).
    "core/namespaces": ("get", "list", "create", "update", "patch"),
    "core/events": ("get", "create", "patch"),
    # The query API with authority `member` asks the cluster what a user may read (rule A1).
    "authorization.k8s.io/subjectaccessreviews": ("create",),
}
SUBRESOURCES: Final = frozenset({"status", "scale"})
"""Others run code, mint tokens or approve certificates."""

_Verbs: TypeAlias = dict[tuple[str, str, tuple[str, ...]], set[str]]
"""The verbs of each group, resource and list of names."""


def watcher_rules(resources: Iterable[Resource]) -> list[PolicyRule]:
    """The ClusterRole of a watcher of these resources.

    Args:
        resources: what is watched, in all namespaces; the version has no effect.

    Raises:
        ConfigError: a name is a wildcard or a subresource, which cannot be watched.
    """
    verbs_of: _Verbs = {}
    _add_identity(verbs_of)
    # Which types were removed for good, and which only by an aggregated API server (rule W17).
    _add(verbs_of, "apiextensions.k8s.io", "customresourcedefinitions", ("list",))
    _add(verbs_of, "apiregistration.k8s.io", "apiservices", ("list",))
    for resource in resources:
        _check(resource, frozenset())
        _add(verbs_of, resource.group, resource.plural, _WATCH)
    return _rules_of(verbs_of)


def writer_rules(resources: Iterable[Resource]) -> list[PolicyRule]:
    """The ClusterRole of a writer of these resources; without any it writes nothing.

    Args:
        resources: what the distributor and controllers may read live and write, in all namespaces;
            a plural may be followed by `/status` or `/scale`. The version has no effect.

    Raises:
        ConfigError: a name is a wildcard, or a subresource that is more than a part of its object.
    """
    verbs_of: _Verbs = {}
    _add_identity(verbs_of)
    named = list(resources)
    for resource in named:
        _check(resource, SUBRESOURCES)
        default = _WRITE_SUBRESOURCE if "/" in resource.plural else _WRITE
        _add(verbs_of, resource.group, resource.plural, _WRITE_SPECIAL.get(resource.key, default))
    if named:
        # Whether the namespace of an object exists (rule D10).
        _add(verbs_of, CORE, "namespaces", ("get",))
    return _rules_of(verbs_of)


def token_rules(account: str) -> list[PolicyRule]:
    """The Role in `NAMESPACE` by which an account renews its own token, and no other."""
    verbs_of: _Verbs = {}
    _add(verbs_of, CORE, "serviceaccounts/token", ("create",), (account,))
    return _rules_of(verbs_of)


def impersonation_rules(names: Iterable[str]) -> list[PolicyRule]:
    """The Role by which the writer may impersonate ServiceAccounts of its namespace (rule D16).

    Args:
        names: of the accounts; without any nobody may be impersonated.
    """
    verbs_of: _Verbs = {}
    if named := tuple(sorted(set(names))):
        _add(verbs_of, CORE, "serviceaccounts", ("impersonate",), named)
    return _rules_of(verbs_of)


def _add_identity(verbs_of: _Verbs) -> None:
    """Which cluster answers is the UID of its namespace kube-system (rule W13)."""
    _add(verbs_of, CORE, "namespaces", ("get",), ("kube-system",))


def _add(
    verbs_of: _Verbs,
    group: str,
    resource: str,
    verbs: Iterable[str],
    names: tuple[str, ...] = (),
) -> None:
    verbs_of.setdefault(("" if group == CORE else group, resource, names), set()).update(verbs)


def _check(resource: Resource, subresources: frozenset[str]) -> None:
    plural, separator, subresource = resource.plural.partition("/")
    if not is_resource_name(resource.group, plural):
        raise ConfigError(
            f"no rights can be given for {str(resource)!r}: name one resource, like v1/pods"
        )
    if separator and subresource not in subresources:
        allowed = " and ".join(f"/{name}" for name in sorted(subresources)) or "none"
        raise ConfigError(
            f"no rights can be given for {str(resource)!r}: of subresources {allowed} may be named"
        )


def _rules_of(verbs_of: _Verbs) -> list[PolicyRule]:
    """One rule for each group and set of verbs, in a fixed order."""
    merged: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource, names), verbs in sorted(verbs_of.items()):
        merged.setdefault((group, names, tuple(sorted(verbs))), []).append(resource)
    rules: list[PolicyRule] = []
    for (group, names, verbs), plurals in merged.items():
        rule: PolicyRule = {"apiGroups": [group], "resources": plurals, "verbs": list(verbs)}
        rules.append(rule | ({"resourceNames": list(names)} if names else {}))
    return rules
