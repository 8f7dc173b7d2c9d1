"""A NATS that is too old: it sends its INFO, and answers nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

VERSION = "2.9.10"
_INFO = f'INFO {{"server_id":"S","version":"{VERSION}","proto":1,"max_payload":1048576}}\r\n'


@asynccontextmanager
async def old_nats(port: int = 0) -> AsyncGenerator[str]:
    """Listen until the block ends; yields the address."""
    ends: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add(writer)
        with contextlib.suppress(ConnectionError):
            writer.write(_INFO.encode())
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_address=True)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in ends:
            writer.close()
        await server.wait_closed()
