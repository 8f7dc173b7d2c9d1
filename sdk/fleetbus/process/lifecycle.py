"""Runs the loops of a process until one fails or the process is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, cast

import structlog

from fleetbus.errors import ConfigError, FleetbusError
from fleetbus.process import printer
from fleetbus.process.garbage import collect_garbage, leave_startup_objects
from fleetbus.process.release import check_parts

log = structlog.get_logger()


async def run_until_stopped(**loops: Coroutine[Any, Any, None]) -> None:
    """Run named loops until SIGTERM or SIGINT; a loop that raises ends them all.

    On a stop the loops are cancelled, and may take their time to finish cleanly.

    Raises:
        BaseExceptionGroup: what the loops raised.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(body, name=name) for name, body in loops.items()]
            stopping = group.create_task(stop.wait(), name="stop-signal")
            collecting = group.create_task(collect_garbage(), name="collect-garbage")
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in (stopping, collecting, *tasks):
                task.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run_service(
    name: str,
    main: Callable[[], Coroutine[Any, Any, None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    is_command: bool = False,
) -> int:
    """Run a service's main coroutine and return the exit status; bad input gives no traceback.

    2 means that the configuration is wrong, 1 that the process failed; Kubernetes restarts it.

    Args:
        name: the command, for messages.
        main: creates the coroutine.
        loop_factory: creates the event loop; None means asyncio's own.
        is_command: a person has started it: an expected error is a message, not a log line.
    """
    leave_startup_objects()
    try:
        check_parts()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())
    except KeyboardInterrupt:  # Ctrl-C before the loops ran; later it is an ordinary stop
        return 130
    except BaseExceptionGroup as group:
        return _report(name, _first_of(group), is_command=is_command)
    except Exception as e:  # noqa: BLE001 -- the top of the process: report and exit
        return _report(name, e, is_command=is_command)
    return 0


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    return first


def _report(name: str, error: BaseException, *, is_command: bool) -> int:
    is_config = isinstance(error, ConfigError)
    if is_config or (is_command and isinstance(error, FleetbusError)):
        printer.note(f"{name}: {error}")  # for the user who started it
        return 2 if is_config else 1
    if isinstance(error, FleetbusError):
        log.error("process_failed", service=name, error=str(error))
    else:
        log.error("process_failed", service=name, exc_info=error)
    return 1
