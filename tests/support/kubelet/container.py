"""One container: its process, which is started again when it ends, and its probes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetbus_devfleet.processes.children import Child
from support.kubelet.api import Object
from support.kubelet.probes import Target, Threshold, succeeds
from support.kubelet.root import Root

_POLL = 0.05
_FIRST_BACKOFF = 1.0
_LAST_BACKOFF = 10.0


@dataclass
class Container:
    """A container of a pod.

    Attributes:
        spec: as in the pod's spec.
        enter: the beginning of a command that runs in the pod's sandbox.
        restart: the pod's restartPolicy.
        hurry: probes come so many times as often as they are declared.
        state: the file for who wants to run a program in it, as `kubectl exec` does.
    """

    spec: Object
    root: Root
    enter: Sequence[str]
    log: Path
    address: str
    restart: str
    hurry: float
    state: Path
    is_ready: bool = False
    is_started: bool = False
    restarts: int = 0
    exit_status: int | None = None
    waiting: str = "ContainerCreating"
    _child: Child | None = None
    _environment: dict[str, str] = field(default_factory=dict[str, str])
    _since: str = ""

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return self.spec["name"]

    @property
    def pid(self) -> int | None:
        """The process, if one runs."""
        return self._child.pid if self._child is not None and self._child.is_running else None

    async def run(self, command: list[str], environment: dict[str, str]) -> None:
        """Run until it ends for good, as the restart policy says."""
        self._environment = environment
        backoff = _FIRST_BACKOFF
        while True:
            self._start(command)
            try:
                async with asyncio.TaskGroup() as group:
                    probes = group.create_task(self._probe(), name=f"probes of {self.name}")
                    await self._ended()
                    probes.cancel()
            finally:
                self.is_ready = self.is_started = False
            if self.restart == "Never" or (self.restart == "OnFailure" and not self.exit_status):
                return
            self.waiting = "CrashLoopBackOff"
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LAST_BACKOFF)
            self.restarts += 1

    async def stop(self, grace: timedelta) -> None:
        """PreStop, SIGTERM, and SIGKILL when the grace period is over."""
        if self.pid is None:
            return
        self.is_ready = False
        end = asyncio.get_running_loop().time() + grace.total_seconds()
        hook = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook:
            await self._target().run(hook["command"], grace.total_seconds())
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await self._ended()
        self._signal(signal.SIGKILL)
        await self._ended()

    def kill(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.kill()

    def status(self) -> Object:
        """Its status, as in the pod's."""
        if self.pid is not None:
            state: Object = {"running": {"startedAt": self._since}}
        elif self.exit_status is not None and self.waiting != "CrashLoopBackOff":
            reason = "Error" if self.exit_status else "Completed"
            state = {"terminated": {"exitCode": self.exit_status, "reason": reason}}
        else:
            state = {"waiting": {"reason": self.waiting}}
        image = {"image": self.spec["image"], "imageID": self.spec["image"]}
        flags = {"ready": self.is_ready, "started": self.is_started, "restartCount": self.restarts}
        return {"name": self.name, **image, **flags, "state": state}

    def _start(self, command: list[str]) -> None:
        program = [*self.enter, *self.root.run(command)]
        self._child = Child(self.name, program, log=self.log, env=self._environment)
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.exit_status, self.waiting = None, ""
        self.state.parent.mkdir(parents=True, exist_ok=True)
        enter = self.root.run_beside(self._child.pid)
        self.state.write_text(json.dumps({"enter": enter, "environment": self._environment}))

    async def _ended(self) -> None:
        while True:
            if self._child is None or not self._child.is_running:
                break
            await asyncio.sleep(_POLL)
        if self._child is not None:
            status = self._child.exit_status or 0
            self.exit_status = status if status >= 0 else 128 - status

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.is_running:
            self._child.process.send_signal(number)

    # --- probes ---------------------------------------------------------------------------------

    def _target(self) -> Target:
        enter = self.root.run_beside(self.pid or 0)
        return Target(self.address, self.spec, enter, self._environment)

    async def _probe(self) -> None:
        if startup := self.spec.get("startupProbe"):
            await self._repeat(startup, until_success=True)
            if not self.is_started:
                return
        self.is_started = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._readiness(), name=f"readiness of {self.name}")
            if liveness := self.spec.get("livenessProbe"):
                group.create_task(self._repeat(liveness, until_success=False))

    async def _readiness(self) -> None:
        probe = self.spec.get("readinessProbe")
        if probe is None:
            self.is_ready = True
            return
        threshold = Threshold(probe, state=False)
        await self._pause(probe, "initialDelaySeconds", 0)
        while True:
            self.is_ready = threshold.take(success=await succeeds(probe, self._target()))
            await self._pause(probe, "periodSeconds", 10)

    async def _repeat(self, probe: Object, *, until_success: bool) -> None:
        """Probe until it has succeeded, or failed; what has failed for good is stopped."""
        failures = int(probe.get("failureThreshold", 3))
        await self._pause(probe, "initialDelaySeconds", 0)
        row = 0
        while True:
            success = await succeeds(probe, self._target())
            if success and until_success:
                self.is_started = True
                return
            row = 0 if success else row + 1
            if row >= failures:
                await self.stop(timedelta(seconds=30))
                return
            await self._pause(probe, "periodSeconds", 10)

    async def _pause(self, probe: Object, key: str, default: int) -> None:
        await asyncio.sleep(float(probe.get(key, default)) / self.hurry)
