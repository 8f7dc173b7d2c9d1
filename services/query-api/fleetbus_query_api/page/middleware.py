"""Sends the files of the page to whoever asks: they hold no data, so they take no token.

It stands before authentication and answers exactly the paths of these files by itself; nothing is
let through, so no other path can become open by a mistake here (rule A1).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.page.files import PROTECTION, PageFile, PageFiles

_PACKING: Final = "gzip"


class Page:
    """An ASGI middleware that answers requests for the page.

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
