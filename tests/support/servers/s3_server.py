"""A small server that speaks S3, checks the signature of each request, and fails on demand.

It knows what an archive needs: PUT, GET with a range, HEAD, DELETE, the bulk deletion, and lists
with delimiter and pages of a few keys. Signatures (AWS Signature Version 4) are computed from the
documentation of S3, not with the library under test.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web

ACCESS_KEY: Final = "AKIAFLEETBUSTEST0001"
SECRET_KEY: Final = "canary-secret-of-the-bucket-7f3a"
BUCKET: Final = "events"
_PAGE: Final = 50
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


@dataclass
class S3Server:
    """A running server with one bucket.

    Attributes:
        url: its address.
        objects: the content of the bucket, by key.
        secrets: the secret key of each access key.
        refusals: what fails, by method: the status and the code of S3.
        requests: method and path of each request.
        unsigned: requests that were refused because of their signature.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    secrets: dict[str, str] = field(default_factory=lambda: {ACCESS_KEY: SECRET_KEY})
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    requests: list[str] = field(default_factory=list[str])
    unsigned: list[str] = field(default_factory=list[str])
    before_put: asyncio.Event | None = None
    """If set, a PUT waits for it before the object is stored …"""
    after_put: asyncio.Event | None = None
    """… or after that, before it is answered."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.read()
        self.requests.append(f"{request.method} {request.path}")
        problem = self._check_signature(request, body)
        if problem:
            self.unsigned.append(problem)
            return _error(403, problem)
        if request.method in self.refusals:
            return _error(*self.refusals[request.method])
        bucket, _, key = unquote(request.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
        return await self._methods()[request.method](request, key, body)

    def _methods(
        self,
    ) -> dict[str, Callable[[web.Request, str, bytes], Awaitable[web.StreamResponse]]]:
        return {
            "PUT": self._put,
            "GET": self._get,
            "HEAD": self._get,
            "DELETE": self._delete,
            "POST": self._delete_many,
        }

    async def _put(self, _request: web.Request, key: str, body: bytes) -> web.StreamResponse:
        if self.before_put is not None:
            await self.before_put.wait()
        self.objects[key] = body
        if self.after_put is not None:
            await self.after_put.wait()
        return web.Response(headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})  # noqa: S324

    async def _get(self, request: web.Request, key: str, _body: bytes) -> web.StreamResponse:
        if not key:
            return self._list(request)
        body = self.objects.get(key)
        if body is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": '"x"', "Last-Modified": "Sat, 28 Nov 2026 08:00:00 GMT"}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if match is None:
            return web.Response(body=body, headers=headers)
        first, last = int(match[1]), min(int(match[2]), len(body) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return web.Response(status=206, body=body[first : last + 1], headers=headers)

    def _list(self, request: web.Request) -> web.StreamResponse:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        after = request.query.get("continuation-token", request.query.get("start-after", ""))
        names = dict[str, bool]()  # and whether it stands for a folder
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            remainder = key[len(prefix) :]
            is_folder = bool(delimiter) and delimiter in remainder
            name = prefix + remainder.split(delimiter)[0] + delimiter if is_folder else key
            if name > after:
                names[name] = is_folder
        page = list(names.items())[:_PAGE]
        more = len(names) > len(page)
        token = (
            f"<NextContinuationToken>{escape(page[-1][0] if page else '')}</NextContinuationToken>"
        )
        return web.Response(
            content_type="application/xml",
            text="<ListBucketResult>"
            + "".join(self._entry(name, is_folder=folder) for name, folder in page)
            + f"<IsTruncated>{str(more).lower()}</IsTruncated>{token if more else ''}"
            + "</ListBucketResult>",
        )

    def _entry(self, name: str, *, is_folder: bool) -> str:
        if is_folder:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        return (
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[name])}</Size>"
            "<LastModified>2026-11-28T08:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
        )

    async def _delete(self, _request: web.Request, key: str, _body: bytes) -> web.StreamResponse:
        self.objects.pop(key, None)
        return web.Response(status=204)

    async def _delete_many(
        self, _request: web.Request, _key: str, body: bytes
    ) -> web.StreamResponse:
        keys = re.findall(r"<Key>([^<]+)</Key>", body.decode())
        for key in keys:
            self.objects.pop(key, None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        text = f"<DeleteResult>{gone}</DeleteResult>"
        return web.Response(content_type="application/xml", text=text)

    def _check_signature(self, request: web.Request, body: bytes) -> str:
        """The code of S3 for what is wrong with the signature; empty if nothing is."""
        match = _AUTHORIZATION.fullmatch(request.headers.get("Authorization", ""))
        if match is None:
            return "AccessDenied"
        access_key, day, region, signed, signature = match.groups()
        secret = self.secrets.get(access_key)
        if secret is None:
            return "InvalidAccessKeyId"
        payload = request.headers["x-amz-content-sha256"]
        if payload != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        expected = _signature(request, secret, (day, region), signed, payload)
        return "" if hmac.compare_digest(expected, signature) else "SignatureDoesNotMatch"


@asynccontextmanager
async def s3_server() -> AsyncGenerator[S3Server]:
    """Run a server on loopback until the block ends."""
    server = S3Server()
    app = web.Application(client_max_size=1024**3)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


def _signature(
    request: web.Request, secret: str, scope: tuple[str, str], signed: str, payload: str
) -> str:
    path, _, query = request.raw_path.partition("?")
    pairs = sorted(tuple(pair.partition("=")[::2]) for pair in query.split("&") if pair)
    canonical_query = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs)
    headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in signed.split(";"))
    canonical_path = quote(unquote(path), safe="/-_.~")
    parts = [request.method, canonical_path, canonical_query, headers, signed, payload]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    day, region = scope
    credential = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{credential}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _quoted(text: str) -> str:
    return quote(unquote(text), safe="-_.~")


def _error(status: int, code: str) -> web.Response:
    # As S3 does, the answer quotes what was sent: nothing of it may be shown or logged.
    text = f"<Error><Code>{code}</Code><Token-0>canary-token-in-the-answer</Token-0></Error>"
    return web.Response(status=status, content_type="application/xml", text=text)
