"""A plain HTTP client of a Kubernetes API: lists in pages, watches, and resumes as an informer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from faults.queries.clients.recording import ClientRecord
from faults.queries.objects import version_of
from faults.rig.load import PAGE_SIZE

BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""A line or an answer that is not whole is a broken connection, too."""
_WATCH_SECONDS: Final = (10, 40)
_AGAIN_SECONDS: Final = (0.05, 0.5)
_CONNECT_SECONDS: Final = 5.0


class RefusedError(Exception):
    """The status is neither 200 nor 410."""


def session() -> aiohttp.ClientSession:
    """A session whose answers may take as long as they like, as those of watches do."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    return aiohttp.ClientSession(timeout=timeout)


async def split_stream(response: aiohttp.ClientResponse, end: bytes) -> AsyncGenerator[bytes]:
    """Yield the parts of an answer as they come; a last one without its end is left out."""
    remainder = b""
    async for chunk in response.content.iter_any():
        *parts, remainder = (remainder + chunk).split(end)
        for line in parts:
            yield line


class KubeClient:
    """Goes to the other query API after each end, with the version that it has.

    Args:
        record: takes what it gets.
        urls: of the query APIs.
        random: chooses how long a watch lasts, and how soon the next begins.
    """

    def __init__(self, *, record: ClientRecord, urls: Sequence[str], random: Random) -> None:
        self._record = record
        self._random = random
        self._urls = [f"{url}/kube/{record.plan.place}/api/v1/configmaps" for url in urls]
        self._selected = {"labelSelector": record.plan.selector} if record.plan.selector else {}
        self._version: int | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        async with session() as http:
            while True:
                try:
                    await self._turn(http)
                except RefusedError as e:
                    self._record.note("refused", status=e.args[0])
                except BROKEN as e:
                    self._record.note("end", why=str(e) or type(e).__name__)
                self._urls.append(self._urls.pop(0))
                await asyncio.sleep(self._random.uniform(*_AGAIN_SECONDS))

    async def _turn(self, http: aiohttp.ClientSession) -> None:
        if self._version is None:
            await self._list(http)
        await self._watch(http)

    async def _list(self, http: aiohttp.ClientSession) -> None:
        trees: list[dict[str, Any]] = []
        query = {"limit": str(PAGE_SIZE), **self._selected}
        while True:
            async with http.get(self._urls[0], params=query) as answer:
                if answer.status != HTTPStatus.OK:
                    raise RefusedError(answer.status)
                page = orjson.loads(await answer.read())
            trees += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        self._version = int(page["metadata"]["resourceVersion"])
        self._record.listed(trees, self._version)

    async def _watch(self, http: aiohttp.ClientSession) -> None:
        query = {
            "watch": "true",
            "resourceVersion": str(self._version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._random.randint(*_WATCH_SECONDS)),
            **self._selected,
        }
        async with http.get(self._urls[0], params=query) as answer:
            if answer.status == HTTPStatus.GONE:
                self._expire()
                return
            if answer.status != HTTPStatus.OK:
                raise RefusedError(answer.status)
            self._record.note("open", version=self._version)
            async for line in split_stream(answer, b"\n"):
                self._take(orjson.loads(line))
        self._record.note("end", why="closed")

    def _take(self, event: dict[str, Any]) -> None:
        kind, tree = event["type"], event["object"]
        if kind == "ERROR":
            if tree.get("code") == HTTPStatus.GONE:
                self._expire()
            else:
                self._record.note("refused", status=tree.get("code"))
            return
        self._version = version_of(tree)
        if kind == "BOOKMARK":
            self._record.note("bookmark", version=self._version)
        else:
            self._record.event(kind, tree)

    def _expire(self) -> None:
        self._version = None
        self._record.note("gone")
