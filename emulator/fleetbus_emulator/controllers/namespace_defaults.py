"""The default objects of every namespace: a ServiceAccount, the API server's CA certificate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Kinds, World

JsonObject = dict[str, Any]
NAMESPACES = ("", "namespaces")
ACCOUNT = "default"
ROOT_CERTIFICATE = "kube-root-ca.crt"
CERTIFICATE = """-----BEGIN CERTIFICATE-----
c2ltdWxhdGVkIGJ5IGZsZWV0YnVzIGRldmZsZWV0
-----END CERTIFICATE-----
"""
WHY = "kubernetes.io/description"
DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


def _namespace_of(change: Change, ref: Ref, name: str) -> Iterable[Ref]:
    """The namespace itself, or that of a default object that was deleted or changed."""
    if (ref.group, ref.resource) == NAMESPACES:
        return [ref]
    if ref.name != name or change.type == "ADDED":
        return []
    return [Ref(*NAMESPACES, "", ref.namespace)]


class ServiceAccounts:
    """Keeps the ServiceAccount `default` in each namespace."""

    name = "serviceaccount"
    watches: Kinds = frozenset({NAMESPACES, ("", "serviceaccounts")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Namespaces by themselves and by their account."""
        return _namespace_of(change, ref, ACCOUNT)

    def reconcile(self, ref: Ref) -> None:
        """Create the account if it is missing."""
        view = self._world.view
        if is_deleting(view[ref]) or Ref("", "serviceaccounts", ref.name, ACCOUNT) in view:
            return
        meta = {"name": ACCOUNT, "namespace": ref.name}
        self._world.create("v1/serviceaccounts", {"metadata": meta})


class RootCertificates:
    """Keeps the ConfigMap `kube-root-ca.crt` in each namespace, and what it says."""

    name = "root-ca"
    watches: Kinds = frozenset({NAMESPACES, ("", "configmaps")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Namespaces by themselves and by their certificate."""
        return _namespace_of(change, ref, ROOT_CERTIFICATE)

    def reconcile(self, ref: Ref) -> None:
        """Create the certificate if it is missing, and restore it if it was changed."""
        view = self._world.view
        if is_deleting(view[ref]):
            return
        place = Ref("", "configmaps", ref.name, ROOT_CERTIFICATE)
        data = {"ca.crt": self._world.cluster.trust or CERTIFICATE}
        present = view.get(place)
        if present is None:
            annotations = {WHY: DESCRIPTION}
            meta = {"name": place.name, "namespace": ref.name, "annotations": annotations}
            self._world.create("v1/configmaps", {"metadata": meta, "data": data})
        elif present.get("data") != data and not is_deleting(present):
            stale = {name: None for name in mapping(present, "data") if name not in data}
            self._world.patch(place, {"data": {**stale, **data}})
