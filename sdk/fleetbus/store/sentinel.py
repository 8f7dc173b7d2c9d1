"""Connections to the master that Redis Sentinels name; each new one asks them where it is."""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from fleetbus.store.address import Credentials, SentinelAddress


class MasterPool(SentinelConnectionPool):
    """Makes connections to the master, and closes those to the Sentinels with itself.

    Args:
        address: the Sentinels, and the name of the master.
        pack: makes a class of connections that packs commands quickly.
        options: of all connections.
    """

    def __init__(self, address: SentinelAddress, pack: Any, options: dict[str, Any]) -> None:
        plain = SentinelManagedSSLConnection if address.is_tls else SentinelManagedConnection
        of_sentinels = options | authentication(address.sentinel_credentials)
        if address.is_tls:
            of_sentinels["ssl"] = True
        super().__init__(
            address.master,
            Sentinel(address.sentinels, sentinel_kwargs=of_sentinels),
            connection_class=pack(plain),
            db=address.database,
            **options,
            **authentication(address.credentials),
        )

    async def aclose(self) -> None:
        """Close all connections."""
        for sentinel in cast("list[Redis]", self.sentinel_manager.sentinels):
            await sentinel.aclose()
        await super().aclose()


def authentication(credentials: Credentials) -> dict[str, str]:
    """The options of a connection that authenticates, as redis-py names them."""
    given = {"username": credentials.username, "password": credentials.password}
    return {name: value for name, value in given.items() if value}
