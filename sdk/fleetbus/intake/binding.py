"""Binds a controller's process to its durable, also after the registration was lost (rule B12).

The registration in the key-value bucket decides which durable that is. It may vanish with the
bucket, and a process of another release, with another watch set, may replace it; then its durable
delivers and ours is deleted. While that release runs, this process only works on the queue, which
both share. When nobody pulls from the other durable any more (after a rollback, or at the end of a
rollout), this process registers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import (
    Registration,
    is_bindable,
    is_pulled_from,
    read_registration,
    register,
)
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError
from fleetbus.process.pauses import Pauses

log = structlog.get_logger()

CHECK_EVERY: Final = timedelta(seconds=2)
_FIRST_PAUSE: Final = timedelta(milliseconds=25)
PAUSE: Final = timedelta(milliseconds=200)
_CHECKS_BEFORE_TAKEOVER: Final = 3
T = TypeVar("T")


class Binding:
    """The binding of one process.

    Args:
        bus: a connection.
        kv: where registrations are stored.
        controller: its name.
        filters: the subjects that it watches.
        beat: called at each turn, for a liveness check.
    """

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        *,
        controller: str,
        filters: Sequence[str],
        beat: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._kv = kv
        self._controller = controller
        self._filters = list(filters)
        self._beat = beat
        self._idle_checks = 0

    async def bind(self) -> str:
        """Register, wait until the projector has created the durable, and return its name."""
        is_registered = has_logged = False
        pauses = Pauses(_FIRST_PAUSE, PAUSE)
        while True:
            is_registered = is_registered or bool(await self._try("register", self._register()))
            if is_registered and (durable := await self._try("bind", self._bindable())):
                return durable
            if not has_logged:
                log.info("waiting_for_durable", controller=self._controller)
                has_logged = True
            await pauses.sleep()

    async def lost(self, durable: str) -> None:
        """Wait until the durable is not ours any more."""
        while True:
            await asyncio.sleep(CHECK_EVERY.total_seconds())
            if await self._try("check the binding", self._is_lost(durable)):
                log.warning("durable_lost", controller=self._controller, durable=durable)
                return

    async def _try(self, step_name: str, step: Awaitable[T]) -> T | None:
        self._beat()
        try:
            return await step
        except BusError as e:
            log.debug("bus_unavailable", controller=self._controller, step=step_name, error=str(e))
            return None

    async def _register(self) -> bool:
        await register(self._kv, self._controller, self._filters)
        return True

    async def _bindable(self) -> str:
        registration = await self._registration()
        if registration is None or not registration.durable:
            return ""
        is_there = await is_bindable(self._bus, registration.durable, self._filters)
        return registration.durable if is_there else ""

    async def _is_lost(self, durable: str) -> bool:
        registration = await self._registration()
        return registration is not None and registration.durable != durable

    async def _registration(self) -> Registration | None:
        """Our registration; None while that of another watch set is in force."""
        registration = await read_registration(self._kv, self._controller)
        if registration is None or (
            registration.filters != self._filters and await self._is_abandoned(registration.durable)
        ):
            registration = await register(self._kv, self._controller, self._filters)
        return registration if registration.filters == self._filters else None

    async def _is_abandoned(self, durable: str) -> bool:
        if durable and not await is_pulled_from(self._bus, durable):
            self._idle_checks += 1
        else:
            self._idle_checks = 0
        return self._idle_checks > _CHECKS_BEFORE_TAKEOVER
