"""Sends the frames of all calls: small ones at once, large ones in turn.

Over a slow link whatever is in the socket's buffer delays all that follows. So little is put there:
a call sends one piece, waits until the connection has nearly nothing left to send, and queues up
again behind the others. The pieces are smaller where that takes long.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from fleetbus.bus.connection import Bus
from fleetbus_proto.calls import CHUNK_BYTES, FrameToCaller, encode_frame
from fleetbus_proto.subjects import answers_subject

_SMALL: Final = 4 * 1024
"""Frames up to this size wait for nobody."""
_UNSENT: Final = 16 * 1024
"""Bytes that may wait in the connection's buffers."""
_SMALLEST: Final = 4 * 1024
_SLOW: Final = 0.05
"""Seconds for one piece; a link that needs more gets smaller ones."""
_FAST: Final = 0.02
_RETRY: Final = 0.05


class Answers:
    """The frames from an agent to its callers.

    Args:
        bus: the connection to NATS.
        cluster: the name of this cluster.

    Attributes:
        piece_bytes: how large the pieces of a body should be now.
    """

    def __init__(self, bus: Bus, cluster: str) -> None:
        self._bus = bus
        self._cluster = cluster
        self._turn = asyncio.Lock()  # its waiters are served in their order
        self.piece_bytes = CHUNK_BYTES

    def tell(self, frame: FrameToCaller) -> bool:
        """Send a small frame at once; False if the bus is down."""
        return self._bus.publish_directly(
            answers_subject(self._cluster, frame.id), encode_frame(frame)
        )

    async def send(self, frame: FrameToCaller) -> None:
        """Send a frame, in turn if it is large; while the bus is down wait for it."""
        body = encode_frame(frame)
        subject = answers_subject(self._cluster, frame.id)
        if len(body) <= _SMALL:
            await self._publish(subject, body)
            return
        async with self._turn:
            await self._publish(subject, body)
            began = time.monotonic()
            await self._bus.drained(_UNSENT)
            self._adapt(time.monotonic() - began)

    async def _publish(self, subject: str, body: bytes) -> None:
        while not self._bus.publish_directly(subject, body):
            # The caller may still wait when the bus is back; if not, the call is cancelled.
            await self._bus.wait_connected()
            await asyncio.sleep(_RETRY)

    def _adapt(self, seconds: float) -> None:
        if seconds > _SLOW:
            self.piece_bytes = max(_SMALLEST, self.piece_bytes // 2)
        elif seconds < _FAST:
            self.piece_bytes = min(CHUNK_BYTES, self.piece_bytes * 2)
