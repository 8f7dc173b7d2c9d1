"""One listener: requests in, answers out, and the faults of connections.

aiohttp's low-level server is enough: a cluster does its own routing, and the transport is at hand
for what faults need (breaking a connection in the midst of an answer).
"""

from __future__ import annotations

import asyncio
import uuid
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import ClientConnectionResetError, HttpVersion11, web

from fleetbus_emulator.apiserver.errors import ApiError
from fleetbus_emulator.apiserver.faults.connections import (
    break_off,
    delay_or_abort,
    pieces,
    send_with_faults,
)
from fleetbus_emulator.apiserver.http.exchange import BODY_LIMIT, JSON, Request, Response, refusal
from fleetbus_emulator.apiserver.http.partition import Link
from fleetbus_emulator.apiserver.read.watch import Watch
from fleetbus_emulator.ports import HeldPort

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from fleetbus_emulator.apiserver.cluster import Cluster
    from fleetbus_emulator.apiserver.faults import Rule

GZIP_FROM = 128 * 1024
GZIP_LEVEL = 1
GZIP_FORMAT = 31  # what zlib calls the largest window in a gzip envelope
GZIP_PIECE = 256 * 1024  # a millisecond
LONGEST_LINE = 64 * 1024  # bytes; selectors may be long, and the log of requests keeps them
NEVER_ANSWERED = 0
SECONDS_TO_END = 0.05  # for handlers whose connection is broken already; 0 would wait without end
NO_CACHE = "no-cache, private"
TOO_LARGE = f"Request entity too large: limit is {BODY_LIMIT}"


