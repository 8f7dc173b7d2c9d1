"""Kubeconfigs for clients of several clusters."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus_emulator.apiserver.auth.certificates import ClientCertificate

Proof = dict[str, str]
USER = "devfleet"


def token_proof(token: str | None) -> Proof:
    """The user entry of a kubeconfig for a bearer token."""
    return {"token": token} if token else {}


def certificate_proof(issued: ClientCertificate) -> Proof:
    """The user entry of a kubeconfig for a client certificate."""
    return {
        "client-certificate-data": _base64(issued.certificate),
        "client-key-data": _base64(issued.key),
    }


def kubeconfig_of(
    urls: Mapping[str, str], authority: bytes | None, proofs: Mapping[str, Proof]
) -> dict[str, Any]:
    """A kubeconfig with a context per cluster, named after it; the first is current.

    Args:
        urls: The servers, by cluster name.
        authority: The PEM of whom to trust; None for HTTP.
        proofs: The user's credentials by cluster; one user entry if all are equal.
    """
    trust = {} if authority is None else {"certificate-authority-data": _base64(authority)}
    first = next(iter(urls), "")
    same = all(proof == proofs[first] for proof in proofs.values())
    users = {name: USER if same else f"{USER}-{name}" for name in urls}
    distinct = {user: proofs[name] for name, user in users.items()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": first,
        "preferences": {},
        "clusters": [{"name": n, "cluster": {"server": url, **trust}} for n, url in urls.items()],
        "contexts": [
            {"name": n, "context": {"cluster": n, "user": user, "namespace": "default"}}
            for n, user in users.items()
        ],
        "users": [{"name": name, "user": proof} for name, proof in distinct.items()],
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
