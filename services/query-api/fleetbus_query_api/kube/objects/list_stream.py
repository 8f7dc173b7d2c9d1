"""A list that is sent while it is read, and cut off where it cannot be read to its end."""

from __future__ import annotations

from typing import Final

import redis.exceptions
import structlog
from starlette.responses import StreamingResponse
from starlette.types import Send

from fleetbus.errors import StoreError
from fleetbus.snapshot import ExpiredToken

log = structlog.get_logger()

_FAILURES: Final = (redis.exceptions.RedisError, StoreError, ExpiredToken, OSError, TimeoutError)


class ListStream(StreamingResponse):
    """A response in parts that are read one after the other.

    Where one cannot be read any more, the connection is closed without the end of the answer: a
    client must not take a part of a list for the whole (rule A4).
    """

    async def stream_response(self, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        try:
            async for chunk in self.body_iterator:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except _FAILURES as e:
            log.warning("list_interrupted", error=str(e))
            return  # the server closes what was not completed
        await send({"type": "http.response.body", "body": b"", "more_body": False})
