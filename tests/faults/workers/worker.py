"""A worker of the campaign: the reconciler service with a controller that writes down what it does.

    python tests/run.py faults.workers.worker FOLDER WORKER SEED LONGEST [MUTATION]

The controller reads the object that its request names, holds it for a while, writes to the target
cluster, and notes both in `effects.jsonl`, each time under the fence of its lease and only while
the lease is surely its own, as all writes of `Cluster` are (R4). Some runs are slow, fail, ask for
another run, or block the event loop. Only the numbers of the queue are not the service's own.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import orjson

from faults.rig.armed import Armed, die
from faults.rig.load import CONFIG_MAPS
from faults.workers.kill_points import IN_RECONCILE, wrap
from faults.workers.mutants import WORKER_MUTATIONS
from faults.workers.settings import (
    ACK_WAIT,
    ACTING_RUNS,
    BLOCK_LEASES,
    CONCURRENCY,
    CONTROLLER,
    LINGERING,
    POISON,
    POISON_DEATHS,
    POLICY,
    SOURCES,
    TARGET,
    writes_target,
)
from fleetbus.bus import durables
from fleetbus.controller.controller import Controller
from fleetbus.errors import Conflict, FleetbusError, LeaseLostError, SnapshotBehind
from fleetbus.fleet.fleet import Fleet
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus.reconcile import Request, Result
from fleetbus.run.current import Run, current_run
from fleetbus.worker import host
from fleetbus.worker.worker import Worker
from fleetbus.workqueue.queue import Lease
from fleetbus_reconciler.main import run
from fleetbus_reconciler.settings import ReconcilerSettings
from support.processes.patch import replace

_TIMEOUT: Final = timedelta(seconds=60)
"""Longer than any run, however often its process stands still meanwhile: nobody may end it so."""
_STARVATION_TICK: Final = 0.1
_STARVED_SECONDS: Final = 0.3
_FIRST_BLOCK: Final = (0.5, 10.0)
_BETWEEN_BLOCKS: Final = (8.0, 24.0)
_lease: ContextVar[Lease] = ContextVar("lease")


class InjectedError(FleetbusError):
    """A run that fails on purpose."""


class Page:
    """The log of one run: a line per step, each in a single write, so that no kill tears it."""

    def __init__(self, file: int, worker: str, lease: Lease) -> None:
        self._file = file
        request = lease.request
        self.key = f"{request.cluster}/{request.namespace}/{request.name}"
        self._common = {
            "worker": worker,
            "pid": os.getpid(),
            "key": self.key,
            "fence": lease.fence,
        }

    def note(self, event: str, **more: Any) -> None:
        """Whoever has the lease now."""
        line = {"t": time.time(), "what": event, **self._common, **more}
        os.write(self._file, orjson.dumps(line) + b"\n")

    def act(self, event: str, **more: Any) -> None:
        """A side effect: only while the lease is ours.

        Raises:
            LeaseLostError: it may not be.
        """
        began = time.time()
        if current := current_run():
            current.require_lease()
        self.note(event, asked=began, **more)


def note_starvation(file: int, worker: str) -> None:
    """Note when this process was not given the processor: as good as a SIGSTOP. Never returns."""
    while True:
        since = time.time()
        time.sleep(_STARVATION_TICK)
        now = time.time()
        if now - since > _STARVED_SECONDS:
            line = {"t": now, "what": "starved", "since": since, "worker": worker}
            os.write(file, orjson.dumps(line) + b"\n")


class Actor:
    """The reconcile function.

    Args:
        folder: of the seed.
        worker: which process.
        seed: of the campaign.
        longest: how many leases a run takes at most.
        armed: where to die.
    """

    def __init__(self, folder: Path, worker: str, seed: int, longest: float, armed: Armed) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / "effects.jsonl", flags, 0o644)
        Thread(target=note_starvation, args=(self._file, worker), daemon=True).start()
        self._deaths = folder / "poison"
        self._worker = worker
        self._random = Random(f"{seed}/{worker}/{os.getpid()}")
        self._longest = longest
        self._armed = armed
        self._ended = 0
        self._acting = folder / f"{worker}.acting"
        self._blocks_at = time.time() + self._random.uniform(*_FIRST_BLOCK)

    async def __call__(self, request: Request, fleet: Fleet) -> Result | None:
        lease = _lease.get()
        page = Page(self._file, self._worker, lease)
        page.note("begin", attempt=lease.attempt, trigger=lease.trigger.decode())
        outcome = "stopped"
        try:
            answer = await self._act(page, request, fleet)
            outcome = "again" if answer else "ok"
        except BaseException as e:
            outcome = _outcome(e)
            raise
        else:
            return answer
        finally:
            page.note("end", outcome=outcome)
            self._tell_acting()

    async def _act(self, page: Page, request: Request, fleet: Fleet) -> Result | None:
        if page.key == POISON:
            self._perhaps_die()
        source = fleet.cluster(request.cluster)
        source_map = await source.get(CONFIG_MAPS, request.namespace, request.name)
        version = source_map["metadata"]["resourceVersion"] if source_map else ""
        page.act("read", rv=version)
        await self._dawdle(page)
        self._armed.reach(IN_RECONCILE)
        if writes_target(page.key):
            await self._write(page, request, fleet, version)
        page.act("acted", rv=version)
        chance = self._random.random()
        if chance < 0.03:
            raise InjectedError("as planned")
        return Result(requeue_after=timedelta(seconds=2 * chance)) if chance > 0.97 else None

    async def _dawdle(self, page: Page) -> None:
        """Most runs are quick; some are longer than a lease, in one of three ways."""
        chance = self._random.random()
        lease = POLICY.lease.total_seconds()
        if page.key in LINGERING:
            await asyncio.sleep(self._random.uniform(1, self._longest) * lease)
        elif chance < 0.03:
            await asyncio.sleep(self._random.uniform(0.05, min(1.8, self._longest)) * lease)
        elif time.time() > self._blocks_at:
            self._blocks_at = time.time() + self._random.uniform(*_BETWEEN_BLOCKS)
            seconds = min(BLOCK_LEASES, self._longest) * lease
            page.note("blocks", seconds=seconds)
            time.sleep(seconds)  # noqa: ASYNC251 -- the fault: nothing else of this process runs

    async def _write(self, page: Page, request: Request, fleet: Fleet, version: str) -> None:
        """To the target, if nobody has since we looked (R4); its log has the fence as manager."""
        target = fleet.cluster(TARGET)
        name = f"{request.cluster}.{request.name}"
        live = await target.live.get(CONFIG_MAPS, request.namespace, name)
        if live is None:
            raise InjectedError(f"{name} is not in the target")
        page.note("sends")
        metadata = {
            "name": name,
            "namespace": request.namespace,
            "resourceVersion": live["metadata"]["resourceVersion"],
        }
        fence = _lease.get().fence
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"fence": fence, "read": version},
        }
        await target.apply(CONFIG_MAPS, body, field_manager=fence, force=True)

    def _tell_acting(self) -> None:
        """From now on a kill hits somebody who works."""
        self._ended += 1
        if self._ended == ACTING_RUNS:
            self._acting.write_text(str(os.getpid()))

    def _perhaps_die(self) -> None:
        deaths = self._deaths.stat().st_size if self._deaths.exists() else 0
        if deaths < POISON_DEATHS:
            with self._deaths.open("ab") as file:
                file.write(b"x")
            die()


def _outcome(error: BaseException) -> str:
    for kind, outcome in (
        (SnapshotBehind, "behind"),
        (LeaseLostError, "refused"),
        (asyncio.CancelledError, "cancelled"),
        (Conflict, "conflict"),
        (InjectedError, "failed"),
    ):
        if isinstance(error, kind):
            return outcome
    return f"{type(error).__name__}: {error}"


def _keep_lease() -> None:
    """The lease of a run, for its function: authors do not get the fence itself."""
    inner = Worker._run_of

    def run_of(self: Worker, lease: Lease) -> Run:
        _lease.set(lease)
        return inner(self, lease)

    Worker._run_of = run_of


async def _main(controller: Controller) -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(ReconcilerSettings)
    set_up_logs(shared.log_format, shared.log_level)
    await run_until_stopped(reconciler=run(settings, shared, [controller]))


def main(folder: Path, worker: str, seed: int, longest: float, mutation: str = "") -> int:
    """Run until stopped."""
    replace(host, "QueuePolicy", lambda: POLICY)
    replace(durables, "ACK_WAIT", ACK_WAIT)
    armed = Armed(folder / f"{worker}.point")
    armed.listen()
    _keep_lease()
    wrap(armed)
    if mutation:
        WORKER_MUTATIONS[mutation]()
    controller = Controller(CONTROLLER, concurrency=CONCURRENCY, timeout=_TIMEOUT)
    controller.watch(CONFIG_MAPS, clusters=list(SOURCES))
    actor = Actor(folder, worker, seed, longest, armed)

    @controller.reconcile
    async def act(request: Request, fleet: Fleet) -> Result | None:
        return await actor(request, fleet)

    del act
    return run_service(worker, lambda: _main(controller))


if __name__ == "__main__":
    place, name, number, most, *rest = sys.argv[1:]
    sys.exit(main(Path(place), name, int(number), float(most), *rest))
