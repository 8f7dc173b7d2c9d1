"""Connects to the hub as the caller of a request: with their token, never with rights of ours.

The account of the query API may write nothing and impersonate nobody, so whoever breaks into this
process finds no right to write. See docs/decisions/0016-join-with-the-token-of-the-caller.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import Scope

from fleetbus.clusters.providers.build import hub_config
from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, cluster_fields
from fleetbus.process.loopback import is_loopback
from fleetbus.process.settings import SharedSettings
from fleetbus_query_api.access.authenticate import read_token
from fleetbus_query_api.responses.problem import UnavailableProblem

_POD_CA: Final = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
_SOURCE: Final = "the hub, with the token of the caller"
_CA: Final = "certificate-authority"


class CallerHub:
    """Makes clients of the hub that have the rights of a caller.

    Args:
        shared: where the hub is.
        is_open: whether nobody authenticates, so that there is no token: on loopback, in
            development. Then the hub's kubeconfig is used as it is, if one is set.
    """

    def __init__(self, shared: SharedSettings, *, is_open: bool) -> None:
        self._shared = shared
        self.is_open = is_open
        self.hub_cluster = shared.hub_cluster
        """The name of the hub in its own fleet; empty if it is not a member by a setting."""

    @asynccontextmanager
    async def connect(self, scope: Scope) -> AsyncGenerator[KubeClient]:
        """Connect for one request.

        Raises:
            UnauthorizedProblem: the request has no token.
            UnavailableProblem: no hub is set, or the way to it would show the token.
        """
        config = await asyncio.to_thread(self._config, "" if self.is_open else read_token(scope))
        async with KubeClient(config) as client:
            client.cluster = self.hub_cluster
            yield client

    def _config(self, token: str) -> KubeConfig:
        try:
            hub = hub_config(self._shared)
            if not self.is_open:
                return as_caller(hub, token)
        except ConfigError as e:
            raise UnavailableProblem(f"the hub cannot be reached: {e}") from e
        if hub is None:
            raise UnavailableProblem(
                "the query API does not know the hub: start it with FLEETBUS_HUB_KUBECONFIG"
            )
        return hub


def as_caller(hub: KubeConfig | None, token: str) -> KubeConfig:
    """The access data of the hub with a caller's token in place of all credentials of ours.

    A client certificate must not stay: API servers believe it before they look at a token. Nor may
    a 401 lead back to the file of our own kubeconfig, which a client reads again otherwise.

    Args:
        hub: our own access data; None means the pod that we run in.
        token: of the caller.

    Raises:
        ConfigError: the token could be read on the way, or the kubeconfig lacks something.
    """
    cluster = _pod_cluster() if hub is None else _absolute(cluster_fields(hub), hub.source)
    _require_protection(cluster)
    name = "hub"
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    return KubeConfig(
        json.dumps(document, default=str), name, _SOURCE, http=True, own=True, renew=_never
    )


async def _never() -> None:
    """There are no other access data of this caller."""


def _pod_cluster() -> dict[str, Any]:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{suffix}") for suffix in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError("no kubeconfig of the hub is set, and this is no pod")
    address = f"[{host}]" if ":" in host else host
    return {"server": f"https://{address}:{port}", _CA: _POD_CA}


def _absolute(cluster: dict[str, Any], source: str) -> dict[str, Any]:
    """The cluster with a path that does not depend on the folder of its kubeconfig."""
    ca_file = cluster.get(_CA)
    if not ca_file:
        return cluster
    folder = pathlib.Path(source).expanduser().absolute().parent
    return {**cluster, _CA: str(folder / str(ca_file))}


def _require_protection(cluster: dict[str, Any]) -> None:
    """Refuse to send a caller's token to whoever listens.

    Raises:
        ConfigError: the hub is reached without TLS, or its certificate is not verified.
    """
    server = urlsplit(str(cluster.get("server") or ""))
    if is_loopback(server.hostname or ""):
        return
    if server.scheme != "https" or cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(
            "its kubeconfig has no verified TLS, and tokens of callers are not sent without it"
        )
