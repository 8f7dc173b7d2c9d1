"""Finds calls without `await`, which do nothing and report nothing.

Each call of a method of `Cluster`, `Fleet` or `live` inside a run is recorded with its line; a run
that ends while one of them was never awaited has failed.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from fleetbus.errors import NeverAwaited
from fleetbus.run.current import Call, current_run

P = ParamSpec("P")
T = TypeVar("T")

_MANY: Final = 64
"""Number of calls that are recorded before those that were awaited are dropped; then at each
doubling, so that a call costs no more when very many are made for one `gather`."""


def must_be_awaited(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an asynchronous method so that a run fails if it calls it without `await`."""
    name = method.__qualname__

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        work = method(*args, **kwargs)
        run = current_run()
        if run is not None:
            if _is_power_of_two(len(run.calls)) and len(run.calls) >= _MANY:
                run.calls[:] = [pending for pending in run.calls if not pending.has_begun]
            run.calls.append(Call(work, name, *_caller()))
        return work

    return call


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _caller() -> tuple[str, int]:
    """File and line of the call; `inspect.stack` would take a thousand times longer.

    No frame but the caller's is touched: one that a local variable of its own names is a cycle, and
    would keep the arguments of every call alive until the garbage collector runs.
    """
    caller = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the only way
    return caller.f_code.co_filename, caller.f_lineno


async def call_with_awaits(work: Awaitable[T], calls: list[Call]) -> T:
    """Await a run of user code; it fails if it called a method without `await`.

    It may have failed of that already, by using the coroutine as what it would have returned:
    "'coroutine' object is not subscriptable" names another line, and not the call.

    Args:
        work: the run.
        calls: of this run; they are added while it lasts.

    Raises:
        NeverAwaited: with the line of the first one.
    """
    try:
        result = await work
    except (TypeError, AttributeError) as e:
        if "coroutine" in str(e):
            require_awaited(calls)
        raise
    require_awaited(calls)
    return result


def require_awaited(calls: list[Call]) -> None:
    """Fail if one of these calls was never awaited.

    Raises:
        NeverAwaited: with the line of the first one.
    """
    waiting = [call for call in calls if not call.has_begun]
    calls.clear()
    if not waiting:
        return
    # A task that has not started yet will await it.
    scheduled = {task.get_coro() for task in asyncio.all_tasks()}
    forgotten = [call for call in waiting if call.work not in scheduled]
    for call in forgotten:
        call.work.close()
    if forgotten:
        first = forgotten[0]
        raise NeverAwaited(
            f"{first.name} was called without await at {first.file}:{first.line}, so it did"
            " nothing: write `await` before it, or `fleet.wait(…)` around it in a plain function"
        )
