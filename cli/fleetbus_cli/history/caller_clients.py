"""Clients of the clusters with the rights of whoever runs a command."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fleetbus.errors import ConfigError, Forbidden
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, by_context, load_kube_config
from fleetbus.process.loopback import allow_loopback
from fleetbus_cli.target import resolve_target


class CallerClients:
    """Makes a client for each cluster, from a kubeconfig with a context of its name.

    Args:
        kubeconfig: the file; None for that of the dev fleet, KUBECONFIG, or the usual one.
        contexts: `CLUSTER=CONTEXT` each, for contexts of other names.
        stack: closes the clients.

    Raises:
        ConfigError: the kubeconfig cannot be read, or an entry of `contexts` is malformed.
    """

    def __init__(
        self,
        *,
        kubeconfig: pathlib.Path | None,
        contexts: Sequence[str],
        stack: AsyncExitStack,
    ) -> None:
        self._stack = stack
        self._file = str(kubeconfig or _usual_kubeconfig())
        self._configs = by_context(load_kube_config(self._file))
        self._named = dict(map(_split, contexts))
        self._clients: dict[str, KubeClient | ConfigError] = {}
        self._uids: dict[str, str] = {}

    async def get(self, cluster: str, uid: str) -> KubeClient:
        """The client of a cluster.

        Args:
            cluster: its name.
            uid: of its namespace kube-system, when the objects were deleted from it.

        Raises:
            ConfigError: there is no context for it, or another cluster answers there.
            KubeError: it does not answer.
        """
        client = await self._client(cluster)
        actual_uid = await self._uid(cluster, client)
        if actual_uid and actual_uid != uid:
            raise ConfigError(
                f"a cluster other than {cluster!r} answers there: the UID of its namespace"
                f" kube-system is {actual_uid}, not {uid or 'known'}"
            )
        return client

    async def _client(self, cluster: str) -> KubeClient:
        outcome = self._clients.get(cluster)
        if outcome is None:
            try:
                outcome = await self._connect(cluster)
            except ConfigError as e:
                outcome = e
            self._clients[cluster] = outcome
        if isinstance(outcome, ConfigError):
            raise outcome
        return outcome

    async def _connect(self, cluster: str) -> KubeClient:
        context = self._named.get(cluster, cluster)
        config: KubeConfig | None = self._configs.get(context)
        if config is None:
            raise ConfigError(
                f"{self._file} has no context {context!r}: name one with --context"
                f" {cluster}=CONTEXT"
            )
        client = await self._stack.enter_async_context(KubeClient(config))
        client.cluster = cluster
        return client

    async def _uid(self, cluster: str, client: KubeClient) -> str:
        """The UID of the cluster that answers; empty if the caller vouches for the context.

        Raises:
            ConfigError: the caller may not read it, and has not named the context.
        """
        if cluster not in self._uids:
            try:
                self._uids[cluster] = await client.kube_system_uid()
            except Forbidden:
                if cluster not in self._named:
                    raise ConfigError(
                        "you may not get the namespace kube-system, so it is unknown which cluster"
                        f" answers there: vouch for the context with --context {cluster}=CONTEXT"
                    ) from None
                self._uids[cluster] = ""
        return self._uids[cluster]


def _usual_kubeconfig() -> str:
    target = resolve_target()
    if target.hub:  # a dev fleet runs here
        allow_loopback()
        return str(target.kubeconfig)
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _split(text: str) -> tuple[str, str]:
    cluster, equals, context = text.partition("=")
    if not cluster or not equals or not context:
        raise ConfigError(f"--context {text!r} is not like CLUSTER=CONTEXT")
    return cluster, context
