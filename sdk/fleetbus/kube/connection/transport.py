"""The way of requests to an API server: over HTTP, or through an agent in its cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.response import Limits, Response
from fleetbus.kube.requests import Call

Verify = Callable[[str], Awaitable[bool]]
"""Raises unless a request of this method may go where new connections lead; returns False where
that is not checked."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The cluster that a client trusts (rule W13)."""

    verify: Verify
    uid: Callable[[], str]
    """The UID of kube-system of the cluster that was verified last; empty if there is none."""


class Transport(Protocol):
    """The way of the requests of one client."""

    async def send(self, call: Call, limits: Limits) -> Response:
        """Send a request and return the response, whatever its status.

        Raises:
            Unreachable: none came.
            ConfigError: the access data cannot be used.
            LeaseLostError: the lease of the run that wants to write is lost (rule R4).
        """
        ...

    def use(self, config: KubeConfig | None) -> None:
        """Use other access data from now on."""
        ...

    def refuse(self) -> None:
        """Refuse every request from now on."""
        ...

    async def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        ...


MakeTransport = Callable[[Trust, str], Transport]
"""Makes the way of a client from what it trusts and its user agent."""
