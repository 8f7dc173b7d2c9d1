"""The connection to NATS, which only questions about the past need.

The query API serves the present without it: it never waits for NATS, and is ready without it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from fleetbus.bus.connection import Bus, connected
from fleetbus.errors import BusError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.log_once import LogOnce
from fleetbus_query_api.responses.problem import UnavailableProblem

log = structlog.get_logger()

_RETRY_SECONDS: Final = 5.0


class HistoryConnection:
    """Keeps a connection to NATS.

    Args:
        access: the address and files to log in with; None if history is switched off.
    """

    def __init__(self, access: NatsAccess | None) -> None:
        self._access = access
        self._bus: Bus | None = None
        self._trouble = "not connected yet"
        self._failing = LogOnce()

    @property
    def bus(self) -> Bus:
        """The connection.

        Raises:
            UnavailableProblem: there is none.
        """
        if self._access is None:
            raise UnavailableProblem(
                "the history of the fleet is switched off: set FLEETBUS_QUERY_API_HISTORY"
                " and FLEETBUS_NATS_URL"
            )
        if self._bus is None or not self._bus.is_connected:
            why = self._bus.trouble() if self._bus is not None else self._trouble
            raise UnavailableProblem(f"the history of the fleet needs NATS: {why}")
        return self._bus

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        if self._access is None:
            return
        while True:
            try:
                async with connected(self._access, name="query-api") as bus:
                    self._bus = bus
                    await bus.failure()
            except BusError as e:
                self._trouble = str(e)
                if self._failing.should_log(self._trouble):
                    log.warning("history_not_available", error=self._trouble)
            finally:
                self._bus = None
            await asyncio.sleep(_RETRY_SECONDS)
