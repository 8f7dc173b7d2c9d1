"""Runs plain functions as reconcile functions, each run in a thread of its own (rule R7).

A thread cannot be cancelled. Its run keeps slot and lease until it returns, or a second owner of
the request would start beside it; if it never returns, the heartbeat ends the process (rule Q5).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Generic, ParamSpec, TypeVar

from fleetbus.errors import RunStopped

P = ParamSpec("P")
T = TypeVar("T")


class _Bridge:
    """Passes calls of one thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: concurrent.futures.Future[Any] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Refuse further calls, and cancel the one that the thread waits for."""
        with self._lock:
            self._is_stopped = True
            waiting = self._waiting
        if waiting is not None:
            waiting.cancel()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_stopped:
                work.close()
                raise RunStopped("this run was stopped; nothing was sent")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting = future
        try:
            return future.result()
        except concurrent.futures.CancelledError as e:
            raise RunStopped("this run was stopped while it waited") from e
        finally:
            with self._lock:
                self._waiting = None


_bridge: ContextVar[_Bridge | None] = ContextVar("fleetbus_bridge", default=None)


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop for a plain reconcile function, and wait for its result.

    Raises:
        RunStopped: the run's time is over, its lease is lost or the process ends.
        RuntimeError: this is not the thread of a plain reconcile function.
    """
    bridge = _bridge.get()
    if bridge is None or threading.current_thread() is threading.main_thread():
        work.close()
        raise RuntimeError("wait() is for plain reconcile functions; here, `await` it")
    return bridge.wait(work)


def _ended(function: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Its result and what it raised, as values: a future does not carry every exception."""
    try:
        return function(), None
    except (Exception, SystemExit) as e:  # noqa: BLE001 -- user code; raised again in the loop
        return None, e
    except BaseException as e:  # noqa: BLE001 -- user code: nobody interrupts this thread
        error = RuntimeError(f"{type(e).__name__} was raised")
        error.__cause__ = e
        return None, error


class _InThread(Generic[P]):
    """A plain function as one that can be awaited; see `as_async`."""

    def __init__(self, function: Callable[P, object], *, threads: int, name: str) -> None:
        self._function = function
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function; a cancellation is raised once it has returned."""
        loop = asyncio.get_running_loop()
        bridge = _Bridge(loop)
        context = copy_context()
        context.run(_bridge.set, bridge)
        thread = loop.run_in_executor(
            self._pool, lambda: _ended(lambda: context.run(self._function, *args, **kwargs))
        )
        stopped: asyncio.CancelledError | None = None
        while not thread.done():
            try:
                await asyncio.wait({thread})
            except asyncio.CancelledError as e:
                stopped = e
                bridge.stop()
        if stopped is not None:
            raise stopped  # not what it raised after it was stopped
        result, error = thread.result()
        if error is not None:
            raise error
        # A decorator may hide that a function is asynchronous.
        return await result if inspect.isawaitable(result) else result


def as_async(function: Callable[P, Any], *, threads: int, name: str) -> Callable[P, Awaitable[Any]]:
    """Return an `async` function as it is, and a plain one wrapped so that it runs in a thread.

    Args:
        function: a reconcile function.
        threads: the most runs at a time.
        name: prefix of the names of the threads.
    """
    call = getattr(function, "__call__", None)  # noqa: B004 -- an object may have an async one
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return function
    return _InThread(function, threads=threads, name=name)
