"""Turns: so many may work at a time, and each by name only a part of them (rule A8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext


class Turns:
    """Bounds work in progress, for all together and for each of many by name.

    Whoever has more to do than others waits for turns of their own first, so that the turns of all
    are never taken by one.

    Args:
        each: how many of one name at a time.
        total: how many of all; None for no bound, so that no name waits for another.
    """

    def __init__(self, *, each: int, total: int | None = None) -> None:
        self._total = nullcontext() if total is None else asyncio.Semaphore(total)
        self._each = each
        self._names: dict[str, tuple[asyncio.Semaphore, int]] = {}

    def __len__(self) -> int:
        """Number of names that have a turn, or wait for one."""
        return len(self._names)

    @asynccontextmanager
    async def take(self, name: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it."""
        turn, users = self._names.get(name) or (asyncio.Semaphore(self._each), 0)
        self._names[name] = (turn, users + 1)
        try:
            async with turn, self._total:
                yield
        finally:
            turn, users = self._names[name]
            if users > 1:
                self._names[name] = (turn, users - 1)
            else:
                del self._names[name]
