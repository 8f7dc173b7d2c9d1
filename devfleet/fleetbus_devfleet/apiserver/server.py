"""The HTTP side of several clusters: one listener each, all in one event loop."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trustme
import yaml

from fleetbus_devfleet.apiserver.link import Partition
from fleetbus_devfleet.apiserver.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from pathlib import Path

    from fleetbus_devfleet.apiserver.cluster import Cluster

LOOPBACK = "127.0.0.1"


class ApiServers:
    """The listeners of several clusters, by cluster name.

    Args:
        listeners: One for each cluster.
        authority: The certificate authority that clients have to trust, in PEM form; for HTTPS.
    """

    def __init__(self, listeners: Iterable[Listener], authority: bytes | None) -> None:
        self._authority = authority
        self._listeners = {listener.cluster.name: listener for listener in listeners}

    @property
    def clusters(self) -> dict[str, Cluster]:
        """The clusters by name."""
        return {name: listener.cluster for name, listener in self._listeners.items()}

    def url(self, cluster: str) -> str:
        """The base URL of a cluster's API server."""
        return self._listeners[cluster].url

    async def start(self, cluster: str) -> None:
        """Start a cluster's API server again, on the port it had."""
        await self._listeners[cluster].start()

    async def stop(self, cluster: str) -> None:
        """Stop a cluster's API server: connections break and are refused, nothing is forgotten."""
        await self._listeners[cluster].stop()

    async def partition(self, cluster: str, partition: Partition = Partition.HANG) -> None:
        """Cut a cluster off, in place of how it may be cut off now; see `Partition`."""
        listener = self._listeners[cluster]
        await self.heal(cluster)
        listener.link.part(partition)
        if partition is Partition.REFUSE:
            await listener.stop()

    async def heal(self, cluster: str) -> None:
        """End the partition of a cluster; what hung goes on where it was."""
        listener = self._listeners[cluster]
        if listener.link.partition is Partition.REFUSE:
            await listener.start()
        listener.link.heal()

    def partition_of(self, cluster: str) -> Partition | None:
        """How a cluster is cut off; None if it is not."""
        return self._listeners[cluster].link.partition

    def is_listening(self, cluster: str) -> bool:
        """Whether a cluster's API server accepts connections."""
        return self._listeners[cluster].is_listening

    async def aclose(self) -> None:
        """Stop all."""
        await asyncio.gather(*(listener.stop() for listener in self._listeners.values()))

    def kubeconfig(self, token: str | None = None) -> dict[str, Any]:
        """A kubeconfig with a context per cluster, named after it; the first is current."""
        names = list(self._listeners)
        trust: dict[str, str] = {}
        if self._authority is not None:
            trust["certificate-authority-data"] = base64.b64encode(self._authority).decode()
        user: dict[str, Any] = {"token": token} if token else {}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": names[0] if names else "",
            "preferences": {},
            "clusters": [{"name": n, "cluster": {"server": self.url(n), **trust}} for n in names],
            "contexts": [
                {"name": n, "context": {"cluster": n, "user": "devfleet", "namespace": "default"}}
                for n in names
            ],
            "users": [{"name": "devfleet", "user": user}],
        }

    def write_kubeconfig(self, path: Path, token: str | None = None) -> None:
        """Write the kubeconfig, readable only for its owner."""
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.kubeconfig(token), sort_keys=False))


@asynccontextmanager
async def serve(
    clusters: Iterable[Cluster],
    *,
    host: str = LOOPBACK,
    ports: Sequence[int] = (),
    tls: bool = False,
) -> AsyncGenerator[ApiServers, None]:
    """Serve clusters over HTTP while the context lasts.

    Args:
        clusters: One listener each.
        host: The address to bind.
        ports: A port for each of the first clusters; the others take free ones.
        tls: Serve HTTPS, with a certificate authority that the kubeconfig carries.
    """
    context, authority = _certificates(host) if tls else (None, None)
    listeners = [
        Listener(
            cluster,
            host=host,
            port=ports[index] if index < len(ports) else 0,
            ssl_context=context,
        )
        for index, cluster in enumerate(clusters)
    ]
    servers = ApiServers(listeners, authority)
    try:
        for listener in listeners:
            await listener.start()
        yield servers
    finally:
        await servers.aclose()


def _certificates(host: str) -> tuple[ssl.SSLContext, bytes]:
    """A server's TLS context and the authority that signed its certificate."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host, "localhost").configure_cert(context)
    return context, authority.cert_pem.bytes()
