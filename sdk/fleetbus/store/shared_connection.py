"""One connection to the store over which many tasks send their commands.

redis-py borrows a connection for each command, writes, reads and switches tasks several times,
which costs a process two to eight times what the command itself does. Here the commands of all
tasks that are ready to run are sent in one write, those that come while answers are outstanding in
the next, and answers belong to commands by their order. While they come one by one, each is sent at
once: to wait for others would cost a turn of the event loop. redis-py still makes the connections:
addresses, TLS, authentication and the handshake.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

import hiredis
import redis.exceptions as errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from fleetbus.store.address import Place

MAX_BATCH: Final = 100
"""Commands in one write."""
ANSWER_WITHIN: Final = timedelta(seconds=30)
"""Unless the connections of the pool have a `socket_timeout`."""
PATIENCE: Final = timedelta(seconds=2)
"""Time that a close waits for the answers that are due."""
_TROUBLE_LASTS: Final = timedelta(seconds=5)
_INCOMPLETE: Final = object()


class Command(NamedTuple):
    """One command, or several that are sent together."""

    words: Sequence[Any]
    """Names and arguments, for an error's explanation."""
    packed: bytes
    answer: asyncio.Future[Any]
    held: int = 0
    """Number of commands that it holds: their replies come as one list. 0 for one command alone."""


class SharedConnection(asyncio.Protocol):
    """One connection, made when it is needed; one batch is outstanding at a time.

    Nothing is sent twice: what was outstanding when a connection ended fails, what was not sent yet
    goes over the next one.

    Args:
        pool: makes connections.
        settle: called with a command and its reply, which may be an error.
    """

    def __init__(self, pool: ConnectionPool, settle: Callable[[Command, Any], None]) -> None:
        self._pool = pool
        self._settle = settle
        limit = pool.connection_kwargs.get("socket_timeout")
        self._answer_within: float = limit or ANSWER_WITHIN.total_seconds()
        self._trouble = ""
        self._trouble_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Command] = deque()
        self._outstanding: deque[Command] = deque()
        self._is_scheduled = False
        self._is_lone = False
        """Whether the last answer was to one command alone: then the next one probably is, too."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_connecting = False
        self._connection: AbstractConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        """Whose transport it was: redis-py's, which also closes it."""
        self._replies = hiredis.Reader()
        self._partial: list[Any] = []
        """The replies so far to a command that holds several."""
        self._is_stale = False
        """Whether a reply says that another connection is needed, as after a failover."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._active_at = 0.0

    # --- sending ----------------------------------------------------------------------------------

    def add(self, command: Command) -> None:
        """Send a command, in one write with others that are added until this loop turn ends."""
        self._waiting.append(command)
        if self._is_lone and not self._is_scheduled:
            self._send()
        else:
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
        self._active_at = time.monotonic()
        if self._watchdog is None:
            loop = cast("asyncio.AbstractEventLoop", self._loop)
            self._watchdog = loop.call_later(self._answer_within, self._check_answers)

    def is_silent(self, since: timedelta) -> bool:
        """Whether an answer is due, and nothing has come for so long."""
        if not self._outstanding:
            return False
        return time.monotonic() - self._active_at > since.total_seconds()

    def leave_others(self, master: Place) -> None:
        """End a connection that leads to any other server; what was sent there fails."""
        its = cast("Any", self._connection)
        if its is not None and (its.host, its.port) != master:
            host, port = master
            self._disconnect(errors.ConnectionError(f"the master is {host}:{port} now"))

    def _check_answers(self) -> None:
        self._watchdog = None
        if not self._outstanding:
            return
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        left = self._active_at + self._answer_within - time.monotonic()
        if left > 0:
            self._watchdog = loop.call_later(left, self._check_answers)
        else:
            text = f"no answer within {self._answer_within:g} seconds"
            self._disconnect(errors.TimeoutError(text))

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed; empty if it did not, or is long ago.

        Nobody may have sent anything since: a node of a Cluster may hold no key that is asked for.
        """
        is_recent = time.monotonic() - self._trouble_at < _TROUBLE_LASTS.total_seconds()
        return self._trouble if is_recent else ""

    # --- receiving --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Settle the commands whose replies are complete."""
        self._active_at = time.monotonic()
        replies = self._replies
        outstanding = len(self._outstanding)
        try:
            replies.feed(data)
            while (reply := replies.gets()) is not _INCOMPLETE:
                if not isinstance(reply, hiredis.PushNotification):
                    self._receive(reply)
        except (errors.InvalidResponse, IndexError):
            self._disconnect(errors.InvalidResponse("the store sent what is no reply"))
            return
        if not self._outstanding:
            self._is_lone = outstanding == 1
            if self._is_stale:
                self._disconnect(errors.ConnectionError("the store wants another connection"))
            elif self._waiting or not self._is_lone:
                # After the tasks that these answers wake: their next commands need no other turn.
                self._schedule()

    def _receive(self, reply: Any) -> None:
        command = self._outstanding[0]
        if isinstance(reply, (errors.ConnectionError, errors.ReadOnlyError)):
            self._is_stale = True
        if command.held:
            self._partial.append(reply)
            if len(self._partial) < command.held:
                return
            reply, self._partial = self._partial, []
        self._outstanding.popleft()
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
            self._fail(self._waiting, _closed())
            raise
        except Exception as e:  # noqa: BLE001 -- the callers decide
            self._is_connecting = False
            self._trouble, self._trouble_at = str(e), time.monotonic()
            self._fail(self._waiting, e)
            return
        self._is_connecting = False
        self._trouble = ""
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
        self._partial = []
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
            transport.set_protocol(self._protocol)  # the end is its business now
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
        """Close, after waiting a moment for outstanding answers.

        Commands without an answer fail. They are not cancelled: a node of a Cluster is closed while
        the tasks that ask it go on, and these would end as if they had been stopped themselves.
        """
        self._fail(self._waiting, _closed())
        if self._outstanding:
            answers = [command.answer for command in self._outstanding]
            await asyncio.wait(answers, timeout=PATIENCE.total_seconds())
        self._fail(self._waiting, _closed())
        if self._watchdog is not None:
            self._watchdog.cancel()
        for task in self._tasks:  # that connects
            task.cancel()
        self._disconnect(_closed())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fail(self, commands: deque[Command], error: Exception) -> None:
        failed = list(commands)
        commands.clear()
        for command in failed:
            # A copy for each: a traceback grows with every frame that lets it through.
            self._settle(command, copy.copy(error))


def _closed() -> Exception:
    return errors.ConnectionError("the client is closed")
