"""An event loop in a thread of its own, for callers that block or have a loop of their own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextlib import AbstractAsyncContextManager

P = ParamSpec("P")
T = TypeVar("T")

# A call into the loop takes microseconds; longer means that the loop is stuck.
STUCK = timedelta(seconds=30)


class LoopThread:
    """A thread with an event loop, and calls into it from other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        # A runner also cancels tasks that no server owns: TLS handshakes that clients left hanging.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[Any, Any, T], within: timedelta = STUCK) -> T:
        """Run a coroutine in the loop and return its result."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "called from within the emulated fleet: its loop would wait for itself"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(within.total_seconds())
        except TimeoutError:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the loop and return its result."""

        async def turn() -> T:
            return function(*args, **kwargs)

        return self.run(turn())

    def stop(self) -> None:
        """Stop the loop and wait for the thread to end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter an async context manager in the loop, and leave it in the same task.

        Cancel scopes and task groups inside must be left by the task that entered them.
        """
        ready: asyncio.Future[T] = self.call(lambda: asyncio.get_running_loop().create_future())
        leave = self.call(asyncio.Event)

        async def live() -> None:
            try:
                async with context as value:
                    ready.set_result(value)
                    await leave.wait()
            except BaseException as e:
                if not ready.done():
                    ready.set_exception(e)
                    return
                raise

        async def value() -> T:
            return await ready

        task = self.call(
            lambda: asyncio.get_running_loop().create_task(live(), name=self._thread.name)
        )

        async def ended() -> None:
            leave.set()
            await task

        try:
            yield self.run(value())
        finally:
            self.run(ended())
