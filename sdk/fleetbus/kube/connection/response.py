"""A response of an API server, whichever way it came, and its time limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from fleetbus.errors import KubeError

CONNECT_TIMEOUT: Final = timedelta(seconds=5)


class BrokenOff(Exception):
    """A response broke off, or took longer than its limits allow; the text says why."""


class Idle(BrokenOff):
    """No data came for as long as the limits allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of one request; None is no limit."""

    total: timedelta | None = None
    """Until the last byte of the body."""
    connect: timedelta | None = CONNECT_TIMEOUT
    idle: timedelta | None = None
    """Between two pieces of data, and before the head."""


class Response(Protocol):
    """A response whose body has not been read yet; whoever has it releases or closes it."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""
        ...

    @property
    def method(self) -> str:
        """The method of the request."""
        ...

    @property
    def path(self) -> str:
        """The path of the request, unescaped."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, decompressed, in pieces of any size but none empty.

        Raises:
            BrokenOff: the rest does not come.
        """
        ...

    def explain(self, error: KubeError) -> None:
        """Add to the error that was made of this response what only the connection knows."""
        ...

    def keep_alive(self) -> None:
        """Let a peer that vanishes be noticed although the response is silent for long."""
        ...

    def release(self) -> None:
        """Let go of a response that was read to its end, and give up any other."""
        ...

    def close(self) -> None:
        """Give the response up; whoever reads it gets `BrokenOff`."""
        ...
