"""Records when an API server last sent anything, which proves that it is alive (rule W11)."""

from __future__ import annotations

import time
from typing import Final
from weakref import WeakSet

from fleetbus.kube.connection.response import Response

_OF_A_GATEWAY: Final = (502, 503, 504)
"""Returned by proxies and gateways when the server itself does not answer."""


class Liveness:
    """The responses of one API server, and when it last sent anything.

    Attributes:
        answered_at: when it last sent anything, in `time.monotonic()`.
    """

    def __init__(self) -> None:
        self.answered_at = float("-inf")
        self._responses: WeakSet[Response] = WeakSet()

    def note(self) -> None:
        """Note that it has sent something: a response, or data of a streamed one."""
        self.answered_at = time.monotonic()

    def take(self, response: Response) -> Response:
        """Note the head of a response; its body may be long in coming."""
        if response.status not in _OF_A_GATEWAY:
            self.note()
        self._responses.add(response)
        return response

    def close_responses(self) -> None:
        """Close all responses: closing connections does not wake their readers."""
        for response in list(self._responses):
            response.close()
