"""The access data that a client of one API server shows, and how they are read anew (rule W19).

Tokens run out and are rotated. A kubeconfig file is looked at before each request. After a 401 the
access data are read anew wherever they came from: the file, the files that it names, the pod's
service account, or the Secret of the hub.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import (
    Connection,
    KubeConfig,
    Renew,
    check_server,
    connect,
    read_again,
    signature_of,
)


class Credentials:
    """The access data of one client.

    Args:
        config: the access data; None means the service account of the pod.
    """

    def __init__(self, config: KubeConfig | None) -> None:
        self._config = config
        self._connection: Connection | None = None
        # Of the kubeconfig's file when it was read last.
        self._signature = signature_of(config)
        # Held while they are read: of many requests that are refused together one reads.
        self._reading = asyncio.Lock()

    def use(self, config: KubeConfig | None) -> None:
        """Show these from the next request on."""
        if config != self._config:
            self._signature = signature_of(config)
        self._replace(config)

    async def connection(self) -> Connection:
        """Where to connect to, and what to show there.

        Raises:
            ConfigError: the access data cannot be used.
        """
        async with self._reading:
            await self._follow_file()
            while self._connection is None:
                config = self._config
                made = await connect(config)
                if config is self._config:  # else `use` was called meanwhile
                    self._connection = made
            return self._connection

    async def refused(self, connection: Connection) -> None:
        """Read the access data anew after a 401, unless that was done since.

        Args:
            connection: what was shown.
        """
        async with self._reading:
            if connection is self._connection:
                self._connection = None  # it may hold a token from a file of its own
                await self._read_anew()

    async def _follow_file(self) -> None:
        if self._config is not None and signature_of(self._config) != self._signature:
            await self._read_anew()

    async def _read_anew(self) -> None:
        config = self._config
        if config is None:
            return  # whoever connects reads the pod's token
        if config.renew is not None:
            found = await _renewed(config, config.renew)
        else:
            self._signature = signature_of(config)
            found = await asyncio.to_thread(read_again, config)
        if config is self._config:  # else `use` was called meanwhile
            self._replace(found)

    def _replace(self, config: KubeConfig | None) -> None:
        if config != self._config:
            self._config, self._connection = config, None


async def _renewed(config: KubeConfig, renew: Renew) -> KubeConfig:
    """The access data as the hub has them now; the same if they cannot be used."""
    found = await renew()
    if found is None:
        return config
    # What is told beside the document, as by the fields of a Cluster, stays true of it.
    renewed = replace(config, document=found.document, context=found.context)
    try:
        check_server(renewed)
    except ConfigError:  # the provider tells it as the cluster's problem
        return config
    return renewed
