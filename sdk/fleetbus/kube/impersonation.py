"""A client that acts as somebody else: the server checks that user's rights, and logs both."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from fleetbus.kube.client import ACTING_USER, REQUEST_TIMEOUT, KubeClient


class ActingClient(KubeClient):
    """Requests of another user through a client; that one is closed, not this.

    All of them go through the client itself: its connections, its breaker, and where it only
    plays an API server, as in a replay, that play (rule R9).

    Args:
        client: whose server; its own user needs the verb `impersonate`.
        user: whose rights count.
    """

    def __init__(self, client: KubeClient, user: str) -> None:
        super().__init__(None)
        self._client = client
        self.cluster = client.cluster
        self.shows_marks = client.shows_marks
        self._user = user

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        within: timedelta = REQUEST_TIMEOUT,
    ) -> bytes:
        """Send one request as the user; see `KubeClient.request`."""
        token = ACTING_USER.set(self._user)
        try:
            return await self._client.request(
                method, path, query=query, body=body, content_type=content_type, within=within
            )
        finally:
            ACTING_USER.reset(token)

    async def confirm(self) -> None:
        """Make sure that the right cluster spoke; see `KubeClient.confirm`."""
        await self._client.confirm()

    async def accepted_uid(self) -> str:
        """The UID of the accepted cluster; see `KubeClient.accepted_uid`."""
        return await self._client.accepted_uid()
