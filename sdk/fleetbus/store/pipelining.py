"""A Redis client that pipelines the commands of concurrent tasks.

Most of what a command costs a process is a write and a read of its own, not the command. So while
an answer is outstanding, commands of other tasks wait, and are then sent in one write. Long
commands, scripts for many objects, are batched apart, so that short ones do not wait for them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

from fleetbus.store.foreign_keys import ForeignKeys, is_wrong_type

LONG: Final = 150
"""Arguments from which a command counts as long. More batchers do not help: the server executes one
command after another, and two for all commands double the median delay at 1,000 changes/s."""
MAX_BATCH: Final = 100
"""Commands in one write."""
_PATIENCE: Final = timedelta(seconds=2)


class _Command(NamedTuple):
    words: tuple[Any, ...]
    options: dict[str, Any]
    answer: asyncio.Future[Any]


Run = Callable[[Sequence[_Command]], Coroutine[Any, Any, None]]


class _Batcher:
    """Sends one batch at a time; `run` does not fail."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: list[_Command] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_called = False

    def add(self, command: _Command) -> None:
        self._waiting.append(command)
        if not self._is_called and self._sending is None:
            # Not at once: other tasks that are ready to run may add commands.
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._send)

    def close(self) -> set[asyncio.Task[None]]:
        """Cancel commands that wait; returns the tasks of those that were sent."""
        for command in self._waiting:
            command.answer.cancel()
        self._waiting.clear()
        return {self._sending} if self._sending else set()

    def _send(self) -> None:
        self._is_called = False
        if self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            self._sending = asyncio.create_task(self._run(batch), name="redis commands")
            self._sending.add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._sending = None
        self._send()


class PipeliningRedis(Redis):
    """Like `Redis`; a command whose task is cancelled is executed all the same.

    Pipelines and subscriptions have connections of their own, as usual. A key that another program
    wrote is named in the error (`ForeignKeyError`) and in the log.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._short, self._long = _Batcher(self._run), _Batcher(self._run)
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
        command = _Command(args, options, asyncio.get_running_loop().create_future())
        batcher = self._long if len(args) > LONG else self._short
        batcher.add(command)
        return await command.answer

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close, after waiting a moment for outstanding answers."""
        sending = self._short.close() | self._long.close() | self._explaining
        if sending:
            await asyncio.wait(sending, timeout=_PATIENCE.total_seconds())
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await super().aclose(close_connection_pool)

    async def _run(self, batch: Sequence[_Command]) -> None:
        try:
            answers = await self._ask(batch)
        except asyncio.CancelledError:  # the event loop ends
            for command in batch:
                command.answer.cancel()
            raise
        except Exception as e:  # noqa: BLE001 -- the callers decide
            # A copy for each: a traceback grows with every frame that lets it through.
            answers = [copy.copy(e) for _ in batch]
        for command, answer in zip(batch, answers, strict=True):
            if command.answer.done():  # its task was cancelled
                continue
            if is_wrong_type(answer):  # in a task of its own: the batch must not wait
                task = asyncio.create_task(self._explain(command, answer), name="redis foreign key")
                self._explaining.add(task)
                task.add_done_callback(self._explaining.discard)
            elif isinstance(answer, Exception):
                command.answer.set_exception(answer)
            else:
                command.answer.set_result(answer)

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

    async def _ask(self, batch: Sequence[_Command]) -> Sequence[Any]:
        if len(batch) == 1:
            [one] = batch
            return [await super().execute_command(*one.words, **one.options)]
        async with super().pipeline(transaction=False) as pipe:
            for command in batch:
                pipe.execute_command(*command.words, **command.options)
            return cast("Sequence[Any]", await pipe.execute(raise_on_error=False))


class _ExplainingPipeline(Pipeline):
    """Like `Pipeline`; an error about a key of the wrong type names the key."""

    def __init__(self, foreign_keys: ForeignKeys, *made: Any) -> None:
        super().__init__(*made)
        self._foreign_keys = foreign_keys

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        words = [word for command, _ in self.command_stack for word in command]
        try:
            return await super().execute(raise_on_error)
        except ResponseError as e:
            if not is_wrong_type(e):
                raise
            error = await self._foreign_keys.explain(words, e)
        raise error
