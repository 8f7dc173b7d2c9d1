"""The few requests of a kubelet."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import yaml

from support.api.conformance_server import from_kubeconfig

Object = dict[str, Any]
_NOT_FOUND, _CONFLICT = 404, 409
_STRATEGIC = "application/strategic-merge-patch+json"


class Api:
    """One API server, with the rights of the kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        server = from_kubeconfig(kubeconfig)
        self.authority = _authority(kubeconfig)
        self.host, self.port = cast("tuple[str, int]", _place(server.url))
        self._http = httpx.AsyncClient(
            base_url=server.url, headers=server.headers, verify=server.verify, timeout=20
        )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def list(self, path: str, **query: str) -> list[Object]:
        """The objects of a collection."""
        return (await self._do("GET", path, params=query))["items"]

    async def get(self, path: str) -> Object | None:
        """An object; None if there is none."""
        reply = await self._http.get(path)
        return None if reply.status_code == _NOT_FOUND else _body(reply)

    async def post(self, path: str, body: Object) -> Object:
        """Create."""
        return await self._do("POST", path, json=body)

    async def patch(self, path: str, body: Object) -> Object:
        """Strategic merge patch."""
        return await self._do("PATCH", path, json=body, headers={"Content-Type": _STRATEGIC})

    async def delete(self, path: str, **options: Any) -> None:
        """Delete; nothing happens if it is gone."""
        reply = await self._http.request("DELETE", path, json=options)
        if reply.status_code not in (_NOT_FOUND, _CONFLICT):
            _body(reply)

    async def _do(self, method: str, path: str, **request: Any) -> Object:
        return _body(await self._http.request(method, path, **request))


def _body(reply: httpx.Response) -> Object:
    if reply.is_error:
        raise httpx.HTTPStatusError(reply.text, request=reply.request, response=reply)
    return reply.json()


def _place(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def _authority(kubeconfig: Path) -> str:
    """The CA of the API server, as PEM."""
    (entry, *_) = yaml.load(kubeconfig.read_text(), yaml.CSafeLoader)["clusters"]
    return base64.b64decode(entry["cluster"].get("certificate-authority-data", "")).decode()
