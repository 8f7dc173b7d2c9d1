"""Timed changes: from a write to an API server until it is known in three places."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from fleetbus.errors import FleetbusError
from fleetbus_devfleet.demo.census import NAMESPACE
from fleetbus_devfleet.demo.narrator import ClaimError
from fleetbus_devfleet.demo.stage import CONFIGMAPS, SOON, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_POLL = 0.001


@dataclass(frozen=True, slots=True)
class Latency:
    """The durations of a repeated operation."""

    name: str
    samples: tuple[float, ...]

    @property
    def median(self) -> timedelta:
        """Half of the samples took no longer."""
        return timedelta(seconds=statistics.median(self.samples))

    @property
    def worst(self) -> timedelta:
        """None took longer."""
        return timedelta(seconds=max(self.samples))


class Stopwatch:
    """Makes orders, one after the other, and times what each of them sets off.

    The clock starts before the write is sent, so the API server's own time is part of it.

    Args:
        stage: the running stack and its witness.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._witness = stage.witness

    async def time_orders(self, count: int) -> list[Latency]:
        """Make so many orders, in the member clusters in turn.

        Raises:
            ClaimError: one of them was not known in time.
        """
        members = self._stage.members
        times: list[tuple[float, float, float]] = []
        with self._stage.tell.console.status("") as status:
            for number in range(count):
                status.update(f"[dim]order {number + 1} of {count}[/]")
                times.append(await self._time(members[number % len(members)], f"timed-{number}"))
        places = (
            "its event is on NATS",
            "the query API has it",
            "the reconciler has written to the hub",
        )
        return [
            Latency(place, samples)
            for place, samples in zip(places, zip(*times, strict=True), strict=True)
        ]

    async def _time(self, cluster: str, name: str) -> tuple[float, float, float]:
        before = int((await self._stage.census()).get(f"{cluster}.orders", "0"))
        self._witness.events.clear()
        began = time.perf_counter()
        await self._stage.order(cluster, name)

        async def counted() -> bool:
            return (await self._stage.census()).get(f"{cluster}.orders") == str(before + 1)

        async def received() -> bool:
            return name in self._witness.seen("added", "configmaps", cluster)

        async def shown() -> bool:
            return await self._witness.api.has(cluster, CONFIGMAPS, NAMESPACE, name)

        _, showed, wrote = await asyncio.gather(
            _until(received, f"the event of order {name}"),
            _until(shown, f"order {name} in the query API"),
            _until(counted, f"order {name} in the census"),
        )
        arrived = next(event.at for event in self._witness.events if event.parts.name == name)
        return arrived - began, showed - began, wrote - began


async def _until(holds: Callable[[], Awaitable[bool]], subject: str) -> float:
    """Wait for something; returns when it was found to hold."""
    deadline = time.perf_counter() + SOON.total_seconds()
    while not await _answers(holds):
        if time.perf_counter() > deadline:
            raise ClaimError(f"{subject} did not come within {SOON.total_seconds():.0f} s")
        await asyncio.sleep(_POLL)
    return time.perf_counter()


async def _answers(holds: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await holds()
    except FleetbusError:  # a refused question is no answer yet
        return False
