"""A client that impersonates a user: the server checks that user's rights, and logs both."""

from __future__ import annotations

from datetime import timedelta

from fleetbus.kube.client import ACTING_USER, KubeClient
from fleetbus.kube.requests import Call


class ActingClient(KubeClient):
    """Sends requests as another user through an existing client, which its owner closes.

    It uses the connections and the breaker of that client, and during a replay its recorded
    responses (rule R9).

    Args:
        client: the client; its own user needs the verb `impersonate`.
        user: the user to impersonate.
    """

    def __init__(self, client: KubeClient, user: str) -> None:
        super().__init__(None)
        self._client = client
        self.cluster = client.cluster
        self.shows_marks = client.shows_marks
        self._user = user

    async def request(self, call: Call) -> bytes:
        """Send one request as the user; see `KubeClient.request`."""
        token = ACTING_USER.set(self._user)
        try:
            return await self._client.request(call)
        finally:
            ACTING_USER.reset(token)

    async def confirm(self, *, within: timedelta = timedelta()) -> None:
        """Confirm that the accepted cluster has answered; see `KubeClient.confirm`."""
        await self._client.confirm(within=within)

    async def accepted_uid(self) -> str:
        """The UID of the accepted cluster; see `KubeClient.accepted_uid`."""
        return await self._client.accepted_uid()
