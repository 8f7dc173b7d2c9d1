"""Messages that nobody acknowledges: wake-ups, and requests that are answered to an inbox."""

from __future__ import annotations

import nats.errors

from fleetbus.bus.connection import Bus
from fleetbus.errors import BusError
from fleetbus.process.cancellation import cancellable


async def send(bus: Bus, subject: str, body: bytes = b"", *, reply: str = "") -> None:
    """Publish once; while the connection is away it is kept, and goes out when it is back.

    Raises:
        BusError: it will not go out: the connection is closed, or too much is kept already.
    """
    try:
        with cancellable():
            await bus.nc.publish(subject, body, reply)
    except nats.errors.Error as e:
        raise BusError(f"nothing was sent to {subject}: {e or type(e).__name__}") from e
