"""What the log says of errors of the connection to NATS."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

log = structlog.get_logger()

AGAIN_AFTER: Final = timedelta(seconds=30)


class TroubleLog:
    """Tells an error of the connection once, and again while it lasts.

    The client tries to connect four times a second for ever, and each attempt is an error.

    Args:
        url: the address, without secrets.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._told = ""
        self._told_at = 0.0

    def tell(self, error: Exception) -> None:
        """An error came; it is written if it differs from the last or that was `AGAIN_AFTER`."""
        said = str(error) or type(error).__name__
        now = asyncio.get_running_loop().time()
        if said == self._told and now - self._told_at < AGAIN_AFTER.total_seconds():
            return
        self._told, self._told_at = said, now
        log.warning("nats_error", url=self._url, error=said)

    def is_over(self) -> None:
        """The connection is there: the next error is news whatever it says."""
        self._told = ""
