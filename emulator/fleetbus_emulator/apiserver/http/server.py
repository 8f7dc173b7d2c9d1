"""The HTTP side of several clusters: one listener each, all in one event loop."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fleetbus_emulator.apiserver.auth.certificates import Authority, ask_for_clients
from fleetbus_emulator.apiserver.http.listener import Listener
from fleetbus_emulator.apiserver.http.partition import Partition

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

    from fleetbus_emulator.apiserver.auth.access import User
    from fleetbus_emulator.apiserver.auth.certificates import ClientCertificate
    from fleetbus_emulator.apiserver.cluster import Cluster


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
        """Start a cluster's API server again, on the port it had; ends a partition that refuses."""
        listener = self._listeners[cluster]
        await listener.start()
        if listener.link.partition is Partition.REFUSE:
            listener.link.heal()

    async def stop(self, cluster: str) -> None:
        """Stop a cluster's API server: connections break and are refused, nothing is forgotten."""
        await self._listeners[cluster].stop()

    async def partition(self, cluster: str, partition: Partition = Partition.HANG) -> None:
        """Cut a cluster off, in place of how it may be cut off now; see `Partition`.

        Raises:
            ValueError: There is no such way.
        """
        partition = Partition(partition)  # callers may pass a string; a misspelt one raises here
        listener = self._listeners[cluster]
        await self.heal(cluster)
        listener.link.cut(partition)
        if partition is Partition.REFUSE:
            await listener.stop()

    async def heal(self, cluster: str) -> None:
        """End the partition of a cluster; requests that hung continue."""
        listener = self._listeners[cluster]
        if listener.link.partition is Partition.REFUSE:
            await listener.start()
        listener.link.heal()

    def partition_of(self, cluster: str) -> Partition | None:
        """The partition of a cluster; None if there is none."""
        return self._listeners[cluster].link.partition

    def is_listening(self, cluster: str) -> bool:
        """Whether a cluster's API server accepts connections."""
        return self._listeners[cluster].is_listening

    async def aclose(self) -> None:
        """Stop all, and give their ports back."""
        await asyncio.gather(*(listener.aclose() for listener in self._listeners.values()))

    def kubeconfig(
        self, token: str | Mapping[str, str] | None = None, *, user: User | None = None
    ) -> dict[str, Any]:
        """A kubeconfig with a context per cluster, named after it; the first is current.

        Clients show tokens and certificates over HTTPS only.

        Args:
            token: The bearer token to show everywhere, or those of the clusters by name.
            user: Instead of tokens, each cluster issues a client certificate to this user.

        Raises:
            ValueError: A user without HTTPS.
        """
        if user is not None and self._authority is None:
            raise ValueError("client certificates need serve(tls=True)")
        proofs = {
            name: token_proof(token if token is None or isinstance(token, str) else token.get(name))
            if user is None
            else certificate_proof(cluster.credentials.issue_certificate(user.name, user.groups))
            for name, cluster in self.clusters.items()
        }
        return kubeconfig_of({name: self.url(name) for name in proofs}, self._authority, proofs)

    def write_kubeconfig(
        self,
        path: Path | str,
        token: str | Mapping[str, str] | None = None,
        *,
        user: User | None = None,
    ) -> None:
        """Write the kubeconfig, readable only for its owner; see `kubeconfig`."""
        path = Path(path)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.kubeconfig(token, user=user), sort_keys=False))


@asynccontextmanager
async def serve(
    clusters: Iterable[Cluster],
    *,
    host: str = LOOPBACK,
    ports: Sequence[int] = (),
    tls: bool | Collection[str] = False,
) -> AsyncGenerator[ApiServers, None]:
    """Serve clusters over HTTP while the context lasts.

    Args:
        clusters: One listener each.
        host: The address to bind.
        ports: A port for each of the first clusters; the others take free ones.
        tls: Serve HTTPS, with a certificate authority that the kubeconfig carries; names are those
            of the clusters that do. Clients may show a certificate that their cluster issued.

    Raises:
        ValueError: Two clusters have the same name.
    """
    clusters = list(clusters)
    _check_names(clusters)
    context, authority = _certificates(host, clusters) if tls else (None, None)
    secured = {cluster.name for cluster in clusters} if isinstance(tls, bool) else tls
    for cluster in clusters:
        cluster.trust = authority.decode() if authority and cluster.name in secured else ""
    listeners = [
        Listener(
            cluster,
            host=host,
            port=port,
            ssl_context=context if cluster.name in secured else None,
        )
        for cluster, port in zip(clusters, chain(ports, repeat(0)), strict=False)
    ]
    servers = ApiServers(listeners, authority)
    try:
        for listener in listeners:
            await listener.start()
        yield servers
    finally:
        await servers.aclose()


def _check_names(clusters: Iterable[Cluster]) -> None:
    duplicates = [
        name for name, n in Counter(cluster.name for cluster in clusters).items() if n > 1
    ]
    if duplicates:
        raise ValueError(f"more than one cluster is called {', '.join(duplicates)}")


def _certificates(host: str, clusters: Iterable[Cluster]) -> tuple[ssl.SSLContext, bytes]:
    """The servers' TLS context and the authority that signed their certificate.

    All clusters ask for the certificates of each, so that one of another cluster is refused by the
    authentication (401), as by a real server, and not by OpenSSL.
    """
    authority = Authority("servers")
    context = authority.server_context(*dict.fromkeys((host, LOOPBACK, "localhost")))
    secured = [cluster.credentials.authority for cluster in clusters if not cluster.is_open]
    ask_for_clients(context, secured)
    return context, authority.pem


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
        authority: The PEM of whom to trust, for servers of HTTPS; None if there are none.
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
        "clusters": [
            {"name": n, "cluster": {"server": url, **(trust if _is_secure(url) else {})}}
            for n, url in urls.items()
        ],
        "contexts": [
            {"name": n, "context": {"cluster": n, "user": user, "namespace": "default"}}
            for n, user in users.items()
        ],
        "users": [{"name": name, "user": proof} for name, proof in distinct.items()],
    }


def _is_secure(url: str) -> bool:
    return url.startswith("https://")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
