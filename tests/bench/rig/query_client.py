"""A client of the query API, and of API servers, that costs as little as one in Python can."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from bench.rig.realistic_pods import name_of, namespace_of

_CONTINUE: Final = re.compile(rb'"continue": ?"([^"]*)"')
_HEAD: Final = 4096
"""Bytes that hold the token of an API server's list; ours is behind the items."""


class Client:
    """One connection that is kept."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=120
        )

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, **headers: str) -> bytes:
        """The body of an answer 200."""
        status, body = self.ask(path, **headers)
        if status != 200:
            raise RuntimeError(f"{path} answers {status}: {body[:500]!r}")
        return body

    def ask(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body."""
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def pages(self, path: str) -> Iterator[bytes]:
        """All pages of a list."""
        token = ""
        while True:
            body = self.get(f"{path}&continue={token}" if token else path)
            yield body
            token = _token_of(body)
            if not token:
                return


def _token_of(body: bytes) -> str:
    behind = max(body.rfind(b'"continue"'), 0)
    match = _CONTINUE.search(body[:_HEAD]) or _CONTINUE.match(body[behind : behind + _HEAD])
    return quote(match[1].decode()) if match else ""


def path_of_one(index: int, clusters: int) -> str:
    """The path of a pod in the query API."""
    place = f"cluster-{index % clusters:03d}/pods/{namespace_of(index)}/{name_of(index)}"
    return f"/fleet/v1/objects/{place}"


def path_of_list(**parameters: Any) -> str:
    """The path of a list of pods in the query API."""
    return "/fleet/v1/resources/pods?" + query(**parameters)


def query(**parameters: Any) -> str:
    """Encode parameters."""
    return "&".join(f"{name}={quote(str(value))}" for name, value in parameters.items())
