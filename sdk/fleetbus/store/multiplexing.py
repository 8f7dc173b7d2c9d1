"""A Redis client that sends the commands of all tasks over one connection.

With redis-py each command borrows a connection, writes, reads and switches tasks several times,
which costs a process two to eight times what the command itself does. Here the commands of all
tasks that are ready to run are sent in one write, those that come while answers are outstanding in
the next, and answers belong to commands by their order. redis-py still makes the connections:
addresses, TLS, authentication and the handshake.

Long commands, scripts for many objects, have a connection of their own, so that short ones do not
wait for them.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

import hiredis
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from fleetbus.store.foreign_keys import ForeignKeys, is_wrong_type

LONG: Final = 150
"""Arguments from which a command counts as long. More connections do not help: the server executes
one command after another, and two for all commands double the median delay at 1,000 changes/s."""
MAX_BATCH: Final = 100
"""Commands in one write."""
ANSWER_WITHIN: Final = timedelta(seconds=30)
_PATIENCE: Final = timedelta(seconds=2)
_INCOMPLETE: Final = object()


class _Command(NamedTuple):
    words: Sequence[Any]
    packed: bytes
    answer: asyncio.Future[Any]


class _Lane(asyncio.Protocol):
    """One connection, made when it is needed; one batch is outstanding at a time.

    Nothing is sent twice: what was outstanding when a connection ended fails, what was not sent yet
    goes over the next one.

    Args:
        pool: makes connections.
        settle: called with a command and its reply, which may be an error.
    """

    def __init__(self, pool: ConnectionPool, settle: Callable[[_Command, Any], None]) -> None:
        self._pool = pool
        self._settle = settle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Command] = deque()
        self._outstanding: deque[_Command] = deque()
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_connecting = False
        self._connection: AbstractConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        """Whose transport it was: redis-py's, which also closes it."""
        self._replies = hiredis.Reader()
        self._is_stale = False
        """Whether a reply says that another connection is needed, as after a failover."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._active_at = 0.0

    # --- sending ----------------------------------------------------------------------------------

    def add(self, command: _Command) -> None:
        """Send a command, in one write with others that are added until this loop turn ends."""
        self._waiting.append(command)
        self._schedule()

    def _schedule(self) -> None:
        if not (self._is_scheduled or self._is_connecting or self._outstanding):
            self._is_scheduled = True
            loop = self._loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if not self._waiting or self._outstanding or self._is_connecting:
            return
        if self._transport is None:
            self._is_connecting = True
            self._start(self._connect(), "redis connect")
            return
        while self._waiting and len(self._outstanding) < MAX_BATCH:
            self._outstanding.append(self._waiting.popleft())
        self._watch()
        self._transport.write(b"".join(command.packed for command in self._outstanding))

    def _watch(self) -> None:
        """Note that an answer is due. One timer per minute, not one per command."""
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        self._active_at = loop.time()
        if self._watchdog is None:
            self._watchdog = loop.call_later(ANSWER_WITHIN.total_seconds(), self._check_answers)

    def _check_answers(self) -> None:
        self._watchdog = None
        if not self._outstanding:
            return
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        left = self._active_at + ANSWER_WITHIN.total_seconds() - loop.time()
        if left > 0:
            self._watchdog = loop.call_later(left, self._check_answers)
        else:
            limit = ANSWER_WITHIN.total_seconds()
            self._disconnect(errors.TimeoutError(f"no answer within {limit:g} seconds"))

    # --- receiving --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Settle the commands whose replies are complete."""
        self._active_at = cast("asyncio.AbstractEventLoop", self._loop).time()
        replies = self._replies
        try:
            replies.feed(data)
            while (reply := replies.gets()) is not _INCOMPLETE:
                if not isinstance(reply, hiredis.PushNotification):
                    self._receive(reply)
        except (errors.InvalidResponse, IndexError):
            self._disconnect(errors.InvalidResponse("the store sent what is no reply"))
            return
        if not self._outstanding:
            if self._is_stale:
                self._disconnect(errors.ConnectionError("the store wants another connection"))
            elif self._waiting:
                self._schedule()

    def _receive(self, reply: Any) -> None:
        command = self._outstanding.popleft()
        if isinstance(reply, (errors.ConnectionError, errors.ReadOnlyError)):
            self._is_stale = True
        self._settle(command, reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what was sent."""
        reason = f": {exc}" if exc else " by the server"
        self._disconnect(errors.ConnectionError(f"connection closed{reason}"))
        if self._protocol is not None:  # whoever closed it may wait for this
            self._protocol.connection_lost(exc)

    # --- the connection ---------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            connection = await self._pool.get_connection()
        except asyncio.CancelledError:
            self._is_connecting = False
            self._cancel(self._waiting)
            raise
        except Exception as e:  # noqa: BLE001 -- the callers decide
            self._is_connecting = False
            self._fail(self._waiting, e)
            return
        self._is_connecting = False
        self._take_over(connection)
        self._send()

    def _take_over(self, connection: AbstractConnection) -> None:
        """Receive from a connection's transport instead of redis-py.

        It has no public attribute for either; a test guards the two that are used.
        """
        its: Any = connection
        self._connection = connection
        self._replies = hiredis.Reader(
            protocolError=errors.InvalidResponse,
            replyError=its._parser.parse_error,  # noqa: SLF001 -- see above
            notEnoughData=_INCOMPLETE,
        )
        self._is_stale = False
        transport = cast("asyncio.Transport", its._writer.transport)  # noqa: SLF001
        if transport.is_closing():
            self._disconnect(errors.ConnectionError("connection closed by the server"))
            return
        self._protocol = transport.get_protocol()
        transport.set_protocol(self)
        self._transport = transport

    def _disconnect(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        if transport is not None and self._protocol is not None:
            transport.set_protocol(self._protocol)  # it is told of the end, and we are not
        if connection is not None:
            self._start(self._give_back(connection), "redis disconnect")
        self._fail(self._outstanding, error)
        if self._waiting:
            self._schedule()

    async def _give_back(self, connection: AbstractConnection) -> None:
        try:
            await connection.disconnect(nowait=True)
        finally:
            await self._pool.release(connection)

    def _start(self, step: Any, name: str) -> None:
        task = cast("asyncio.AbstractEventLoop", self._loop).create_task(step, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end ----------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close, after waiting a moment for outstanding answers."""
        self._cancel(self._waiting)
        if self._outstanding:
            answers = [command.answer for command in self._outstanding]
            await asyncio.wait(answers, timeout=_PATIENCE.total_seconds())
        self._cancel(self._waiting)
        self._cancel(self._outstanding)
        if self._watchdog is not None:
            self._watchdog.cancel()
        for task in self._tasks:  # that connects
            task.cancel()
        self._disconnect(errors.ConnectionError("the client is closed"))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fail(self, commands: deque[_Command], error: Exception) -> None:
        failed = list(commands)
        commands.clear()
        for command in failed:
            # A copy for each: a traceback grows with every frame that lets it through.
            self._settle(command, copy.copy(error))

    def _cancel(self, commands: deque[_Command]) -> None:
        while commands:
            commands.popleft().answer.cancel()


class MultiplexingRedis(Redis):
    """Like `Redis`; a command whose task is cancelled is executed all the same.

    Pipelines and subscriptions have connections of their own, as usual. A key that another program
    wrote is named in the error (`ForeignKeyError`) and in the log.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._short = _Lane(self.connection_pool, self._settle)
        self._long = _Lane(self.connection_pool, self._settle)
        self._foreign_keys = ForeignKeys(self._ask_at_once)
        self._explaining: set[asyncio.Task[None]] = set()

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """See `Redis.pipeline`."""
        made = (self.connection_pool, self.response_callbacks, transaction, shard_hint)
        return _ExplainingPipeline(self._foreign_keys, *made)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command together with others that are sent now.

        Raises:
            redis.exceptions.RedisError: as in `Redis`, to each caller its own.
        """
        command = _Command(args, pack(args), asyncio.get_running_loop().create_future())
        (self._long if len(args) > LONG else self._short).add(command)
        try:
            reply = await command.answer
        except errors.ResponseError:
            if EMPTY_RESPONSE in options:
                return options[EMPTY_RESPONSE]
            raise
        callback = self.response_callbacks.get(args[0])
        if callback is None:
            return reply
        for ours in (NEVER_DECODE, EMPTY_RESPONSE, "keys"):
            options.pop(ours, None)
        value = callback(reply, **options)
        return await value if inspect.isawaitable(value) else value

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close, after waiting a moment for outstanding answers."""
        await asyncio.gather(self._short.aclose(), self._long.aclose())
        for task in self._explaining:
            task.cancel()
        await asyncio.gather(*self._explaining, return_exceptions=True)
        await super().aclose(close_connection_pool)

    def _settle(self, command: _Command, reply: Any) -> None:
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

    async def _explain(self, command: _Command, error: Exception) -> None:
        try:
            explained = await self._foreign_keys.explain(command.words, error)
        except asyncio.CancelledError:
            command.answer.cancel()
            raise
        if not command.answer.done():
            command.answer.set_exception(explained)

    async def _ask_at_once(self, commands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        async with super().pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            return cast("Sequence[Any]", await pipe.execute())


class _ExplainingPipeline(Pipeline):
    """Like `Pipeline`; an error about a key of the wrong type names the key."""

    def __init__(self, foreign_keys: ForeignKeys, *made: Any) -> None:
        super().__init__(*made)
        self._foreign_keys = foreign_keys

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        words = [word for command, _ in self.command_stack for word in command]
        try:
            return await super().execute(raise_on_error)
        except errors.ResponseError as e:
            if not is_wrong_type(e):
                raise
            error = await self._foreign_keys.explain(words, e)
        raise error


def pack(words: Iterable[Any]) -> bytes:
    """Encode one command; its name may have several words.

    Raises:
        redis.exceptions.DataError: an argument is neither bytes, str, int nor float.
    """
    name, *rest = words
    try:
        return cast("bytes", hiredis.pack_command(cast("Any", (*name.split(), *rest))))
    except TypeError as e:
        raise errors.DataError(str(e)) from e
