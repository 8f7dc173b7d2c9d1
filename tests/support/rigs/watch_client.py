"""A client of a watch: reads its stream beside the test."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx


@dataclass
class WatchClient:
    """The events so far."""

    status: int = 0
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    has_ended: bool = False

    @property
    def seen(self) -> list[str]:
        """`<TYPE> <name>` of each event."""
        return [f"{one['type']} {one['object']['metadata'].get('name', '')}" for one in self.events]

    @property
    def versions(self) -> list[int]:
        """The resourceVersions of the events."""
        return [int(one["object"]["metadata"]["resourceVersion"]) for one in self.events]

    @property
    def error(self) -> dict[str, Any]:
        """The Status with which it ended; empty without one."""
        errors = [one for one in self.events[-1:] if one["type"] == "ERROR"]
        return errors[0]["object"] if errors else {}

    async def has(self, *seen: str) -> None:
        """Wait until exactly this was seen."""
        await eventually(lambda: len(self.events) >= len(seen))
        assert self.seen == list(seen)

    async def ended(self) -> None:
        await eventually(lambda: self.has_ended)


@asynccontextmanager
async def watching(
    client: httpx.AsyncClient, path: str, *, token: str = "", **query: Any
) -> AsyncGenerator[WatchClient]:
    """Watch with a Kubernetes client's parameters until the block ends."""
    found = WatchClient()
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def read() -> None:
        async with client.stream(
            "GET", path, params={"watch": "1", **query}, headers=headers, timeout=None
        ) as response:
            found.status = response.status_code
            async for line in response.aiter_lines():
                found.events.append(json.loads(line))
        found.has_ended = True

    reading = asyncio.create_task(read())
    try:
        await eventually(lambda: found.status or reading.done())
        if reading.done():
            reading.result()
        yield found
    finally:
        reading.cancel()
        await asyncio.wait([reading])
