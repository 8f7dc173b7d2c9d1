"""The objects that a join makes on a member: namespace, ServiceAccounts, roles, bindings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleetbus.clusters.member_rights import (
    NAMESPACE,
    WATCHER,
    WRITER,
    PolicyRule,
    impersonation_rules,
    token_rules,
    watcher_rules,
    writer_rules,
)
from fleetbus.clusters.membership import JOINED_LABEL
from fleetbus.kube.client import Object
from fleetbus.kube.impersonation import ServiceAccount
from fleetbus.kube.json_fields import labels
from fleetbus_proto.resources import Resource

HUB_LABEL: Final = "fleetbus.dev/joined-by-hub"
"""On each object that a join made on a member: the UID of the hub's kube-system."""
IMPERSONATOR: Final = "fleetbus-impersonator"
"""Name of the Roles and bindings by which the writer may impersonate accounts of a namespace."""
_RBAC: Final = "rbac.authorization.k8s.io"
_CORE_KINDS: Final = {"Namespace": "namespaces", "ServiceAccount": "serviceaccounts"}
_RBAC_KINDS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


class Place(NamedTuple):
    """Where one object is; `str()` names it for people."""

    kind: str
    name: str
    namespace: str = ""

    @property
    def resource(self) -> Resource:
        """The resource of its kind."""
        if self.kind in _CORE_KINDS:
            return Resource("core", "v1", _CORE_KINDS[self.kind])
        return Resource(_RBAC, "v1", _RBAC_KINDS[self.kind])

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAccess:
    """The rights of fleetbus on a member."""

    cluster: str
    """Its name in the fleet."""
    hub_uid: str
    """The UID of the hub's kube-system."""
    watched: tuple[Resource, ...]
    written: tuple[Resource, ...]
    impersonated: tuple[ServiceAccount, ...] = ()
    """The ServiceAccounts whose rights a MultiClusterResource may use (rule D16)."""
    pool: bool
    """The pool watches it, with the writer's account: both read the one kubeconfig of the
    Cluster. Otherwise a watcher of its own does, with an account that cannot write."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of each object that a join makes on the member."""
        return {
            "app.kubernetes.io/managed-by": "fleetbus",
            JOINED_LABEL: self.cluster,
            HUB_LABEL: self.hub_uid,
        }

    @property
    def accounts(self) -> tuple[str, ...]:
        """The ServiceAccounts that are needed."""
        return (WRITER,) if self.pool else (WATCHER, WRITER)


THE_NAMESPACE: Final = Place("Namespace", NAMESPACE)


def account_places(account: str) -> tuple[Place, ...]:
    """A ServiceAccount and the right to renew its token."""
    return tuple(
        Place(kind, account, NAMESPACE) for kind in ("ServiceAccount", "Role", "RoleBinding")
    )


PLACES: Final = (
    THE_NAMESPACE,
    *(Place(kind, name) for name in (WATCHER, WRITER) for kind in _RBAC_KINDS if "Cluster" in kind),
    *(place for name in (WATCHER, WRITER) for place in account_places(name)),
)
"""All that a join may have made on a member, besides `impersonator_places`."""


def impersonator_places(namespace: str) -> tuple[Place, ...]:
    """The Role and the binding by which accounts of a namespace may be impersonated."""
    return tuple(Place(kind, IMPERSONATOR, namespace) for kind in ("Role", "RoleBinding"))


def member_objects(access: MemberAccess) -> dict[Place, Object]:
    """The objects on the member, in the order in which they can be made.

    Raises:
        ConfigError: a resource cannot be named in a role.
    """
    bound = {WATCHER: WRITER if access.pool else WATCHER, WRITER: WRITER}
    rules = {WATCHER: watcher_rules(access.watched), WRITER: writer_rules(access.written)}
    objects = [_object(THE_NAMESPACE, access)]
    objects += [
        _object(Place("ServiceAccount", name, NAMESPACE), access)
        | {"automountServiceAccountToken": False}
        for name in access.accounts
    ]
    for name in (WATCHER, WRITER):
        objects += _role(access, Place("ClusterRole", name), rules[name], bound[name])
    for name in access.accounts:
        objects += _role(access, Place("Role", name, NAMESPACE), token_rules(name), name)
    for namespace in sorted({account.namespace for account in access.impersonated}):
        names = [account.name for account in access.impersonated if account.namespace == namespace]
        place = Place("Role", IMPERSONATOR, namespace)
        objects += _role(access, place, impersonation_rules(names), WRITER)
    return {_place_of(obj): obj for obj in objects}


def is_ours(obj: Object, hub_uid: str) -> bool:
    """Whether a join of this hub made the object."""
    return labels(obj).get(HUB_LABEL) == hub_uid


def _role(
    access: MemberAccess, place: Place, rules: list[PolicyRule], account: str
) -> tuple[Object, Object]:
    """A role and its binding to an account."""
    role = _object(place, access) | {"rules": rules}
    binding = _object(place._replace(kind=f"{place.kind}Binding"), access)
    binding["roleRef"] = {"apiGroup": _RBAC, "kind": place.kind, "name": place.name}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    return role, binding


def _object(place: Place, access: MemberAccess) -> Object:
    namespace: Mapping[str, str] = {"namespace": place.namespace} if place.namespace else {}
    return {
        "apiVersion": place.resource.api_version,
        "kind": place.kind,
        "metadata": {"name": place.name, **namespace, "labels": access.labels},
    }


def _place_of(obj: Object) -> Place:
    metadata = obj["metadata"]
    return Place(obj["kind"], metadata["name"], metadata.get("namespace", ""))
