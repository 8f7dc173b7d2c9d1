"""A group of coroutines ends together, and a cancellation is never lost (rule W21)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import pytest

from fleetbus_watcher.errgroup import run_group
from support.rows import each_row

T = TypeVar("T")


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> NoReturn:
    raise ValueError("broken")


async def test_the_first_error_ends_the_others_and_is_raised_by_itself():
    cleaned: list[str] = []

    async def clean_up_late() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0.01)  # a slow end
            cleaned.append("up")

    async def fail_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            await run_group(late=clean_up_late(), group=fail_in_a_group(), endless=for_ever())
    assert cleaned == ["up"] * 3
    assert task.cancelling() == 0


async def test_it_ends_when_all_have_returned():
    await run_group(one=asyncio.sleep(0), two=asyncio.sleep(0.01))  # one takes longer
    await run_group()


async def test_the_first_value_ends_the_others_and_is_returned():
    cleaned: list[str] = []

    async def clean_up() -> None:
        try:
            await for_ever()
        finally:
            cleaned.append("up")

    async def decide(pause: float) -> str:
        await asyncio.sleep(pause)  # a decision that takes its time
        return f"after {pause}"

    outcome = await run_group(
        endless=clean_up(), none=asyncio.sleep(0), early=decide(0.01), late=decide(5)
    )
    assert (outcome, cleaned) == ("after 0.01", ["up"])


async def test_a_value_hides_no_error_that_comes_with_it():
    async def decide() -> str:
        return "a value"

    for _ in range(20):
        with pytest.raises(ValueError, match="broken"):
            await run_group(value=decide(), error=fail())


async def begun(group: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A group whose members wait."""
    running = asyncio.create_task(group)
    for _ in range(10):
        await asyncio.sleep(0)
    return running


async def test_w21_a_stop_wins_over_a_value():
    gate = asyncio.Event()

    async def decide() -> str:
        await gate.wait()
        return "a value"

    running = await begun(run_group(one=decide(), two=for_ever()))
    gate.set()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_w21_a_stop_wins_over_an_error_on_the_way_out():
    async def fail_when_stopped() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("broken by the stop") from None

    running = await begun(run_group(one=fail_when_stopped(), two=for_ever()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@each_row("turns", range(5))
async def test_w21_a_stop_wins_over_an_error_that_came_just_before_it(turns: int):
    gate = asyncio.Event()

    async def fail_at_the_gate() -> None:
        await gate.wait()
        await fail()

    running = await begun(run_group(one=fail_at_the_gate(), two=for_ever()))
    gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    if not running.done():
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        with pytest.raises(ValueError, match="broken"):
            await running
