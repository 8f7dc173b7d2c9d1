"""The distributor processes, as the campaign starts and kills them."""

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

from faults.distributors.settings import DISTRIBUTORS, HUB, RESYNC
from fleetbus.process.settings import SharedSettings
from fleetbus_devfleet.processes.children import ChildError
from support.processes.programs import module

_PATIENCE: Final = 60


class Processes:
    """All distributors of a campaign.

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
        self._pids: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._is_ready = False
        self.kept_down: set[str] = set()
        """Those that nobody starts again."""
        self.kills = 0

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
        if status == -signal.SIGKILL:
            self.kills += 1
        self.note("ended", process=name, status=status)

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

    def is_running(self, name: str) -> bool:
        return name in self._pids

    async def start(self, *names: str) -> None:
        """Start those that do not run."""
        for name in names or DISTRIBUTORS:
            if name not in self._pids and name not in self.kept_down:
                assert self._nursery.stdin is not None
                self._nursery.stdin.write(f"start {name}\n".encode())
                await self._wait(lambda name=name: name in self._pids)

    async def kill(self, *names: str, why: str) -> None:
        """SIGKILL; one that is dead already does not count."""
        for name in names:
            if pid := self._pids.get(name):
                self.note("kill", process=name, why=why)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await self._wait(lambda name=name, pid=pid: self._pids.get(name) != pid)

    async def _wait(self, holds: Any) -> None:
        async with asyncio.timeout(_PATIENCE), self._changed:
            await self._changed.wait_for(holds)

    def arm(self, point: str, *names: str) -> None:
        """Let these die at a point; "" takes it back."""
        for name in names or DISTRIBUTORS:
            (self._folder / f"{name}.point").write_text(point)
            if pid := self._pids.get(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)

    async def death(self, within: float) -> str:
        """Wait until one dies; its name, or "" if none does."""
        running = set(self._pids)
        try:
            async with asyncio.timeout(within), self._changed:
                await self._changed.wait_for(lambda: not running <= self._pids.keys())
        except TimeoutError:
            return ""
        return next(iter(running - self._pids.keys()))

    async def keep_running(self) -> None:
        """Like a kubelet: start what has ended, until cancelled."""
        while True:
            await asyncio.sleep(0.2)
            await self.start()


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
    """The parent, with no distributor yet; at the end no process is left."""
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
