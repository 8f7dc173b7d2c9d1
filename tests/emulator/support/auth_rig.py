"""Emulated clusters over HTTPS whose users have to prove who they are."""

from __future__ import annotations

import base64
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx

from fleetbus_emulator.apiserver import ApiServers, ClientCertificate, Cluster, serve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

JsonObject = dict[str, Any]
PATIENCE = timedelta(seconds=10).total_seconds()
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
AUTHENTICATION = "/apis/authentication.k8s.io/v1"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io/v1"


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


class Secured:
    """Served clusters, and clients for them."""

    def __init__(self, servers: ApiServers, folder: Path, exits: AsyncExitStack) -> None:
        self.servers = servers
        self._folder = folder
        self._exits = exits

    @property
    def cluster(self) -> Cluster:
        """The first one."""
        return next(iter(self.servers.clusters.values()))

    def trusting(self, certificate: ClientCertificate | None = None) -> ssl.SSLContext:
        """The TLS side of a client as Python 3.13 and later make it: strict."""
        entry = self.servers.kubeconfig()["clusters"][0]["cluster"]
        authority = base64.b64decode(entry["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        if certificate is not None:
            path = self._folder / "client.pem"
            path.write_bytes(certificate.certificate + certificate.key)
            context.load_cert_chain(path)
        return context

    def client(
        self,
        token: str | None = None,
        *,
        cluster: str | None = None,
        certificate: ClientCertificate | None = None,
    ) -> httpx.AsyncClient:
        """A client of a cluster that shows what is given."""
        client = httpx.AsyncClient(
            base_url=self.servers.url(cluster or self.cluster.name),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            verify=self.trusting(certificate),
            timeout=PATIENCE,
        )
        self._exits.push_async_callback(client.aclose)
        return client


@asynccontextmanager
async def secured(folder: Path, *clusters: Cluster) -> AsyncGenerator[Secured]:
    """Serve clusters over HTTPS."""
    async with AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve(clusters, tls=True))
        yield Secured(servers, folder, exits)


async def whoami(client: httpx.AsyncClient, **headers: str) -> JsonObject:
    """The UserInfo that the server has of a client."""
    reply = await client.post(f"{AUTHENTICATION}/selfsubjectreviews", json={}, headers=headers)
    assert reply.status_code == 201, reply.text
    info: JsonObject = reply.json()["status"]["userInfo"]
    return info


async def review_token(client: httpx.AsyncClient, token: str, *audiences: str) -> JsonObject:
    """The status of a TokenReview."""
    spec = {"token": token, "audiences": list(audiences)}
    reply = await client.post(f"{AUTHENTICATION}/tokenreviews", json={"spec": spec})
    assert reply.status_code == 201, reply.text
    status: JsonObject = reply.json()["status"]
    return status
