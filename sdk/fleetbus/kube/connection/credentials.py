"""The access data of a client, and how they are reloaded (rule W19).

Tokens expire and are rotated. A kubeconfig file is checked for changes before each request. After a
401 the access data are reloaded from their origin: the file, the files that it names, the pod's
service account, or the Secret on the hub.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

from fleetbus.errors import ConfigError, KubeError, Unauthorized
from fleetbus.kube.connection.config import (
    KubeConfig,
    Renew,
    check_access,
    connect,
    read_again,
    signature_of,
)
from fleetbus.kube.connection.parameters import Connection
from fleetbus.process.access.tokens import read_expiry
from fleetbus.process.clock import rfc3339


class Credentials:
    """The access data of one client.

    Args:
        config: the access data; None means the service account of the pod.
    """

    def __init__(self, config: KubeConfig | None) -> None:
        self._config = config
        self._connection: Connection | None = None
        # Of the kubeconfig file when it was last read.
        self._signature = signature_of(config)
        # Held while reloading: of many requests that are refused together only one reloads.
        self._reading = asyncio.Lock()

    def use(self, config: KubeConfig | None) -> None:
        """Use these from the next request on."""
        if config != self._config:
            self._signature = signature_of(config)
        self._replace(config)

    async def connection(self) -> Connection:
        """The address and the credentials for the next request.

        Raises:
            ConfigError: the access data cannot be used.
        """
        async with self._reading:
            await self._follow_file()
            if self._connection is not None and self._connection.is_expired:
                self._connection = None
            while self._connection is None:
                config = self._config
                new_connection = await connect(config)
                if config is self._config:  # else `use` was called in between
                    self._connection = new_connection
            return self._connection

    async def refused(self, connection: Connection) -> None:
        """Reload the access data after a 401, unless that has been done since.

        Args:
            connection: the one that was refused.
        """
        async with self._reading:
            if connection is self._connection:
                self._connection = None  # it may have a token from a separate file
                await self._reload()

    async def _follow_file(self) -> None:
        if self._config is not None and signature_of(self._config) != self._signature:
            await self._reload()

    async def _reload(self) -> None:
        config = self._config
        if config is None:
            return  # connecting reads the pod's token
        if config.renew is not None:
            renewed = await _renewed(config, config.renew)
        else:
            self._signature = signature_of(config)
            renewed = await asyncio.to_thread(read_again, config)
        if config is self._config:  # else `use` was called meanwhile
            self._replace(renewed)

    def _replace(self, config: KubeConfig | None) -> None:
        if config != self._config:
            self._config, self._connection = config, None


def explain_refusal(error: KubeError, connection: Connection) -> None:
    """Add to a 401 that the token has expired, and how to make another."""
    _, _, token = connection.headers.get("Authorization", "").partition(" ")
    expiry = read_expiry(token)
    if isinstance(error, Unauthorized) and expiry is not None and expiry < time.time():
        when = rfc3339(datetime.fromtimestamp(expiry, UTC), timespec="seconds")
        error.message += (
            f": the token expired at {when}; renew the credentials, or join the cluster again"
            " with fleetbus join --bootstrap"
        )


async def _renewed(config: KubeConfig, renew: Renew) -> KubeConfig:
    """The access data as the hub has them now; the old ones if those cannot be used."""
    current = await renew()
    if current is None:
        return config
    # Settings outside the document, like the fields of a Cluster, still apply.
    renewed = replace(config, document=current.document, context=current.context)
    try:
        check_access(renewed)
    except ConfigError:  # the provider reports it as the cluster's problem
        return config
    return renewed
