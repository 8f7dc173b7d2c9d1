"""A client for a thread, which calls redis-py as it is."""

from __future__ import annotations

from typing import Any, cast

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from fleetbus.store.address import ClusterAddress, SentinelAddress, parse_address
from fleetbus.store.sentinel import authentication


def make_blocking(url: str, **options: Any) -> redis.Redis:
    """Make a client of one server, of the master that Sentinels name, or of a Cluster.

    A Cluster's client is made when it is first used, as it connects at once.

    Args:
        url: see `fleetbus.store.address`.
        options: of each connection.

    Raises:
        StoreError: invalid address.
    """
    address = parse_address(url)
    if isinstance(address, SentinelAddress):
        if address.is_tls:
            options["ssl"] = True
        of_sentinels = {**options, **authentication(address.sentinel_credentials)}
        sentinel: Any = Sentinel(address.sentinels, sentinel_kwargs=of_sentinels, **options)
        of_master = {"db": address.database, **authentication(address.credentials)}
        return cast("redis.Redis", sentinel.master_for(address.master, **of_master))
    if isinstance(address, ClusterAddress):
        return cast("redis.Redis", _LazyCluster(address, options))
    return redis.Redis.from_url(url, **options)


class _LazyCluster:
    """A Cluster's client for commands and scripts; redis-py's connects when it is made."""

    def __init__(self, address: ClusterAddress, options: dict[str, Any]) -> None:
        self._address = address
        self._options = options
        self._client: RedisCluster | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis.execute_command`."""
        if self._client is None:
            given: dict[str, Any] = {**self._options, **authentication(self._address.credentials)}
            if self._address.is_tls:
                given["ssl"] = True
            nodes = [ClusterNode(*place) for place in self._address.nodes]
            make = cast("Any", RedisCluster)
            self._client = make(startup_nodes=nodes, require_full_coverage=False, **given)
        return cast("Any", self._client).execute_command(*args, **options)

    def close(self) -> None:
        """See `redis.Redis.close`."""
        if self._client is not None:
            self._client.close()
