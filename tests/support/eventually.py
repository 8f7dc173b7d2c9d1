"""Waiting for a condition instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = TypeVar("Answer")

_POLL = 0.01
# A question that has waited for long is asked less often: many read a whole stream.
_RARE_POLL = 0.05
_BRIEFLY = timedelta(seconds=0.1)


@overload
async def eventually(
    predicate: Callable[[], Awaitable[Answer]], within: timedelta = ...
) -> Answer: ...
@overload
async def eventually(predicate: Callable[[], Answer], within: timedelta = ...) -> Answer: ...
async def eventually(
    predicate: Callable[[], Any], within: timedelta = timedelta(seconds=15)
) -> Any:
    """Ask `predicate` (a function or a coroutine function) until its answer is true; returns it.

    Raises:
        AssertionError: the time is over; the message has the last answer.
    """
    start = time.monotonic()
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        waited = time.monotonic() - start
        if waited > within.total_seconds():
            raise AssertionError(f"not within {within.total_seconds()} s; last answer: {answer!r}")
        await asyncio.sleep(min(max(_POLL, waited / 10), _RARE_POLL))  # between two questions


async def never(predicate: Callable[[], Any], during: timedelta = _BRIEFLY) -> None:
    """Check for a while that `predicate` has no true answer.

    Raises:
        AssertionError: it has one, which is in the message.
    """
    try:
        answer = await eventually(predicate, during)
    except AssertionError:
        return
    raise AssertionError(f"it happened: {answer!r}")


async def stays(answer: Any, question: Callable[[], Any], during: timedelta = _BRIEFLY) -> None:
    """Check for a while that `question` (a function or a coroutine function) has this answer.

    Raises:
        AssertionError: it has another, which is in the message.
    """
    deadline = time.monotonic() + during.total_seconds()
    while True:
        other = question()
        if inspect.isawaitable(other):
            other = await other
        assert other == answer
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(_POLL)  # between two questions
