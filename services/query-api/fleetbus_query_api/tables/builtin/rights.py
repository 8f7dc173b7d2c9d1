"""The columns of bindings and certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, number, text
from fleetbus_query_api.tables.cells import at, filled, labels
from fleetbus_query_api.tables.column import AGE, NAME, NONE, Column, column, duration, wide

_DECIDED: Final = ("Issued", "Denied", "Failed")


def _role(binding: Tree) -> str:
    return f"{text(binding, 'roleRef', 'kind')}/{text(binding, 'roleRef', 'name')}"


def _subjects(kind: str) -> Callable[[Tree], str]:
    def one(subject: Tree) -> str:
        prefix = f"{text(subject, 'namespace')}/" if kind == "ServiceAccount" else ""
        return prefix + text(subject, "name")

    return lambda tree: ", ".join(
        one(s) for s in first_maps(tree, "subjects") if s.get("kind") == kind
    )


def _requested_duration(request: Tree) -> str:
    seconds = look(request, "spec", "expirationSeconds")
    return NONE if seconds is None else duration(number(request, "spec", "expirationSeconds"))


def _condition(request: Tree) -> str:
    kinds = {c.get("type") for c in first_maps(request, "status", "conditions")}
    words = [next((kind for kind in ("Denied", "Approved") if kind in kinds), "Pending")]
    words += ["Failed"] if "Failed" in kinds else []
    words += ["Issued"] if look(request, "status", "certificate") else []
    return ",".join(words)


def _state(request: Tree) -> str:
    types = [text(c, "type") for c in first_maps(request, "status", "conditions")]
    return next((kind for kind in reversed(types) if kind in _DECIDED), "Pending")


_BINDING: Final = (
    NAME,
    column("Role", _role),
    AGE,
    wide("Users", _subjects("User")),
    wide("Groups", _subjects("Group")),
    wide("ServiceAccounts", _subjects("ServiceAccount")),
)

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "rbac.authorization.k8s.io/rolebindings": _BINDING,
    "rbac.authorization.k8s.io/clusterrolebindings": _BINDING,
    "certificates.k8s.io/certificatesigningrequests": (
        NAME,
        AGE,
        column("SignerName", filled("spec", "signerName", default=NONE)),
        column("Requestor", at("spec", "username")),
        column("RequestedDuration", _requested_duration),
        column("Condition", _condition),
    ),
    "certificates.k8s.io/clustertrustbundles": (
        NAME,
        column("SignerName", filled("spec", "signerName", default=NONE)),
    ),
    "certificates.k8s.io/podcertificaterequests": (
        NAME,
        column("PodName", at("spec", "podName")),
        column("ServiceAccountName", at("spec", "serviceAccountName")),
        column("NodeName", at("spec", "nodeName")),
        column("SignerName", at("spec", "signerName")),
        column("State", _state),
        column("UnverifiedUserAnnotations", labels("spec", "unverifiedUserAnnotations")),
    ),
}
