"""A Redis client that sends the commands of all tasks over one connection: see `shared_connection`.

Long commands, scripts for many objects, have a connection of their own, so that short ones do not
wait for them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import hiredis
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from fleetbus.store.address import Place
from fleetbus.store.foreign_keys import ForeignKeys, is_wrong_type
from fleetbus.store.refusals import Refusals
from fleetbus.store.shared_connection import Command, SharedConnection

LONG: Final = 150
"""Arguments from which a command counts as long. More connections do not help: the server executes
one command after another, and two for all commands double the median delay at 1,000 changes/s."""
_OURS: Final = frozenset({NEVER_DECODE, EMPTY_RESPONSE, "keys"})
"""Options of redis-py's methods that are not for their response callbacks."""


class MultiplexingRedis(Redis):
    """Like `Redis`; a command whose task is cancelled is executed all the same.

    Subscriptions, and pipelines that watch keys, have connections of their own, as usual. A key
    that another program wrote is named in the error (`ForeignKeyError`) and in the log.

    Attributes:
        refusals: logs what to do when the store refuses; not before it is switched on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._short = SharedConnection(self.connection_pool, self._settle)
        self._long = SharedConnection(self.connection_pool, self._settle)
        self._foreign_keys = ForeignKeys(self._ask_at_once)
        self._explaining: set[asyncio.Task[None]] = set()
        self.refusals = Refusals()

    @property
    def trouble(self) -> str:
        """Why no connection can be made, as far as it was tried; or empty."""
        return self._short.trouble

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """See `Redis.pipeline`."""
        return _MultiplexedPipeline(self, transaction, shard_hint)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command together with others that are sent now.

        Raises:
            redis.exceptions.RedisError: as in `Redis`, to each caller its own.
        """
        command = Command(args, pack(args), asyncio.get_running_loop().create_future())
        (self._long if len(args) > LONG else self._short).add(command)
        try:
            reply = await command.answer
        except errors.ResponseError:
            if EMPTY_RESPONSE in options:
                return options[EMPTY_RESPONSE]
            raise
        return await self.parse_reply(args[0], reply, options)

    async def execute_together(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands with nothing between them; returns their replies, errors among them.

        Raises:
            redis.exceptions.RedisError: nobody knows what was executed.
        """
        words = [word for command in commands for word in command]
        packed = b"".join(map(pack, commands))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection = self._long if len(words) > LONG else self._short
        connection.add(Command(words, packed, answer, len(commands)))
        return cast("list[Any]", await answer)

    def is_silent(self, since: timedelta) -> bool:
        """Whether answers of the server are due, and it has sent nothing for so long."""
        return self._short.is_silent(since) or self._long.is_silent(since)

    def leave_others(self, master: Place) -> None:
        """End connections to any other server; what was sent there fails."""
        for connection in (self._short, self._long):
            connection.leave_others(master)

    async def parse_reply(self, name: str | bytes, reply: Any, options: Mapping[str, Any]) -> Any:
        """The value that the method for a command returns."""
        callback = self.response_callbacks.get(name)
        if callback is None:
            return reply
        reply_options = {key: value for key, value in options.items() if key not in _OURS}
        value = callback(reply, **reply_options)
        return await value if inspect.isawaitable(value) else value

    async def explain(self, words: Sequence[Any], error: Exception) -> Exception:
        """The error to raise instead of one about a key of the wrong type."""
        return await self._foreign_keys.explain(words, error)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close, after waiting a moment for outstanding answers."""
        await asyncio.gather(self._short.aclose(), self._long.aclose())
        for task in self._explaining:
            task.cancel()
        await asyncio.gather(*self._explaining, return_exceptions=True)
        await super().aclose(close_connection_pool)

    def _settle(self, command: Command, reply: Any) -> None:
        self.refusals.note(reply, is_list=bool(command.held))
        answer = command.answer
        if answer.done():  # its task was cancelled
            return
        if not isinstance(reply, Exception):
            answer.set_result(reply)
        elif is_wrong_type(reply):  # in a task of its own: other answers must not wait
            task = asyncio.create_task(self._explain(command, reply), name="redis foreign key")
            self._explaining.add(task)
            task.add_done_callback(self._explaining.discard)
        else:
            answer.set_exception(reply)

    async def _explain(self, command: Command, error: Exception) -> None:
        explained = error
        try:
            explained = await self.explain(command.words, error)
        finally:  # the client may be closed meanwhile
            if not command.answer.done():
                command.answer.set_exception(explained)

    async def _ask_at_once(self, commands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        replies = await self.execute_together(commands)
        return [
            await self.parse_reply(words[0], _raised(reply), {})
            for words, reply in zip(commands, replies, strict=True)
        ]


class _MultiplexedPipeline(Pipeline):
    """A pipeline over its client's connection, unless it watches keys.

    An error about a key of the wrong type names the key.
    """

    def __init__(
        self, client: MultiplexingRedis, transaction: bool, shard_hint: str | None
    ) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """See `Pipeline.execute`."""
        if self.watching or self.scripts:
            return await super().execute(raise_on_error)
        stack, self.command_stack = self.command_stack, []
        if not stack:
            return []
        replies = await self._replies([command for command, _ in stack])
        if raise_on_error:
            await self._raise_first_error(stack, replies)
        return [
            reply
            if isinstance(reply, Exception)
            else await self._client.parse_reply(command[0], reply, options)
            for (command, options), reply in zip(stack, replies, strict=True)
        ]

    async def _replies(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        if not self.is_transaction:
            return await self._client.execute_together(commands)
        replies = await self._client.execute_together([("MULTI",), *commands, ("EXEC",)])
        executed = replies[-1]
        if isinstance(executed, Exception):  # what was refused before says why
            raise next(reply for reply in replies if isinstance(reply, Exception))
        return cast("list[Any]", executed)

    async def _raise_first_error(self, stack: Sequence[Any], replies: Sequence[Any]) -> None:
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if error is not None and is_wrong_type(error):
            words = [word for command, _ in stack for word in command]
            raise await self._client.explain(words, error)
        self.raise_first_error(cast("Any", stack), replies)
        # redis-py looks for errors of commands only; "loading" and "log in" are of the connection.
        if error is not None:
            raise error


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


_pack: Final = cast("Callable[[Any], bytes]", hiredis.pack_command)


def pack(words: Iterable[Any]) -> bytes:
    """Encode one command; its name may have several words.

    Raises:
        redis.exceptions.DataError: an argument is neither bytes, str, int nor float.
    """
    name, *arguments = words
    try:
        return _pack((*name.split(), *arguments))
    except TypeError as e:
        raise errors.DataError(str(e)) from e
