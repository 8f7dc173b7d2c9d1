"""What the log says of errors of the connection to NATS."""

from __future__ import annotations

import structlog

from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()


class TroubleLog:
    """Tells an error of the connection once, and again while it lasts.

    The client tries to connect four times a second for ever, and each attempt is an error.

    Args:
        url: the address, without secrets.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._log_once = LogOnce()

    def tell(self, error: Exception) -> None:
        """An error came."""
        said = str(error) or type(error).__name__
        if self._log_once.should_log(said):
            log.warning("nats_error", url=self._url, error=said)

    def is_over(self) -> None:
        """The connection is there: the next error is news whatever it says."""
        self._log_once.reset()
