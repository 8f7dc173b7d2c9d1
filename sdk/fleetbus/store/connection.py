"""Connects to Redis or Valkey, checks the server and translates errors (rules P16, Q11)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import redis.exceptions
import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleetbus.errors import StoreError
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.cancellation import cancellable, patch_wait_for
from fleetbus.process.waiting import wait_until_usable
from fleetbus.store.address import (
    ClusterAddress,
    Credentials,
    Place,
    SentinelAddress,
    parse_address,
)
from fleetbus.store.cluster import ClusterRedis
from fleetbus.store.login import authentication_of, reading_tls
from fleetbus.store.multiplexing import MultiplexingRedis, pack
from fleetbus.store.refusals import hint_for
from fleetbus.store.sentinel import MasterPool, SentinelRedis
from fleetbus_proto.keys import SnapshotKeys

if TYPE_CHECKING:
    from fleetbus.process.health import Health

log = structlog.get_logger()

_FLOOR: Final = 7
_POLICY: Final = "noeviction"
_CONNECTIONS: Final = 64
_OPTIONS: Final[dict[str, Any]] = {
    "retry": Retry(NoBackoff(), 0),
    "decode_responses": False,
    "socket_connect_timeout": 5,
}
"""Options of every connection."""
_ANSWER_WITHIN: Final = timedelta(seconds=30)
_CHECK_WITHIN: Final = timedelta(seconds=20)
"""A dozen commands, each of which may take a second on a slow server."""


class StoreEmpty(StoreError):
    """The store has no generation: it was emptied, or was never set up (rule P13).

    Nothing was written. The projector calls `ensure_generation`, writes the fleet and requests a
    resync of everything; every other consumer waits and tries again without an ack.
    """


async def connect(
    access: StoreAccess | str,
    *,
    answer_within: timedelta = _ANSWER_WITHIN,
    check_within: timedelta = _CHECK_WITHIN,
) -> MultiplexingRedis | ClusterRedis:
    """Connect, and check that the servers can hold the snapshot; the caller closes the client.

    The client never repeats a command by itself: over a broken connection the default of redis-py
    would send a script eleven times. Answers are bytes.

    Args:
        access: where the store is, and what to log in with; or only the address of one server, of
            Sentinels or of a Cluster, see `fleetbus.store.address`.
        answer_within: how long a server may take for one answer.
        check_within: how long the check of the servers may take.

    Raises:
        StoreError: invalid address, no answer, a refusal, older than 7, a replica, a node of a
            Cluster without its scheme, or a `maxmemory-policy` that evicts.
    """
    if isinstance(access, str):
        access = StoreAccess(url=access)
    patch_wait_for()
    client = _make(access, answer_within)
    try:
        async with asyncio.timeout(check_within.total_seconds()):
            await _check(client)
    except BaseException as e:
        await client.aclose()
        if isinstance(e, redis.exceptions.RedisError | TimeoutError):
            raise StoreError(f"Redis at {access.shown} {_describe(e, check_within)}") from e
        raise
    return client


async def connect_patiently(
    access: StoreAccess, health: Health
) -> MultiplexingRedis | ClusterRedis:
    """Connect like `connect`, and try again until the store can be used.

    Somebody mends credentials, addresses and servers while a service waits and is not ready. It is
    not ready later either, while no connection can be made.

    Raises:
        StoreError: the address is invalid.
    """
    await _make(access, _ANSWER_WITHIN).aclose()
    client = await wait_until_usable(
        "redis", lambda: connect(access), health=health, failures=StoreError
    )
    health.ready_when("redis", lambda: client.trouble)
    await _warn_of_losses(client)
    return client


async def _warn_of_losses(client: MultiplexingRedis | ClusterRedis) -> None:
    """Log once which servers would lose everything when they restart (rule P16)."""
    servers = client.masters if isinstance(client, ClusterRedis) else [client]
    infos = await asyncio.gather(
        *(cast("Any", server).info("persistence") for server in servers), return_exceptions=True
    )
    if any(isinstance(info, dict) and not cast("Any", info).get("aof_enabled") for info in infos):
        log.warning("store_not_persistent", hint="set appendonly yes: a restart loses the queues")


def _make(access: StoreAccess, answer_within: timedelta) -> MultiplexingRedis | ClusterRedis:
    address = parse_address(access.url)
    options = _OPTIONS | {"socket_timeout": answer_within.total_seconds()}
    if isinstance(address, ClusterAddress):
        return ClusterRedis(address.nodes, partial(_make_node, address, access, options))
    if isinstance(address, SentinelAddress):
        pool = MasterPool(address, access, packing, options)
        return cast("SentinelRedis", SentinelRedis.from_pool(pool))
    return _multiplexing(_pool(access, options))


def _multiplexing(pool: ConnectionPool) -> MultiplexingRedis:
    return cast("MultiplexingRedis", MultiplexingRedis.from_pool(pool))


def _make_node(
    cluster: ClusterAddress, access: StoreAccess, options: dict[str, Any], place: Place
) -> MultiplexingRedis:
    host, port = place
    arguments: dict[str, Any] = {
        **options,
        **authentication_of(access, cluster.credentials),
        "host": host,
        "port": port,
    }
    plain = SSLConnection if cluster.is_tls else Connection
    connections = packing(reading_tls(plain, access.tls))
    pool = BlockingConnectionPool(_CONNECTIONS, connection_class=connections, **arguments)
    node = _multiplexing(pool)
    node.refusals.is_logging = True
    return node


async def _check(client: MultiplexingRedis | ClusterRedis) -> None:
    if isinstance(client, MultiplexingRedis):
        info = await _info(client)
        check_server(info)
        _check_alone(info)
        await _try_to_write(client)
        client.refusals.is_logging = True
        if isinstance(client, SentinelRedis):
            client.follow_failovers()
        return
    await client.discover()
    answers = await asyncio.gather(*map(_info, client.masters), return_exceptions=True)
    problems = [answer for answer in answers if isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, dict):
            check_server(answer)
    for problem in problems:
        if len(problems) == len(answers) or not isinstance(problem, redis.exceptions.RedisError):
            raise problem
        # The clusters whose shards it holds fail by themselves.
        log.warning("store_server_away", error=str(problem))


def _describe(error: Exception, within: timedelta) -> str:
    if isinstance(error, TimeoutError):
        return f"does not answer within {within.total_seconds():g} seconds"
    text = _with_hint(error)
    is_refusal = isinstance(error, redis.exceptions.ResponseError) or hint_for(error)
    return f"refuses: {text}" if is_refusal else f"does not answer: {text}"


def _with_hint(error: Exception) -> str:
    hint = hint_for(error)
    return f"{str(error).rstrip('.')}; {hint}" if hint else str(error)


def _pool(access: StoreAccess, options: dict[str, Any]) -> BlockingConnectionPool:
    arguments = options | authentication_of(access, Credentials())  # redis-py reads the address's
    try:
        pool = BlockingConnectionPool.from_url(
            access.url, max_connections=_CONNECTIONS, **arguments
        )
    except ValueError:  # its message quotes the address, which may hold a password
        raise StoreError(f"Redis at {access.shown}: invalid address") from None
    pool.connection_class = packing(reading_tls(pool.connection_class, access.tls))
    return pool


def check_server(info: dict[str, Any]) -> None:
    """Refuse a server that would evict keys or lacks commands, by its INFO (rule P16).

    INFO includes the policy, and unlike CONFIG a service's user may call it (rule S8).

    Raises:
        StoreError: older than 7, another policy than `noeviction`, or a replica.
    """
    version = str(info.get("valkey_version") or info.get("redis_version") or "unknown")
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < _FLOOR:
        raise StoreError(f"the Redis server is {version}; fleetbus needs Redis or Valkey >= 7")
    policy = str(info.get("maxmemory_policy") or "unknown")
    if policy != _POLICY:
        raise StoreError(
            f"the Redis server has maxmemory-policy {policy}, which may evict keys; "
            f"set it to {_POLICY}"
        )
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        raise StoreError(
            f"the Redis server is a replica of {primary}, which takes no writes;"
            " the address must lead to the primary"
        )


def _check_alone(info: dict[str, Any]) -> None:
    """Refuse a node of a Cluster as a single server: it would redirect most commands."""
    if (info.get("server_mode") or info.get("redis_mode")) == "cluster":
        raise StoreError(
            "the Redis server is a node of a Cluster: write redis+cluster:// instead of redis://"
        )


async def is_full(client: Redis, key: str) -> bool:
    """Whether the server of a key has used up its maxmemory.

    Tried with a write that changes nothing; the key is a string.
    """
    try:
        await _write_nothing(client, key)
    except redis.exceptions.OutOfMemoryError:
        return True
    return False


async def _try_to_write(client: Redis) -> None:
    """Raise what keeps the server from taking any write at all.

    A full one is waited for, and a user without the right to write may want to read only.
    """
    with suppress(redis.exceptions.OutOfMemoryError, redis.exceptions.NoPermissionError):
        await _write_nothing(client, SnapshotKeys().counter(0))


async def _write_nothing(client: Redis, key: str) -> None:
    await client.setrange(key, 0, "")


async def _info(client: Redis) -> dict[str, Any]:
    names = ("server", "memory", "replication")
    sections = await asyncio.gather(*(client.info(name) for name in names))
    return {name: value for section in sections for name, value in section.items()}


@contextmanager
def store_errors(failure: str) -> Generator[None]:
    """Translate what the client raises.

    Args:
        failure: the beginning of the message, such as "the snapshot cannot be read".

    Raises:
        StoreError: the store did not answer, or refused.
    """
    try:
        with cancellable():  # redis-py sends under asyncio.wait_for
            yield
    except redis.exceptions.RedisError as e:
        raise StoreError(f"{failure}: {_with_hint(e)}") from e


class _Packing:
    """Mixed into a connection of redis-py: hiredis writes the commands.

    redis-py's asyncio connections write them in Python, argument by argument, which is a tenth of
    a worker's CPU time; its other connections use hiredis. 100 events take 56 us instead of 396.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        """Encode one command; its name may have several words."""
        return [pack(args)]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Encode several commands."""
        return [packed for command in commands for packed in self.pack_command(*command)]


def packing(plain: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return the same class of connection, with commands written by hiredis."""
    return type(plain.__name__, (_Packing, plain), {})
