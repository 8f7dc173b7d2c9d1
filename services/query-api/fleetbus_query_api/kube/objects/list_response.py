"""The answer of a list: its warnings, and its body, which is sent while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import redis.exceptions
import structlog
from starlette.responses import StreamingResponse
from starlette.types import Send

from fleetbus.errors import StoreError
from fleetbus.snapshot import ExpiredToken, Freshness
from fleetbus_query_api.objects.listing import NOT_WATCHED
from fleetbus_query_api.responses.render import incomplete_header, quote

log = structlog.get_logger()

_FAILURES: Final = (redis.exceptions.RedisError, StoreError, ExpiredToken, OSError, TimeoutError)
_MOST_WARNINGS: Final = 10


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


def freshness_headers(freshness: Mapping[str, Freshness]) -> dict[str, str]:
    """The headers of an answer (rule A4): for programs all incomplete clusters, for people a few.

    People are not warned of clusters that do not serve a type: those are never complete.
    """
    warnings = [
        f"cluster {name} may be incomplete or outdated: {state.reason[:200]}"
        for name, state in sorted(freshness.items())
        if not state.is_complete and state.reason != NOT_WATCHED
    ]
    more = len(warnings) - _MOST_WARNINGS
    texts = warnings[:_MOST_WARNINGS] + ([f"{more} more clusters likewise"] if more > 0 else [])
    warning = {"Warning": ", ".join(f"299 - {quote(text)}" for text in texts)} if texts else {}
    return {**incomplete_header(freshness), **warning}
