"""A client of the HTTP servers that tests start; they speak no TLS."""

from __future__ import annotations

import ssl
from typing import Any, Final

import httpx

# httpx reads the system's certificates for each client that is given none: 40 ms a test.
_TRUSTS_NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def http_client(base_url: str = "", **options: Any) -> httpx.AsyncClient:
    """An `httpx.AsyncClient` that could verify no certificate, and so costs nothing to make."""
    return httpx.AsyncClient(base_url=base_url, verify=_TRUSTS_NOBODY, **options)
