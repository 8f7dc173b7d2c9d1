"""The connections of an agent to NATS: one, and while its nkey changes also the one before.

A server disconnects a client whose nkey the hub has dropped; the calls under way would have an
unknown outcome, and new ones would find no agent. So for the next nkey a second connection with a
gateway of its own is opened. Once that takes calls, the one before takes no more, and is closed
when its calls have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import structlog

from fleetbus.bus.connection import Bus, connected
from fleetbus.errors import BusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.health import Health
from fleetbus_agent.gateway import Gateway

log = structlog.get_logger()

_OVERLAP: Final = timedelta(seconds=1)
"""Both connections take calls for so long: the servers of a cluster of NATS tell each other which
of them has whose subscriptions."""
_RETRY: Final = timedelta(seconds=1)
"""The pause after a connection that could not be opened."""


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection whose gateway takes calls; it ends with its task."""

    bus: Bus
    gateway: Gateway
    task: asyncio.Task[None]


class Connections:
    """Serves calls over one connection after another.

    Args:
        access: how to log in; its files are read for each connection.
        name: of each connection.
        make_gateway: makes the gateway of a connection.
        renewed: set when the nkey file has another nkey than before.
        health: not ready while the current connection is down or takes no calls.

    Attributes:
        opened: set once the first connection takes calls.
    """

    def __init__(
        self,
        *,
        access: NatsAccess,
        name: str,
        make_gateway: Callable[[Bus], Gateway],
        renewed: asyncio.Event,
        health: Health,
    ) -> None:
        self.opened = asyncio.Event()
        self._access = access
        self._name = name
        self._make_gateway = make_gateway
        self._renewed = renewed
        self._health = health
        # All that have not ended: the current one, those before, and one that is being opened.
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Serve until cancelled; then take no more calls, and let the open ones end.

        Raises:
            BusError: NATS forbids a subject (rule B13); perhaps in a group.
        """
        try:
            current = await self._open(self._health)
            self.opened.set()
            while True:
                await self._wait_renewed(current)
                current = await self._hand_over(current)
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_renewed(self, current: _Connection) -> None:
        renewed = asyncio.create_task(self._renewed.wait(), name="wait for another nkey")
        try:
            await asyncio.wait([renewed, current.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewed.cancel()
        if current.task.done():
            await current.task  # raises why
        self._renewed.clear()

    async def _hand_over(self, before: _Connection) -> _Connection:
        """Serve over another connection; returns the one that is used from now on."""
        following: _Connection | None = None
        try:
            following = await self._open(None)
        except* BusError as group:  # this server does not know the nkey yet
            log.warning("agent_connection_failed", error=str(group.exceptions[0]))
            await asyncio.sleep(_RETRY.total_seconds())
        if following is None:
            self._renewed.set()
            return before
        before.task.add_done_callback(_report)
        await asyncio.sleep(_OVERLAP.total_seconds())
        before.gateway.retire()
        return following

    # --- one connection -------------------------------------------------------------------------

    async def _open(self, health: Health | None) -> _Connection:
        """Open a connection, and wait until it takes calls.

        Args:
            health: with it a refused login is tried again for ever.

        Raises:
            BusError: it ended before; perhaps in a group.
        """
        opened: asyncio.Future[tuple[Bus, Gateway]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._serve(opened, health), name="connection to NATS")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await task  # raises why
        bus, gateway = opened.result()
        self._health.ready_when("nats", bus.trouble)
        self._health.ready_when("gateway", gateway.trouble)
        return _Connection(bus, gateway, task)

    async def _serve(
        self, opened: asyncio.Future[tuple[Bus, Gateway]], health: Health | None
    ) -> None:
        async with (
            connected(self._access, name=self._name, health=health) as bus,
            asyncio.TaskGroup() as group,
        ):
            gateway = self._make_gateway(bus)
            failing = group.create_task(bus.failure(), name="bus failure")
            serving = group.create_task(gateway.run(), name="gateway")
            await gateway.serving.wait()
            opened.set_result((bus, gateway))
            log.info("agent_connected", instance=gateway.instance)
            await serving
            failing.cancel()
            log.info("agent_connection_replaced", instance=gateway.instance)


def _report(before: asyncio.Task[None]) -> None:
    if not before.cancelled() and (error := before.exception()):
        log.warning("agent_connection_before_failed", error=str(error))
