"""A client that impersonates a user: the server checks that user's rights, and logs both."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, NamedTuple, Self

from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call, acting_as

SERVICE_ACCOUNT_NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
"""Checked, because it is sent in a header."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ServiceAccount(NamedTuple):
    """A ServiceAccount of a cluster; `str()` is how people write it."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse NAMESPACE/NAME.

        Raises:
            ConfigError: it is something else.
        """
        namespace, _, name = text.partition("/")
        if not _NAMESPACE.fullmatch(namespace) or not re.fullmatch(SERVICE_ACCOUNT_NAME, name):
            raise ConfigError(f"{text!r} is not the NAMESPACE/NAME of a ServiceAccount")
        return cls(namespace, name)

    @property
    def user(self) -> str:
        """The user that it is to the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ActingClient(KubeClient):
    """Sends requests as another user through an existing client, which its owner closes.

    It uses the connections and the breaker of that client, and during a replay its recorded
    responses (rule R9). Discovery and the check which cluster answers stay with the client's own
    user: they are shared by all users, and show no object.

    Args:
        client: the client; its own user needs the verb `impersonate`.
        user: the user to impersonate.
    """

    def __init__(self, client: KubeClient, user: str) -> None:
        super().__init__(None)
        self._client = client
        self.cluster = client.cluster
        self.discovery = client.discovery
        self.liveness = client.liveness
        self.shows_marks = client.shows_marks
        self._user = user

    async def aclose(self) -> None:
        """Leave everything open: the client's owner closes it."""

    async def request(self, call: Call) -> bytes:
        """Send one request as the user; see `KubeClient.request`."""
        with acting_as(self._user):
            return await self._client.request(call)

    async def confirm(self, *, within: timedelta = timedelta()) -> None:
        """Confirm that the accepted cluster has answered; see `KubeClient.confirm`."""
        await self._client.confirm(within=within)

    async def accepted_uid(self) -> str:
        """The UID of the accepted cluster; see `KubeClient.accepted_uid`."""
        return await self._client.accepted_uid()
