"""Binds a process to the durable of its reader group, also after that was lost (rule B12).

The registrations in the key-value bucket decide which durable that is. They may vanish with the
bucket, and while nobody pulls from it the durable of a group goes if others have its controllers;
then the process registers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import (
    BoundDurable,
    ReaderGroup,
    Registration,
    read_registration,
    register,
)
from fleetbus.errors import BusError
from fleetbus.process.pauses import Pauses

log = structlog.get_logger()

CHECK_EVERY: Final = timedelta(seconds=2)
_FIRST_PAUSE: Final = timedelta(milliseconds=25)
PAUSE: Final = timedelta(milliseconds=200)
T = TypeVar("T")


class Binding:
    """The binding of one process.

    Args:
        bus: a connection.
        kv: where registrations are stored.
        group: the controllers of this process.
        durable: is bound.
        beat: called at each turn, for a liveness check.
    """

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        group: ReaderGroup,
        *,
        durable: BoundDurable,
        beat: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._group = group
        self._durable = durable
        self._beat = beat

    async def bind(self) -> str:
        """Register, wait until the projector has created the durable, and return its name."""
        has_logged = False
        pauses = Pauses(_FIRST_PAUSE, PAUSE)
        while True:
            if created := await self._try("bind", self._created()):
                self._durable.bind(self._durable.decided.durable, created)
                return self._durable.name
            if not has_logged:
                log.info("waiting_for_durable", controllers=sorted(self._group.controllers))
                has_logged = True
            await pauses.sleep()

    async def lost(self) -> None:
        """Wait until the durable is not ours any more, or was made again.

        What was received from the one before may not be acknowledged to that: the sequences of
        another stream are other messages.
        """
        durable, created = self._durable.name, self._durable.created
        while True:
            await asyncio.sleep(CHECK_EVERY.total_seconds())
            now = await self._try("check the binding", self._created())
            if self._durable.decided.durable != durable:
                log.warning("durable_lost", durable=durable)
                self._durable.bind("")
                return
            if now and now != created:
                log.warning("durable_made_again", durable=durable)
                return

    async def _try(self, what: str, step: Awaitable[T]) -> T | None:
        self._beat()
        try:
            return await step
        except BusError as e:
            log.debug("bus_unavailable", step=what, error=str(e))
            return None

    async def _created(self) -> str:
        """When our durable was created, which decides whether it is the same; empty without one."""
        decided = await read_registration(self._kv, self._group)
        created = await self._created_as(decided) if decided is not None else ""
        if decided is None or not created:  # that of any controller may have vanished alone
            decided = await register(self._kv, self._group)
        self._durable.decided = decided
        return created

    async def _created_as(self, decided: Registration) -> str:
        if not decided.is_created:
            return ""
        info = await consumer_info(self._bus, decided.durable)
        is_ours = info is not None and info["config"].get("description") == self._group.id
        return str(info["created"]) if info is not None and is_ours else ""
