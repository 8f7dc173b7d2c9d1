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
        return [
            f"{event['type']} {event['object']['metadata'].get('name', '')}"
            for event in self.events
        ]

    @property
    def versions(self) -> list[int]:
        """The resourceVersions of the events."""
        return [int(event["object"]["metadata"]["resourceVersion"]) for event in self.events]

    @property
    def error(self) -> dict[str, Any]:
        """The Status with which it ended; empty without one."""
        errors = [event for event in self.events[-1:] if event["type"] == "ERROR"]
        return errors[0]["object"] if errors else {}

    async def has(self, *lines: str) -> None:
        """Wait until exactly this was seen."""
        await eventually(lambda: len(self.events) >= len(lines))
        assert self.seen == list(lines)

    async def ended(self) -> None:
        await eventually(lambda: self.has_ended)


@asynccontextmanager
async def watching(
    client: httpx.AsyncClient, path: str, *, token: str = "", **query: Any
) -> AsyncGenerator[WatchClient]:
    """Watch with a Kubernetes client's parameters until the block ends."""
    stream = WatchClient()
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def read() -> None:
        async with client.stream(
            "GET", path, params={"watch": "1", **query}, headers=headers, timeout=None
        ) as response:
            stream.status = response.status_code
            async for line in response.aiter_lines():
                stream.events.append(json.loads(line))
        stream.has_ended = True

    reading = asyncio.create_task(read())
    try:
        await eventually(lambda: stream.status or reading.done())
        if reading.done():
            reading.result()
        yield stream
    finally:
        reading.cancel()
        await asyncio.wait([reading])
