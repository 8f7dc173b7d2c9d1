"""Sends the files of the page: each under a path of its own, compressed once.

The paths of scripts and styles contain a digest of all of them, so that browsers keep them for
good, and a new release is a new path. The documents, which name those paths, are always asked for
anew. They hold no data, so they take no token.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Self

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

DOCUMENTS: Final = ("/", "/search", "/object", "/changes", "/live", "/queues", "/rollouts")
"""The addresses of the views: one document, which reads its own address."""
_PREFIX: Final = "/page/"
_DIGEST: Final = 8
_DOCUMENT: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
PROTECTION: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of each file: no script but ours, no other site, no frame around it."""
_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASKED_AGAIN: Final = "no-cache"
_PACKING: Final = "gzip"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent.

    Attributes:
        packed: the same, compressed with gzip.
        etag: of the bytes, with quotes.
        caching: the value of Cache-Control.
    """

    body: bytes
    packed: bytes
    media_type: str
    etag: str
    caching: str

    @classmethod
    def of(cls, name: str, body: bytes, caching: str) -> Self:
        """Compress a file; its type is that of the ending of its name."""
        ending = name[name.rindex(".") :]
        packed = gzip.compress(body, mtime=0)
        return cls(body, packed, _TYPES[ending], f'"{_digest(body)}"', caching)


@dataclass(frozen=True, slots=True)
class PageFiles:
    """All files of the page, by path."""

    by_path: Mapping[str, PageFile]

    @classmethod
    def load(cls) -> Self:
        """Read the files of this package.

        Raises:
            OSError: one cannot be read; the installation is broken.
        """
        contents = dict(sorted(_walk(files("fleetbus_query_api.page") / "static", "")))
        document = contents.pop(_DOCUMENT).decode()
        all_bytes = b"\0".join(name.encode() + b"\0" + body for name, body in contents.items())
        folder = f"{_PREFIX}{_digest(all_bytes)}/"
        index = _fill(document, folder, contents).encode()
        shell = PageFile.of(_DOCUMENT, index, _ASKED_AGAIN)
        served = {
            folder + name: PageFile.of(name, body, _FOR_GOOD) for name, body in contents.items()
        }
        return cls(dict.fromkeys(DOCUMENTS, shell) | served)


def _fill(document: str, folder: str, contents: Mapping[str, bytes]) -> str:
    """The document with the paths of its files; every module is named, so all are loaded at once.

    Without that a browser finds each module only when it has read the one that imports it.
    """
    modules = "\n".join(
        f'<link rel="modulepreload" href="{html.escape(folder + name)}">'
        for name in contents
        if name.endswith(".js")
    )
    return document.replace("{folder}", folder).replace("{modules}", modules)


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{path}{entry.name}/")
        elif any(entry.name.endswith(ending) for ending in _TYPES):
            yield path + entry.name, entry.read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


class Page:
    """An ASGI middleware that answers requests for the page.

    It stands before authentication and answers exactly the paths of its files by itself; nothing is
    let through, so no other path can become open by a mistake here (rule A1).

    Args:
        app: the application behind it, which answers everything else.
        files: of the page.
    """

    def __init__(self, app: ASGIApp, files: PageFiles) -> None:
        self._app = app
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a file, or pass the request on."""
        file = self._files.by_path.get(scope["path"]) if scope["type"] == "http" else None
        if file is None or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        await _answer(file, scope)(scope, receive, send)


def _answer(file: PageFile, scope: Scope) -> Response:
    headers = {
        **PROTECTION,
        "Cache-Control": file.caching,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    etags = {
        etag.strip().removeprefix("W/") for etag in _header(scope, b"if-none-match").split(",")
    }
    if file.etag in etags:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if not _takes_gzip(_header(scope, b"accept-encoding")):
        return Response(file.body, headers=headers, media_type=file.media_type)
    headers["Content-Encoding"] = _PACKING
    return Response(file.packed, headers=headers, media_type=file.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether a client takes gzip; it may refuse it with `q=0`."""
    for coding in accepted.lower().split(","):
        name, _, weight = coding.replace(" ", "").partition(";q=")
        if name == _PACKING:
            return weight.strip("0.") != "" or not weight
    return False


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
