"""A client of a Redis or Valkey Cluster: each command goes to the master that holds its keys.

A node has a multiplexed client of its own. A command that a node redirected was not executed, so it
is sent to the other node; nothing else is ever sent twice (rule Q11).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.crc import key_slot

from fleetbus.store.address import Place
from fleetbus.store.multiplexing import MultiplexingRedis
from fleetbus.store.topology import Topology

T = TypeVar("T")
_REDIRECTS: Final = 8
"""A command is redirected once or twice; while slots are moved it may have to wait as well."""
_TRY_AGAIN: Final = timedelta(milliseconds=50)
_WITHOUT_KEY: Final = frozenset(
    {
        *("ACL", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "ECHO"),
        *("FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO", "KEYS", "LASTSAVE", "LATENCY"),
        *("PING", "PUBLISH", "ROLE", "SAVE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT"),
    }
)
_EVERYWHERE: Final = frozenset(
    {"SCRIPT LOAD", "SCRIPT FLUSH", "FLUSHALL", "FLUSHDB", "DBSIZE", "KEYS"}
)
"""Sent to every master."""
_SCRIPTS: Final = frozenset({"EVAL", "EVALSHA"})
_AWAY: Final = (
    *(errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError),
    *(errors.MasterDownError, errors.ReadOnlyError),
)
"""After these errors another node may hold the slot."""


class ClusterRedis(Redis):
    """Like `Redis`; commands and transactions whose keys share a hash tag work as usual.

    Args:
        seeds: some of the nodes.
        make: makes the client of a node.
    """

    def __init__(self, seeds: Sequence[Place], make: Callable[[Place], MultiplexingRedis]) -> None:
        super().__init__()  # its connection pool stays empty
        self._topology = Topology(seeds, make)

    @property
    def masters(self) -> Sequence[MultiplexingRedis]:
        """The clients of the masters, as far as they are known."""
        return self._topology.masters

    @property
    def trouble(self) -> str:
        """Why no connection to a master can be made, as far as it was tried; or empty."""
        return next((node.trouble for node in self.masters if node.trouble), "")

    async def discover(self) -> None:
        """Find the masters.

        Raises:
            redis.exceptions.RedisError: no node answers, or slots have no master.
        """
        await self._topology.refresh()
        self._topology.watch()
        if not self._topology.is_complete:
            raise errors.ClusterDownError("some slots of the Cluster have no server")

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the master of its key.

        Raises:
            redis.exceptions.RedisError: as in `Redis`, to each caller its own.
        """
        if args[0] in _EVERYWHERE:
            return await self._execute_everywhere(args, options)

        async def send(node: MultiplexingRedis, *, is_asking: bool) -> Any:
            if not is_asking:
                return await node.execute_command(*args, **options)
            _, reply = await node.execute_together([("ASKING",), args])
            if isinstance(reply, Exception):
                raise reply
            return await node.parse_reply(args[0], reply, options)

        return await self.follow(slot_of(args), send)

    async def _execute_everywhere(self, args: Sequence[Any], options: dict[str, Any]) -> Any:
        answers = await asyncio.gather(
            *(node.execute_command(*args, **options) for node in self.masters),
            return_exceptions=True,
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        results = [answer for answer in answers if not isinstance(answer, BaseException)]
        # A script is loaded where that is possible: it is not known here who needs it.
        if failed and not (results and args[0] == "SCRIPT LOAD"):
            self._topology.suspect()
            raise failed[0]
        if not results:
            raise errors.ClusterDownError("no server of the Cluster is known")
        if args[0] == "DBSIZE":
            return sum(results)
        return [key for keys in results for key in keys] if args[0] == "KEYS" else results[0]

    async def follow(self, slot: int | None, send: Callable[..., Awaitable[T]]) -> T:
        """Send something to the master of a slot, and where that redirects it to.

        Args:
            slot: None for any master.
            send: sends it to a node; raises the node's refusal.

        Raises:
            redis.exceptions.RedisError: as raised by `send`, unless it was a redirection.
        """
        node, is_asking = self._topology.owner(slot), False
        for _ in range(_REDIRECTS):
            try:
                return await send(node, is_asking=is_asking)
            except errors.AskError as e:
                node, is_asking = self._redirected(e, node), not isinstance(e, errors.MovedError)
            except errors.TryAgainError:  # the keys of the slot are being moved
                await asyncio.sleep(_TRY_AGAIN.total_seconds())
                node, is_asking = self._topology.owner(slot), False
            except _AWAY:
                self._topology.suspect()
                raise
        raise errors.ClusterDownError(
            "the slot of this command is being moved, and its keys wait; if that lasts, the servers"
            " of the Cluster disagree about it"
        )

    def _redirected(self, error: errors.AskError, node: MultiplexingRedis) -> MultiplexingRedis:
        # An empty host is that of the node which answers.
        own_host: str = node.connection_pool.connection_kwargs["host"]
        host, port = cast("Place", error.node_addr)
        place = (host or own_host, port)
        if isinstance(error, errors.MovedError):
            return self._topology.move(error.slot_id, place)
        return self._topology.client(place)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """See `Redis.pipeline`; the keys of a transaction share a hash tag."""
        return _ClusterPipeline(self, transaction, shard_hint)

    def pubsub(self, **options: Any) -> PubSub:
        """See `Redis.pubsub`: any node has the messages of all."""
        return self._topology.owner(None).pubsub(**options)

    async def scan_iter(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """See `Redis.scan_iter`."""
        for node in self.masters:
            async for key in cast("AsyncIterator[Any]", node.scan_iter(*args, **options)):
                yield key

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close, after waiting a moment for outstanding answers."""
        await self._topology.aclose()
        await super().aclose(close_connection_pool)


class _ClusterPipeline(Pipeline):
    """Divides its commands among the nodes; a transaction goes to one."""

    def __init__(self, client: ClusterRedis, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """See `Pipeline.execute`."""
        if self.watching or self.scripts:
            raise errors.RedisError(
                "a pipeline of a Cluster neither watches keys nor loads scripts"
            )
        stack, self.command_stack = cast("list[Any]", self.command_stack), []
        if not stack:
            return []
        slots = {slot for words, _ in stack if (slot := slot_of(words)) is not None}
        if len(slots) <= 1:
            replies = await self._send_to(next(iter(slots), None), stack)
        elif self.is_transaction:
            raise errors.DataError("the keys of a transaction must share a hash tag")
        else:
            replies = await self._divide(stack)
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if raise_on_error and error is not None:
            raise error
        return replies

    async def _send_to(self, slot: int | None, stack: Sequence[Any]) -> list[Any]:
        async def send(node: MultiplexingRedis, *, is_asking: bool) -> list[Any]:
            if is_asking:  # each command has to ask for itself
                raise errors.TryAgainError("the slot is being moved")
            pipe = node.pipeline(transaction=self.is_transaction)
            for words, options in stack:
                pipe.execute_command(*words, **options)
            return await pipe.execute(raise_on_error=False)

        replies = await self._client.follow(slot, send)
        return replies if self.is_transaction else await self._follow_each(replies, stack)

    async def _divide(self, stack: Sequence[Any]) -> list[Any]:
        """Send the commands of each slot together, those of all slots at the same time."""
        groups: dict[int | None, list[int]] = {}
        for at, (words, _) in enumerate(stack):
            groups.setdefault(slot_of(words), []).append(at)
        parts = [[stack[at] for at in places] for places in groups.values()]
        answers = await asyncio.gather(
            *(self._send_to(slot, portion) for slot, portion in zip(groups, parts, strict=True)),
            return_exceptions=True,
        )
        replies: list[Any] = [None] * len(stack)
        for places, answer in zip(groups.values(), answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, errors.RedisError):
                raise answer
            for number, at in enumerate(places):
                replies[at] = answer if isinstance(answer, Exception) else answer[number]
        return replies

    async def _follow_each(self, replies: list[Any], stack: Sequence[Any]) -> list[Any]:
        """Send what was redirected, and so not executed, to where it belongs."""
        for at, reply in enumerate(replies):
            if isinstance(reply, (errors.AskError, errors.TryAgainError)):
                words, options = stack[at]
                try:
                    replies[at] = await self._client.execute_command(*words, **options)
                except errors.RedisError as e:
                    replies[at] = e
        return replies


def slot_of(words: Sequence[Any]) -> int | None:
    """The slot of a command's first key; None for a command without keys."""
    name = str(words[0])
    if name in _SCRIPTS:
        key = words[3] if int(words[2]) else None
    elif name.partition(" ")[0] in _WITHOUT_KEY:
        key = None
    else:
        key = words[1] if len(words) > 1 else None
    if key is None:
        return None
    return key_slot(key.encode() if isinstance(key, str) else bytes(key))