class _Server(web.Server):
    """A server that can break its connections, and those that are only being made.

    When it stops, a client may be in the midst of a TLS handshake, or not be accepted yet by the
    loop. aiohttp would serve him afterwards, or wait for him for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[web.RequestHandler, asyncio.Transport] = {}
        self._has_stopped = False

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if self._has_stopped:
            transport.abort()

    def connection_lost(
        self,
        handler: web.RequestHandler,
        exc: BaseException | None = None,
    ) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)

    def abort_connections(self) -> None:
        """Break all, and from now on each at once."""
        self._has_stopped = True
        for transport in self._open.values():
            transport.abort()


class Listener:
    """The listener of one cluster.

    Args:
        cluster: Answers the requests.
        host: The address to bind.
        port: The port; 0 takes a free one. Nobody else gets it over stop and start.
        ssl_context: Serve HTTPS; None serves HTTP.

    Attributes:
        link: The way between the clients and the cluster.
    """

    def __init__(
        self, cluster: Cluster, *, host: str, port: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        self.cluster = cluster
        self.port = port
        self.link = Link()
        self._host = host
        self._ssl = ssl_context
        self._held: HeldPort | None = None
        self._running: tuple[_Server, web.ServerRunner] | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        scheme = "https" if self._ssl else "http"
        return f"{scheme}://{self._host}:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return self._running is not None

    async def start(self) -> None:
        """Begin to listen; does nothing while listening."""
        if self._running is not None:
            return
        if self._held is None:
            self._held = HeldPort(self._host, self.port)
            self.port = self._held.number
        server = _Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # Kubernetes takes bodies as they come
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )
        runner = web.ServerRunner(server, shutdown_timeout=SECONDS_TO_END)
        await runner.setup()
        site = web.TCPSite(
            runner, self._host, self.port, ssl_context=self._ssl, reuse_address=True, backlog=1024
        )
        await site.start()
        self._running = server, runner

    async def stop(self) -> None:
        """Refuse connections and break the open ones, watches first."""
        running, self._running = self._running, None
        if running is None:
            return
        server, runner = running
        self.cluster.close_watches()
        for site in list(runner.sites):
            await site.stop()
        server.abort_connections()
        await runner.cleanup()

    async def aclose(self) -> None:
        """Stop, and give the port back."""
        await self.stop()
        if self._held is not None:
            self._held.release()
            self._held = None

    # one request --------------------------------------------------------------------------------

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._exchange(http)
        except ConnectionError:
            return (
                web.Response()
            )  # it is not delivered: a fault closed the connection, or the client did

    async def _exchange(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await http.read()
        except web.HTTPRequestEntityTooLarge:
            await self.link.carry_request()
            answer = refusal(ApiError(413, "RequestEntityTooLarge", TOO_LARGE))
            return await self._carried(http, answer)
        headers = {name.lower(): _text(value) for name, value in http.headers.items()}
        request = Request(
            method=http.method,
            path=unquote(http.rel_url.raw_path) if "%" in http.rel_url.raw_path else http.path,
            query=http.query,
            headers=headers,
            body=body,
            repeated=_repeated(http) if len(headers) < len(http.headers) else {},
            certificate=_certificate(http) if self._ssl else b"",
        )
        await self.link.carry_request()
        rules = self.cluster.match_faults(request)
        note = partial(self.cluster.log, request, NEVER_ANSWERED, rules)
        carry = self.link.carry_answer
        await delay_or_abort(http, rules, after_commit=False, unanswered=note, carry=carry)
        answer = self.cluster.handle(request, rules)
        if isinstance(answer, Watch):
            return await self._answer_watch(http, answer, rules)
        await delay_or_abort(http, rules, after_commit=True, unanswered=_noted_already, carry=carry)
        if answer.delay:
            await asyncio.sleep(answer.delay.total_seconds())
        plain = await self._carried(http, answer)
        return await send_with_faults(http, plain, rules, carry=carry) if rules else plain

    async def _carried(self, http: web.BaseRequest, answer: Response) -> web.Response:
        """The answer, when it gets through."""
        plain = await _plain(http, answer)
        await self.link.carry_answer()
        return plain

    async def _answer_watch(
        self, http: web.BaseRequest, watch: Watch, rules: Sequence[Rule]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": NO_CACHE})
        if http.version >= HttpVersion11:
            response.enable_chunked_encoding()
        try:
            carry = self.link.carry_answer
            await delay_or_abort(
                http, rules, after_commit=True, unanswered=_noted_already, carry=carry
            )
            await carry()
            await response.prepare(http)
            await self._stream(http, response, watch)
            await response.write_eof()
        except ClientConnectionResetError:
            pass  # the client has disconnected; that is how most watches end
        finally:
            self.cluster.release(watch)
        return response

    async def _stream(
        self, http: web.BaseRequest, response: web.StreamResponse, watch: Watch
    ) -> None:
        while True:
            data = watch.read()
            if data:
                await self._send(response, watch, data)
            if watch.broken or watch.ended:
                await self.link.carry_answer()
            if watch.broken:
                break_off(http, watch.broken)
            if watch.ended:
                return
            if not data:
                await watch.wait()

    async def _send(self, response: web.StreamResponse, watch: Watch, data: bytes) -> None:
        if self.link.partition is not None:
            await self.link.carry_answer()
        drip = watch.drip
        if drip is None:
            await response.write(data)
            return
        async for piece in pieces(data, drip, carry=self.link.carry_answer):
            await response.write(piece)


def _noted_already() -> None:
    """The request was handled, so it is in the log with its status."""


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT + 1
    )


def _text(value: str) -> str:
    """A header as a string that JSON can encode; invalid UTF-8 comes as surrogates."""
    if value.isascii():
        return value
    return value.encode(errors="surrogateescape").decode(errors="replace")


def _repeated(http: web.BaseRequest) -> dict[str, tuple[str, ...]]:
    """Every header that came more than once."""
    names = {name.lower() for name in http.headers}
    values = {name: tuple(map(_text, http.headers.getall(name))) for name in names}
    return {name: texts for name, texts in values.items() if len(texts) > 1}


def _certificate(http: web.BaseRequest) -> bytes:
    """The client's certificate from the TLS handshake, in DER form."""
    connection: ssl.SSLObject | None = http.get_extra_info("ssl_object")
    return (connection and connection.getpeercert(binary_form=True)) or b""


async def _plain(http: web.BaseRequest, answer: Response) -> web.Response:
    headers = {
        "Audit-Id": str(uuid.uuid4()),
        "Cache-Control": NO_CACHE,
        "Content-Type": answer.content_type,
        **answer.headers,
    }
    body = answer.body
    if len(body) >= GZIP_FROM and "gzip" in http.headers.get("Accept-Encoding", ""):
        body = await _compressed(body)
        headers["Content-Encoding"] = "gzip"
    return web.Response(status=answer.status, body=body, headers=headers)


async def _compressed(body: bytes) -> bytes:
    """The body in gzip form; the loop has its turn in between, because lists may be large."""
    compressor = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_FORMAT)
    pieces: list[bytes] = []
    view = memoryview(body)
    for begin in range(0, len(body), GZIP_PIECE):
        pieces.append(compressor.compress(view[begin : begin + GZIP_PIECE]))
        await asyncio.sleep(0)
    return b"".join([*pieces, compressor.flush()])
