"""A client of server-sent events that does what a browser does: it resumes with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from faults.queries.clients.kube import BROKEN, RefusedError, session, split_stream
from faults.queries.clients.recording import ClientRecord
from faults.queries.settings import FLEET

_AGAIN_SECONDS: Final = (0.05, 0.5)
_CHANGES: Final = frozenset({"added", "modified", "deleted"})


class EventClient:
    """Begins with the present state; goes to the other query API after each end.

    Args:
        record: takes what it gets.
        urls: of the query APIs.
        random: chooses how soon the next stream begins.
    """

    def __init__(self, *, record: ClientRecord, urls: Sequence[str], random: Random) -> None:
        self._record = record
        self._random = random
        self._urls = [f"{url}/fleet/v1/events" for url in urls]
        self._query = {"resource": "configmaps", "resourceVersion": "0"}
        if record.plan.selector:
            self._query["labelSelector"] = record.plan.selector
        if record.plan.place != FLEET:
            self._query["cluster"] = record.plan.place
        self._last_id = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        async with session() as http:
            while True:
                try:
                    await self._stream(http)
                except RefusedError as e:
                    self._record.note("refused", status=e.args[0])
                except BROKEN as e:
                    self._record.note("end", why=str(e) or type(e).__name__)
                self._urls.append(self._urls.pop(0))
                await asyncio.sleep(self._random.uniform(*_AGAIN_SECONDS))

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        async with http.get(self._urls[0], params=self._query, headers=headers) as answer:
            if answer.status == HTTPStatus.GONE:
                self._expire()
                return
            if answer.status != HTTPStatus.OK:
                raise RefusedError(answer.status)
            if not self._last_id:
                self._record.begin()
            self._record.note("open", version=int(self._last_id or 0))
            async for block in split_stream(answer, b"\n\n"):
                self._take(_fields_of(block))
        self._record.note("end", why="closed")

    def _take(self, fields: dict[str, str]) -> None:
        kind = fields.get("event", "")
        if "id" in fields:
            self._last_id = fields["id"]
        content: dict[str, Any] = orjson.loads(fields["data"]) if "data" in fields else {}
        if kind in _CHANGES:
            version = int(fields.get("id") or 0)
            # Of some deletions nothing is left but the name.
            tree = content["object"] or {
                "metadata": {"name": content["name"], "namespace": content["namespace"]}
            }
            self._record.event(kind.upper(), tree, cluster=content["cluster"], version=version)
        elif kind == "bookmark":
            self._record.note("bookmark", version=int(fields["id"]))
        elif kind == "error":
            if content["status"] == HTTPStatus.GONE:
                self._expire()
            else:
                self._record.note("refused", status=content["status"])

    def _expire(self) -> None:
        self._last_id = ""
        self._record.note("gone")


def _fields_of(block: bytes) -> dict[str, str]:
    """The fields of one event; a comment has none."""
    lines = [line.partition(": ") for line in block.decode().splitlines() if line[:1] != ":"]
    return {name: value for name, _, value in lines}
