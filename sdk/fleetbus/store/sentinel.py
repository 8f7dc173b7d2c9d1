"""Connections to the master that Redis Sentinels name; each new one asks them where it is."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from fleetbus.process.access.store import StoreAccess
from fleetbus.store.address import SentinelAddress
from fleetbus.store.login import authentication_of, reading_tls, sentinel_authentication

_SENTINEL_REPR: Final = re.compile(
    r"<redis\.asyncio\.client\.Redis\(.*?host=([^,]+),port=(\d+).*?\)>\)>\)>"
)
"""redis-py quotes a Sentinel by its client with every option."""


class MasterPool(SentinelConnectionPool):
    """Makes connections to the master, and closes those to the Sentinels with itself.

    Args:
        address: the Sentinels, and the name of the master.
        access: what to log in with.
        pack: makes a class of connections that packs commands quickly.
        options: of all connections.
    """

    def __init__(
        self, address: SentinelAddress, access: StoreAccess, pack: Any, options: dict[str, Any]
    ) -> None:
        plain = SentinelManagedSSLConnection if address.is_tls else SentinelManagedConnection
        of_sentinels = options | sentinel_authentication(access, address.sentinel_credentials)
        if address.is_tls:
            of_sentinels["ssl"] = True
        super().__init__(
            address.master,
            Sentinel(address.sentinels, sentinel_kwargs=of_sentinels),
            connection_class=pack(reading_tls(plain, access.tls)),
            db=address.database,
            **options,
            **authentication_of(access, address.credentials),
        )
        for sentinel in cast("list[Redis]", self.sentinel_manager.sentinels):
            pool = sentinel.connection_pool
            pool.connection_class = reading_tls(pool.connection_class, access.tls)

    async def get_master_address(self) -> tuple[str, int]:
        """Where the master is.

        Raises:
            MasterNotFoundError: no Sentinel knows it; why, for each of them.
        """
        try:
            return cast("tuple[str, int]", await super().get_master_address())
        except MasterNotFoundError as e:
            raise MasterNotFoundError(_SENTINEL_REPR.sub(r"\1:\2", str(e))) from None

    async def aclose(self) -> None:
        """Close all connections."""
        for sentinel in cast("list[Redis]", self.sentinel_manager.sentinels):
            await sentinel.aclose()
        await super().aclose()
