"""The processes of distributors and agents, as the campaign starts and kills them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from faults.distributors.kill_points import is_of_agents
from faults.distributors.settings import DISTRIBUTORS, HUB, RESYNC
from fleetbus.process.settings import SharedSettings
from fleetbus_devfleet.processes.children import ChildError
from support.processes.programs import module
from support.processes.running import state_of

_PATIENCE: Final = 600
"""Seconds; on a busy machine the imports of the parent alone take minutes."""


class Processes:
    """All distributors of a campaign, and the agents that are added.

    Args:
        folder: of the seed.
        nursery: their parent.
        log: what was done, for the checks.
    """

    def __init__(
        self, folder: Path, nursery: asyncio.subprocess.Process, log: list[dict[str, Any]]
    ) -> None:
        self._folder = folder
        self._nursery = nursery
        self._log = log
        # Of those that are to run, beyond that of the parent.
        self._environments: dict[str, dict[str, str]] = {name: {} for name in DISTRIBUTORS}
        self._pids: dict[str, int] = {}
        self._terminated: set[int] = set()
        self._changed = asyncio.Condition()
        self._is_ready = False
        self.kept_down: set[str] = set()
        """Those that nobody starts again."""
        self.kills = 0
        """SIGKILLs of distributors."""

    def note(self, kind: str, **more: Any) -> None:
        """Append a line to the log of what was done."""
        self._log.append({"t": time.time(), "kind": kind, **more})

    async def read(self) -> None:
        """Follow what the parent reports, until cancelled."""
        assert self._nursery.stdout is not None
        while line := (await self._nursery.stdout.readline()).decode().split():
            async with self._changed:
                match line:
                    case ["ready"]:
                        self._is_ready = True
                    case ["started", name, pid]:
                        self._pids[name] = int(pid)
                    case ["ended", name, pid, status]:
                        self._ended(name, int(pid), int(status))
                    case _:
                        pass
                self._changed.notify_all()

    def _ended(self, name: str, pid: int, status: int) -> None:
        if self._pids.get(name) == pid:
            del self._pids[name]
        if status == -signal.SIGKILL and name in DISTRIBUTORS:
            self.kills += 1
        self.note("ended", process=name, status=status, terminated=pid in self._terminated)

    async def wait_until_ready(self) -> None:
        """Until the parent has imported everything.

        Raises:
            ChildError: it does not; its log has the reason.
        """
        try:
            async with asyncio.timeout(_PATIENCE), self._changed:
                await self._changed.wait_for(lambda: self._is_ready)
        except TimeoutError as e:
            raise ChildError(f"no nursery; see {self._folder}/nursery.log") from e

    @property
    def agents(self) -> list[str]:
        """The names of the agents that are to run."""
        return [name for name in self._environments if name not in DISTRIBUTORS]

    def is_running(self, name: str) -> bool:
        return name in self._pids

    def add(self, name: str, environment: dict[str, str]) -> None:
        """Let an agent run from now on, unless it is kept down; one that runs goes on."""
        self._environments[name] = environment
        if name not in self._pids and name not in self.kept_down:
            self._ask_to_start(name)

    def remove(self, name: str) -> None:
        """Kill an agent for good."""
        if self._environments.pop(name, None) is not None:
            self._tell_nursery(f"kill {name}")

    async def start(self, *names: str) -> None:
        """Start those that are to run and do not."""
        for name in names or tuple(self._environments):
            if self._is_missing(name):
                self._ask_to_start(name)
                await self._wait(lambda name=name: not self._is_missing(name))

    def _is_missing(self, name: str) -> bool:
        return name in self._environments and name not in self._pids and name not in self.kept_down

    def _ask_to_start(self, name: str) -> None:
        self._tell_nursery(f"start {name} {json.dumps(self._environments[name])}")

    def _tell_nursery(self, command: str) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(f"{command}\n".encode())

    async def kill(self, *names: str, why: str) -> None:
        """SIGKILL; one that is dead already does not count."""
        for name in names:
            if pid := self._pids.get(name):
                self.note("kill", process=name, why=why)
                self._send_signal(pid, signal.SIGKILL)
                await self._wait(lambda name=name, pid=pid: self._pids.get(name) != pid)

    async def terminate(self, name: str) -> None:
        """SIGTERM, and wait for the end; the caller keeps it down meanwhile."""
        if pid := self._pids.get(name):
            self.note("terminate", process=name)
            self._terminated.add(pid)
            self._send_signal(pid, signal.SIGTERM)
            await self._wait(lambda: self._pids.get(name) != pid)

    def is_stopped(self, name: str) -> bool:
        """Whether it stands still after SIGSTOP."""
        pid = self._pids.get(name)
        return pid is not None and state_of(pid) == "T"

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal; a process that is gone gets none."""
        if pid := self._pids.get(name):
            self._send_signal(pid, number)

    @staticmethod
    def _send_signal(pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    async def _wait(self, holds: Any) -> None:
        async with asyncio.timeout(_PATIENCE), self._changed:
            await self._changed.wait_for(holds)

    def arm(self, point: str, *names: str) -> None:
        """Let these die at a point, by default all that come by there; "" takes it back."""
        for name in names or self._armed_by_default(point):
            (self._folder / f"{name}.point").write_text(point)
            self.signal(name, signal.SIGUSR1)

    def _armed_by_default(self, point: str) -> list[str]:
        if not point:
            return [*self._environments]
        return self.agents if is_of_agents(point) else [*DISTRIBUTORS]

    async def death(self, within: float) -> str:
        """Wait until one dies; its name, or "" if none does."""
        running = set(self._pids)
        try:
            async with asyncio.timeout(within), self._changed:
                await self._changed.wait_for(lambda: not running <= self._pids.keys())
        except TimeoutError:
            return ""
        return next(iter(running - self._pids.keys()))

    async def is_dead(self, name: str, within: float) -> bool:
        """Wait until this one dies; whether it does."""
        pid = self._pids.get(name)
        try:
            async with asyncio.timeout(within), self._changed:
                await self._changed.wait_for(lambda: self._pids.get(name) != pid)
        except TimeoutError:
            return False
        return True


def environment_of(shared: SharedSettings) -> dict[str, str]:
    """The environment of a distributor, and of `fleetbus plan`."""
    return {
        **os.environ,
        "FLEETBUS_NATS_URL": str(shared.nats_url),
        "FLEETBUS_REDIS_URL": str(shared.redis_url),
        "FLEETBUS_HUB_KUBECONFIG": str(shared.hub_kubeconfig),
        "FLEETBUS_HUB_CONTEXT": HUB,
        "FLEETBUS_HUB_CLUSTER": HUB,
        "FLEETBUS_PROVIDERS": json.dumps([{"type": "cluster"}]),
        "FLEETBUS_DISTRIBUTOR_RESYNC": RESYNC,
        "FLEETBUS_DISTRIBUTOR_STATUS_AFTER": "1s",
        "FLEETBUS_ALLOW_LOOPBACK": "1",
        "FLEETBUS_LOG_LEVEL": "info",
        "FLEETBUS_LOG_FORMAT": "json",
    }


@asynccontextmanager
async def running_processes(
    folder: Path, shared: SharedSettings, log: list[dict[str, Any]], mutation: str
) -> AsyncGenerator[Processes]:
    """The parent, with no child yet; at the end no process is left."""
    words = module("faults.distributors.nursery", str(folder), *([mutation] if mutation else []))
    with (folder / "nursery.log").open("wb") as errors:
        nursery = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment_of(shared),
        )
    processes = Processes(folder, nursery, log)
    reading = asyncio.create_task(processes.read(), name="nursery")
    try:
        await processes.wait_until_ready()
        yield processes
    finally:
        reading.cancel()
        assert nursery.stdin is not None
        nursery.stdin.close()
        try:
            async with asyncio.timeout(10):
                await nursery.wait()
        except TimeoutError:
            nursery.kill()
            await nursery.wait()
