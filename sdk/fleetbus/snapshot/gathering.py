"""A client of Redis that sends together what is asked for at one time.

Most of what a command costs a process is its own send and its own answer, not the command. So what
the tasks of a process want while an answer is on its way waits, and goes out in one write.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

from fleetbus.snapshot.misused import Misuses, is_misuse

LANES: Final = 1
"""Writes on their way at a time. The server does one thing after the other anyway, and what waits
for an answer goes out together: at 1,000 changes/s one lane has half the median delay of two."""
MOST: Final = 100
"""Commands in one write."""
_PATIENCE: Final = timedelta(seconds=2)


class _Command(NamedTuple):
    words: tuple[Any, ...]
    options: dict[str, Any]
    answer: asyncio.Future[Any]


class GatheringRedis(Redis):
    """As `Redis`; a command whose task is stopped is carried out all the same.

    Pipelines and subscriptions have connections of their own, as ever. Who meets a key that another
    program wrote is told its name (`KeyMisused`), and so is the log.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._waiting: list[_Command] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._is_called = False
        self._misuses = Misuses(self._ask_at_once)
        self._explaining: set[asyncio.Task[None]] = set()

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """A pipeline, as of `Redis`."""
        return _Explained(self._misuses, super().pipeline(transaction, shard_hint))

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command, together with what else is sent now.

        Raises:
            redis.exceptions.RedisError: as of `Redis`, to each what concerns it.
        """
        loop = asyncio.get_running_loop()
        command = _Command(args, options, loop.create_future())
        self._waiting.append(command)
        if not self._is_called and len(self._sending) < LANES:
            # Not at once: who else is ready to run may want something, too.
            self._is_called = True
            loop.call_soon(self._send)
        return await command.answer

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close; what is on its way has a moment to be answered."""
        for command in self._waiting:
            command.answer.cancel()
        self._waiting.clear()
        sending = {*self._sending, *self._explaining}
        if sending:
            await asyncio.wait(sending, timeout=_PATIENCE.total_seconds())
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await super().aclose(close_connection_pool)

    def _send(self) -> None:
        self._is_called = False
        while self._waiting and len(self._sending) < LANES:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            task = asyncio.create_task(self._run(batch), name="redis commands")
            self._sending.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._send()

    async def _run(self, batch: Sequence[_Command]) -> None:
        try:
            answers = await self._ask(batch)
        except asyncio.CancelledError:  # the loop ends
            for command in batch:
                command.answer.cancel()
            raise
        except Exception as e:  # noqa: BLE001 -- the tasks that asked decide
            # To each one of its own: a traceback grows with everybody who lets it through.
            answers = [copy.copy(e) for _ in batch]
        for command, answer in zip(batch, answers, strict=True):
            if command.answer.done():  # its task was stopped
                continue
            if is_misuse(answer):  # not here: others wait until we are through
                task = asyncio.create_task(self._explain(command, answer), name="redis misuse")
                self._explaining.add(task)
                task.add_done_callback(self._explaining.discard)
            elif isinstance(answer, Exception):
                command.answer.set_exception(answer)
            else:
                command.answer.set_result(answer)

    async def _explain(self, command: _Command, error: Exception) -> None:
        try:
            told = await self._misuses.explain(command.words, error)
        except asyncio.CancelledError:
            command.answer.cancel()
            raise
        if not command.answer.done():
            command.answer.set_exception(told)

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


class _Explained(Pipeline):
    """As `Pipeline`, with the name of a key that is of a type that it never has."""

    def __init__(self, misuses: Misuses, plain: Pipeline) -> None:
        super().__init__(
            plain.connection_pool, plain.response_callbacks, plain.is_transaction, plain.shard_hint
        )
        self._misuses = misuses

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        words = [word for command, _ in self.command_stack for word in command]
        try:
            return await super().execute(raise_on_error)
        except ResponseError as e:
            if not is_misuse(e):
                raise
            error = await self._misuses.explain(words, e)
        raise error
