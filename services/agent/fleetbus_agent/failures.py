"""Why a call has no answer of the API server."""

from __future__ import annotations

from fleetbus_proto.calls import Reason


class CallFailed(Exception):
    """There is no answer, or not all of it.

    Args:
        reason: of the contract.
        message: for the caller.
        was_sent: whether the API server may have received the request.
    """

    def __init__(self, reason: Reason, message: str, *, was_sent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.was_sent = was_sent
