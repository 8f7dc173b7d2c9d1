"""Loops side by side, and how a process ends: in a process of its own, with real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from fleetbus.process.lifecycle import run_until_stopped
from support.processes.programs import module


@pytest.fixture(autouse=True)
def pytests_own_handlers() -> Generator[None]:
    """asyncio gives a signal back to its default, not to the handler that pytest relies on."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@asynccontextmanager
async def _service(*words: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *module("scripts.service", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _result(*words: str) -> tuple[int | None, str, str]:
    async with asyncio.timeout(30), _service(*words) as process:
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_w21_a_signal_lets_every_loop_finish_and_ends_with_zero(number: signal.Signals):
    async with asyncio.timeout(30), _service("two-loops") as process:
        assert process.stdout is not None
        for _ in range(2):
            assert await process.stdout.readline() == b"running\n"
        process.send_signal(number)
        out, err = await process.communicate()
    assert out.decode().splitlines() == ["finished cleanly"] * 2
    assert (process.returncode, err) == (0, b"")


async def test_a_wrong_configuration_is_one_line_and_status_2():
    status, _, err = await _result("wrong-configuration")
    assert (status, err) == (2, "svc: clusters.yaml: clusters.0.name: missing\n")


async def test_a_wrong_configuration_found_by_a_loop_is_one_line_too():
    status, out, err = await _result("loop-with-wrong-configuration")
    assert (status, err) == (2, "svc: x: y\n")
    assert "finished cleanly" in out


async def test_an_error_that_we_know_is_a_line_without_a_traceback():
    status, _, err = await _result("known-error")
    assert status == 1
    assert "the stream is missing" in err
    assert "process_failed" in err
    assert "Traceback" not in err


async def test_an_error_that_nobody_expected_is_reported_with_its_traceback():
    status, _, err = await _result("unexpected-error")
    assert status == 1
    assert "Traceback" in err
    assert len(err.splitlines()) == 1  # one JSON line, so that it stays together in a log


async def test_ctrl_c_before_the_loops_run_is_no_traceback():
    async with asyncio.timeout(30), _service("slow-start") as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"starting\n"
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")


# --- in this process --------------------------------------------------------------------------


async def test_a_loop_that_ends_stops_the_others():
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def short() -> None:
        ended.append("short")

    await run_until_stopped(endless=endless(), short=short())
    assert ended == ["short", "endless"]


async def test_a_loop_that_raises_stops_the_others_and_is_reported():
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def fails() -> NoReturn:
        raise ValueError("broken")

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_until_stopped(endless=endless(), fails=fails())
    assert caught.group_contains(ValueError, match="broken")
    assert ended == ["endless"]


async def test_loops_are_tasks_with_their_names():
    names: list[str] = []

    async def look() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())

    await run_until_stopped(watch=look())
    assert names == ["watch"]


async def test_the_signal_handlers_are_given_back():
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    async def stop_itself() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()

    await run_until_stopped(loop=stop_itself())
    assert not loop.remove_signal_handler(signal.SIGTERM)


async def test_an_expected_error_of_a_command_is_a_message_and_no_log_line():
    assert await _result("known-error", "--command") == (1, "", "svc: the stream is missing\n")
