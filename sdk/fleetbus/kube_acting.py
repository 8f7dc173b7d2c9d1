"""A client that acts as somebody else: the server checks that user's rights, and logs both."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import aiohttp

from fleetbus.kube import KubeClient
from fleetbus.kube_config import Connection

_HEADER: Final = "Impersonate-User"


class ActingClient(KubeClient):
    """Requests of another user over the connections of a client; that one is closed, not this.

    Args:
        client: whose server and connections; its own user needs the verb `impersonate`.
        user: whose rights count.
    """

    def __init__(self, client: KubeClient, user: str) -> None:
        super().__init__(None)
        self._client = client
        self._user = user

    async def _connected(self) -> tuple[Connection, aiohttp.ClientSession]:
        connection, session = await self._client._connected()  # noqa: SLF001 -- of our own kind
        return replace(connection, headers=connection.headers | {_HEADER: self._user}), session
