"""Rule B14: a cancellation that a library swallows is given back."""

from __future__ import annotations

import asyncio

import pytest

from fleetbus.process.cancellation import cancel_and_wait, cancellable, patch_wait_for


async def swallow() -> None:
    try:
        await asyncio.sleep(60)  # until it is cancelled
    except asyncio.CancelledError:
        return


async def loop_over_swallowing_calls() -> None:
    while True:
        with cancellable():
            await swallow()


async def test_b14_a_loop_over_swallowing_calls_stops_at_the_first_cancel() -> None:
    task = asyncio.create_task(loop_over_swallowing_calls())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_b14_an_error_that_comes_with_the_cancellation_does_not_hide_it() -> None:
    async def fail_late() -> None:
        with cancellable():
            await swallow()
            raise ConnectionError

    task = asyncio.create_task(fail_late())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_b14_a_clean_up_after_a_cancellation_may_still_call() -> None:
    cleaned: list[bool] = []

    async def clean_up_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)  # until it is cancelled
        finally:
            with cancellable():
                await asyncio.sleep(0)
            cleaned.append(True)

    task = asyncio.create_task(clean_up_when_cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


async def test_b14_wait_for_does_not_swallow_a_cancellation_that_comes_with_the_answer() -> None:
    patch_wait_for()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask_for_ever() -> None:
        while True:
            await asyncio.wait_for(answer, 60)

    task = asyncio.create_task(ask_for_ever())
    await asyncio.sleep(0)
    answer.set_result(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_cured_wait_for_still_times_out() -> None:
    patch_wait_for()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0)


async def test_b14_a_cancellation_while_a_task_is_being_ended_is_ours():
    closing = asyncio.Event()
    go = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closing.set()
            await go.wait()

    async def end() -> None:
        task = asyncio.create_task(slow_to_end())
        await asyncio.sleep(0)
        await cancel_and_wait(task)

    ending = asyncio.create_task(end())
    await closing.wait()
    ending.cancel()
    await asyncio.wait([ending])
    go.set()
    assert ending.cancelled()


async def test_the_failure_of_a_task_that_is_ended_is_not_raised():
    async def fail() -> None:
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await cancel_and_wait(task)
