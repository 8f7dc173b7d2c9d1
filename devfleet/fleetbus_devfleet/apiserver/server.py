"""The HTTP side: one listener per cluster, all in one event loop.

aiohttp's low-level server is enough: a cluster does its own routing, and the transport is at hand
for what faults need (breaking a connection in the midst of an answer).
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import ssl
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import trustme
import yaml
from aiohttp import ClientConnectionResetError, web

from fleetbus_devfleet.apiserver.errors import ApiError
from fleetbus_devfleet.apiserver.exchange import BODY_LIMIT, JSON, Request, Response, refusal
from fleetbus_devfleet.apiserver.faults import Abort, Delay, Hang
from fleetbus_devfleet.apiserver.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from pathlib import Path

    from fleetbus_devfleet.apiserver.cluster import Cluster
    from fleetbus_devfleet.apiserver.faults import Rule

LOOPBACK = "127.0.0.1"
GZIP_FROM = 128 * 1024
GZIP_LEVEL = 1
NEVER_ANSWERED = 0
NO_CACHE = "no-cache, private"
TOO_LARGE = f"Request entity too large: limit is {BODY_LIMIT}"


class Listener:
    """The listener of one cluster.

    Args:
        cluster: Answers the requests.
        host: The address to bind.
        port: The port; 0 takes a free one, which is kept over stop and start.
        ssl_context: Serve HTTPS; None serves HTTP.
    """

    def __init__(
        self, cluster: Cluster, *, host: str, port: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        self.cluster = cluster
        self.port = port
        self._host = host
        self._ssl = ssl_context
        self._runner: web.ServerRunner | None = None
        self._connections: set[asyncio.Transport] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        scheme = "https" if self._ssl else "http"
        return f"{scheme}://{self._host}:{self.port}"

    async def start(self) -> None:
        """Begin to listen; does nothing while listening."""
        if self._runner is not None:
            return
        server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
        )
        runner = web.ServerRunner(server, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(
            runner, self._host, self.port, ssl_context=self._ssl, reuse_address=True, backlog=1024
        )
        await site.start()
        self.port = int(runner.addresses[0][1])
        self._runner = runner

    async def stop(self) -> None:
        """Refuse connections and break the open ones, watches first."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self.cluster.close_watches()
        for site in list(runner.sites):
            await site.stop()
        for transport in tuple(self._connections):
            transport.abort()
        await runner.cleanup()

    # one request --------------------------------------------------------------------------------

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        transport = http.transport
        if transport is None:
            raise ConnectionResetError
        self._connections.add(transport)
        try:
            return await self._exchange(http)
        finally:
            self._connections.discard(transport)

    async def _exchange(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await http.read()
        except web.HTTPRequestEntityTooLarge:
            answer = refusal(ApiError(413, "RequestEntityTooLarge", TOO_LARGE))
            return _plain(http, answer)
        request = Request(
            method=http.method,
            path=unquote(http.rel_url.raw_path) if "%" in http.rel_url.raw_path else http.path,
            query=http.query,
            headers={name.lower(): value for name, value in http.headers.items()},
            body=body,
        )
        rules = self.cluster.strike(request)
        await self._misbehave(http, request, rules)
        answer = self.cluster.handle(request, rules)
        if any(isinstance(rule.action, Abort) for rule in rules):
            if isinstance(answer, Watch):
                self.cluster.release(answer)
            _break(http)
        if isinstance(answer, Watch):
            return await self._stream(http, answer)
        if answer.delay:
            await asyncio.sleep(answer.delay.total_seconds())
        return _plain(http, answer)

    async def _misbehave(
        self, http: web.BaseRequest, request: Request, rules: Sequence[Rule]
    ) -> None:
        for rule in rules:
            action = rule.action
            if isinstance(action, Delay):
                await asyncio.sleep(action.duration.total_seconds())
            elif isinstance(action, Hang):
                self.cluster.log(request, NEVER_ANSWERED)
                await asyncio.Event().wait()  # until the client gives up or the server stops
            elif isinstance(action, Abort) and not action.after_commit:
                self.cluster.log(request, NEVER_ANSWERED)
                _break(http)

    async def _stream(self, http: web.BaseRequest, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": NO_CACHE})
        response.enable_chunked_encoding()
        try:
            await response.prepare(http)
            while True:
                data = watch.read()
                if data:
                    await response.write(data)
                if watch.broken:
                    _break(http)
                if watch.ended:
                    break
                if not data:
                    await watch.wait()
            await response.write_eof()
        except ClientConnectionResetError:
            pass  # the client has gone; that is how most watches end
        finally:
            self.cluster.release(watch)
        return response


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT + 1
    )


def _break(http: web.BaseRequest) -> None:
    """Reset the connection; what was written before still goes out."""
    transport = http.transport
    if transport is not None:
        transport.close()
    raise ConnectionResetError


def _plain(http: web.BaseRequest, answer: Response) -> web.Response:
    headers = {
        "Audit-Id": str(uuid.uuid4()),
        "Cache-Control": NO_CACHE,
        "Content-Type": answer.content_type,
        **answer.headers,
    }
    body = answer.body
    if len(body) >= GZIP_FROM and "gzip" in http.headers.get("Accept-Encoding", ""):
        body = gzip.compress(body, compresslevel=GZIP_LEVEL)
        headers["Content-Encoding"] = "gzip"
    return web.Response(status=answer.status, body=body, headers=headers)


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
