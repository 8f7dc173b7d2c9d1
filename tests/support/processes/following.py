"""A command that goes on, such as a watch, and what it prints line by line."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path


class Following:
    """A command that goes on, and the rows that it has not shown yet."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            return (await self.process.stdout.readline()).decode()

    async def row(self) -> list[str]:
        """The next line, as words."""
        return (await self.line()).split()

    async def end(self) -> tuple[int, str]:
        """Interrupt it; its exit status, and what it warned of."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        errors = (await self.process.stderr.read()).decode()
        return await self.process.wait(), errors


@asynccontextmanager
async def following(url: str, home: Path, command: Sequence[str]) -> AsyncGenerator[Following]:
    """Run a command before a query API; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "FLEETBUS_API_URL": url, "HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Following(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
