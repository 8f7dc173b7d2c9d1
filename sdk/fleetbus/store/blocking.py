"""A client for a thread, which calls redis-py as it is."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.exceptions as errors
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.sentinel import MasterNotFoundError, Sentinel

from fleetbus.process.access.store import StoreAccess
from fleetbus.store.address import (
    ClusterAddress,
    Credentials,
    Place,
    SentinelAddress,
    parse_address,
)
from fleetbus.store.login import authentication_of, reading_tls_in_threads, sentinel_authentication
from fleetbus.store.sentinel import latest_master, why_no_master


def make_blocking(access: StoreAccess | str, **options: Any) -> redis.Redis:
    """Make a client of one server, of the master that Sentinels name, or of a Cluster.

    A Cluster's client is made when it is first used, as it connects at once.

    Args:
        access: where the store is, and what to log in with; or only its address.
        options: of each connection.

    Raises:
        StoreError: invalid address.
    """
    if isinstance(access, str):
        access = StoreAccess(url=access)
    address = parse_address(access.url)
    if isinstance(address, SentinelAddress):
        if address.is_tls:
            options["ssl"] = True
        of_sentinels = options | sentinel_authentication(access, address.sentinel_credentials)
        sentinel: Any = _Sentinels(address.sentinels, sentinel_kwargs=of_sentinels, **options)
        of_master = {"db": address.database, **authentication_of(access, address.credentials)}
        of_master["redis_class"] = _ClientOfMaster
        master: Any = sentinel.master_for(address.master, **of_master)
        for client in (master, *sentinel.sentinels):
            _read_tls(client, access)
        return cast("redis.Redis", master)
    if isinstance(address, ClusterAddress):
        options |= authentication_of(access, address.credentials)
        return cast("redis.Redis", _LazyCluster(address, access, options))
    client = redis.Redis.from_url(access.url, **options, **authentication_of(access, Credentials()))
    _read_tls(client, access)
    return client


class _Sentinels(Sentinel):
    """Believes the latest failover of which a majority knows, as `store.sentinel` does.

    Of redis-py the first Sentinel that answers decides, and it may be on the side of a master that
    was cut off.
    """

    def __init__(self, places: tuple[Place, ...], **options: Any) -> None:
        super().__init__(places, **options)
        self._places = places

    def discover_master(self, service_name: str) -> Place:
        """Find the master.

        Raises:
            MasterNotFoundError: no Sentinel knows it; why, for each of them.
        """
        answers: list[dict[str, dict[str, Any]]] = []
        problems: dict[Place, Exception] = {}
        for place, sentinel in zip(self._places, self.sentinels, strict=True):
            try:
                answers.append(cast("Any", sentinel).sentinel_masters())
            except errors.RedisError as e:
                problems[place] = e
            if len(answers) > len(self._places) // 2:
                break
        if master := latest_master(answers, service_name):
            return master
        raise MasterNotFoundError(why_no_master(service_name, problems))


def _read_tls(client: redis.Redis, access: StoreAccess) -> None:
    pool: Any = client.connection_pool
    pool.connection_class = reading_tls_in_threads(pool.connection_class, access.tls)


class _ClientOfMaster(redis.Redis):
    """A client of the master, which closes the connections to the Sentinels with itself.

    redis-py leaves them to the garbage collector, which may find the socket first and warn.
    """

    def close(self) -> None:
        """Close all connections."""
        super().close()
        manager: Any = getattr(self.connection_pool, "sentinel_manager", None)
        for sentinel in manager.sentinels if manager else ():
            sentinel.close()


def _pool_class(access: StoreAccess) -> type[ConnectionPool]:
    class Pool(ConnectionPool):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.connection_class = reading_tls_in_threads(self.connection_class, access.tls)

    return Pool


class _LazyCluster:
    """A Cluster's client for commands and scripts; redis-py's connects when it is made."""

    def __init__(
        self, address: ClusterAddress, access: StoreAccess, options: dict[str, Any]
    ) -> None:
        self._address = address
        self._access = access
        self._options = options
        self._client: RedisCluster | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis.execute_command`."""
        if self._client is None:
            self._client = self._connect()
        return cast("Any", self._client).execute_command(*args, **options)

    def _connect(self) -> RedisCluster:
        options = dict(self._options)
        if self._address.is_tls:
            # Only with a URL it uses the class of pools, whose connections read our files.
            host, port = self._address.nodes[0]
            options["url"] = f"rediss://{f'[{host}]' if ':' in host else host}:{port}"
            options["connection_pool_class"] = _pool_class(self._access)
        nodes = [ClusterNode(*place) for place in self._address.nodes]
        make = cast("Any", RedisCluster)
        return make(startup_nodes=nodes, require_full_coverage=False, **options)

    def close(self) -> None:
        """See `redis.Redis.close`."""
        if self._client is not None:
            self._client.close()
            for node in cast("Any", self._client).get_nodes():
                # redis-py does not close a pool of a class that was given to it.
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect()
