"""Calls without `await`: they would do nothing, and say nothing.

Each call of a method of `Cluster`, `Fleet` or `live` inside a run is noted with its line; a run
that ends while one of them was never awaited has failed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from fleetbus.errors import NeverAwaited
from fleetbus.run.current import current_run

P = ParamSpec("P")
T = TypeVar("T")

_MANY: Final = 64
"""So many calls are noted before those that have begun are dropped; then at each doubling, so that
very many calls for one `gather` cost no more each."""


class Call(NamedTuple):
    """One call of a run."""

    work: Coroutine[Any, Any, Any]
    name: str
    file: str
    line: int

    @property
    def has_begun(self) -> bool:
        """Whether anybody awaits it, or did."""
        return inspect.getcoroutinestate(self.work) != inspect.CORO_CREATED


def must_be_awaited(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Note each call of an asynchronous method that a run makes."""
    name = method.__qualname__

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        work = method(*args, **kwargs)
        run = current_run()
        if run is not None:
            if _is_power_of_two(len(run.calls)) and len(run.calls) >= _MANY:
                run.calls[:] = [one for one in run.calls if not one.has_begun]
            run.calls.append(Call(work, name, *_caller()))
        return work

    return call


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _caller() -> tuple[str, int]:
    """File and line of whoever called the method; `inspect.stack` takes a thousand times longer."""
    here = inspect.currentframe()
    wrapper = here.f_back if here else None
    caller = wrapper.f_back if wrapper else None
    return (caller.f_code.co_filename, caller.f_lineno) if caller else ("", 0)


def require_awaited(calls: list[Call]) -> None:
    """Refuse calls that nobody awaited.

    Raises:
        NeverAwaited: there is one; it names the line of the first.
    """
    waiting = [call for call in calls if not call.has_begun]
    calls.clear()
    if not waiting:
        return
    # A task that has not had its turn yet will begin it.
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
