"""The owner of the stack that `fleetbus dev up` leaves running.

It is the parent of every process, so they end with it, however it ends. It restarts what crashes,
as Kubernetes would, and reports its state in `stack.json` and its own log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from fleetbus.process.logs import set_up_logs
from fleetbus.process.pauses import Pauses
from fleetbus_devfleet.processes.children import ChildError
from fleetbus_devfleet.stack.plan import APISERVER
from fleetbus_devfleet.stack.stack import Stack
from fleetbus_devfleet.stack.state import Phase, StackState, owned, write_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fleetbus_devfleet.stack.plan import StackPlan

_TURN = timedelta(milliseconds=200)
_LONGEST_PAUSE = timedelta(seconds=30)

log = structlog.get_logger()


def supervise(plan: StackPlan) -> int:
    """Run a stack until SIGTERM; returns the exit status."""
    set_up_logs("text")
    with owned(plan.layout) as is_owner:
        if not is_owner:
            log.error("stack_is_owned_already", folder=str(plan.layout.root))
            return 1
        return asyncio.run(_Supervisor(plan).run())


class _Supervisor:
    def __init__(self, plan: StackPlan) -> None:
        self._plan = plan
        self._phase: Phase = "starting"
        self._stack = Stack(plan, report=self._on_part)

    async def run(self) -> int:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await self._run_stack()
        except asyncio.CancelledError:
            log.info("stopped")
        except Exception as error:  # noqa: BLE001 - the top of the process: `dev up` shows it
            log.error("stack_failed", error=str(error))  # noqa: TRY400 - the message says it all
            failed = StackState(phase="failed", pid=os.getpid(), error=str(error))
            write_state(self._plan.layout.state, failed)
            return 1
        self._plan.layout.state.unlink(missing_ok=True)
        # They name ports that now belong to nobody, or to a stranger.
        self._plan.layout.kubeconfig.unlink(missing_ok=True)
        self._plan.layout.hub_kubeconfig.unlink(missing_ok=True)
        return 0

    async def _run_stack(self) -> None:
        self._enter("starting")
        try:
            await self._stack.start()
            self._enter("running")
            await self._mend()
        finally:
            self._enter("stopping")
            await self._stack.aclose()

    async def _mend(self) -> None:
        """Restart what ends; the pause grows while a part keeps failing."""
        pauses = Pauses(_TURN, _LONGEST_PAUSE)
        while True:
            await pauses.sleep()
            if await restart_each(self._stack.ended(), self._restart):
                pauses.reset()

    async def _restart(self, name: str) -> None:
        if name == APISERVER:
            words = self._stack.last_words(name)
            raise RuntimeError(f"the emulated clusters are gone; the last words were:\n{words}")
        log.warning("part_ended", part=name)
        try:
            await self._stack.restart(name)
        finally:  # what is not ready in time has a new process all the same
            self._write()

    def _on_part(self, name: str, is_ready: bool) -> None:
        log.info("part_ready" if is_ready else "part_starts", part=name)
        self._write()

    def _enter(self, phase: Phase) -> None:
        log.info("phase", phase=phase)
        self._phase = phase
        self._write()

    def _write(self) -> None:
        state = dataclasses.replace(self._stack.state(), phase=self._phase)
        write_state(self._plan.layout.state, state)


async def restart_each(names: Iterable[str], restart: Callable[[str], Awaitable[None]]) -> bool:
    """Restart some parts; one that fails does not keep the others from it. Whether none failed."""
    failed = False
    for name in names:
        try:
            await restart(name)
        except ChildError as error:
            log.warning("restart_failed", part=name, error=str(error))
            failed = True
    return not failed
