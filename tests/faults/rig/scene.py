"""The scene of a campaign: the fleet and the random generator that every fault shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from faults.rig.fleet import Fleet

AnyFleet = TypeVar("AnyFleet", bound=Fleet)


@dataclass
class BaseScene(Generic[AnyFleet]):
    """The fleet's processes and the seeded random generator."""

    fleet: AnyFleet
    random: Random

    async def pause(self, least: float, most: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(self.random.uniform(least, most))

    @asynccontextmanager
    async def noted(self, kind: str, **more: Any) -> AsyncGenerator[None]:
        """Note when a fault began and when it was over, however it ends."""
        self.fleet.note("fault", fault=kind, phase="begin", **more)
        try:
            yield
        finally:
            self.fleet.note("fault", fault=kind, phase="end", **more)
