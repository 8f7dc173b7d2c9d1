"""When an API server last sent anything; that proves that it lives (rule W11)."""

from __future__ import annotations

import time
from typing import Final
from weakref import WeakSet

import aiohttp

_OF_A_GATEWAY: Final = (502, 503, 504)
"""What is between us and an API server says these when the server itself does not answer."""


class Liveness:
    """What one API server has sent, and may still send.

    Attributes:
        answered_at: when it last sent anything, in `time.monotonic()`.
    """

    def __init__(self) -> None:
        self.answered_at = float("-inf")
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()

    def note(self) -> None:
        """It has sent something: an answer, or a byte of one that lasts."""
        self.answered_at = time.monotonic()

    def take(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        """Note the head of an answer; its body may be long in coming."""
        if response.status not in _OF_A_GATEWAY:
            self.note()
        self._responses.add(response)
        return response

    def close_responses(self) -> None:
        """Wake whoever waits for more of an answer: closing a session of aiohttp does not."""
        for response in list(self._responses):
            response.close()
