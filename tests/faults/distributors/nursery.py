"""Distributors and agents that start in milliseconds: a parent that has imported everything forks.

    python tests/run.py faults.distributors.nursery FOLDER [MUTATION]

Each is a process of its own with connections of its own, and SIGKILL ends it like any other; only
the seconds of importing are saved, hundreds of times. The parent reads commands and reports:

    start NAME ENVIRONMENT   →  started NAME PID, and later: ended NAME PID STATUS
    kill NAME                →  ended NAME PID STATUS

ENVIRONMENT is a JSON object of variables. One that runs is not started twice.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from faults.distributors.kill_points import KillPoints
from faults.distributors.mutants import DISTRIBUTOR_MUTATIONS
from faults.distributors.settings import (
    ACK_WAIT,
    AGENT_TIMES,
    CALLER_TIMES,
    CHUNKED_FROM,
    DISTRIBUTORS,
    LATER,
    OBJECT_TIMEOUT,
    PART_BYTES,
    POLICY,
    RARELY,
    SWEEP,
)
from fleetbus.agent_calls.calls import agent_calls
from fleetbus.bus import durables
from fleetbus.worker import connections, host
from fleetbus_agent import main as agent_service
from fleetbus_distributor import main as distributor_service
from fleetbus_distributor.orphan_sweep import OrphanSweep
from fleetbus_distributor.plan import intent
from fleetbus_distributor.targets import converge, target
from support.processes.patch import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus.owned_objects.refusal import Refusal
    from fleetbus_distributor.targets.outcome import State

_TICK: Final = 0.01
_INPUT: Final = 0
_MOST: Final = 64 * 1024
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # loaded before any fork


def _with_waits(waits: Mapping[timedelta, timedelta]) -> dict[Refusal, tuple[State, timedelta]]:
    findings = target.FINDINGS  # made with the waits of the product
    return {why: (state, waits.get(retry, retry)) for why, (state, retry) in findings.items()}


def shorten_waits() -> None:
    """Scale what is a wait; see `settings`."""
    replace(host, "QueuePolicy", lambda: POLICY)
    replace(durables, "ACK_WAIT", ACK_WAIT)
    replace(intent, "MAX_BYTES", CHUNKED_FROM)
    replace(intent, "PART_BYTES", PART_BYTES)
    replace(converge, "OBJECT_TIMEOUT", OBJECT_TIMEOUT)
    replace(connections, "agent_calls", partial(agent_calls, times=CALLER_TIMES))
    replace(agent_service, "run", partial(agent_service.run, times=AGENT_TIMES))
    waits = {target.LATER: LATER, target.RARELY: RARELY}
    replace(target, "FINDINGS", _with_waits(waits))
    for module in [
        m for name, m in sys.modules.items() if name.startswith("fleetbus_distributor.")
    ]:
        for name in {"LATER", "RARELY"} & vars(module).keys():
            replace(module, name, waits[getattr(module, name)])
    sweep = OrphanSweep.__init__

    def often(self: OrphanSweep, fleet: object, reader: object, _period: object) -> None:
        sweep(self, fleet, reader, SWEEP)  # pyright: ignore[reportArgumentType]

    replace(OrphanSweep, "__init__", often)


class Nursery:
    """Forks distributors and agents, and reports their ends.

    Args:
        folder: of the seed.
        mutation: the rule that they are without; "" for none.
    """

    def __init__(self, folder: Path, mutation: str) -> None:
        self._folder = folder
        self._children: dict[int, str] = {}
        shorten_waits()
        if mutation:
            DISTRIBUTOR_MUTATIONS[mutation].apply()

    def run(self) -> None:
        """Serve until the input ends."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a child listens itself
        self._say("ready")
        unread = b""
        while True:
            readable, _, _ = select.select([_INPUT], [], [], _TICK)
            if readable:
                # Not by lines: those that a buffer holds are not readable for `select`.
                data = os.read(_INPUT, _MOST)
                if not data:
                    break
                *commands, unread = (unread + data).split(b"\n")
                for command in commands:
                    self._do(*command.decode().split(maxsplit=2))
            self._reap()
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _do(self, command: str, name: str, environment: str = "{}") -> None:
        pids = [pid for pid, child in self._children.items() if child == name]
        if command == "kill":
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                self._report(*os.waitpid(pid, 0))
        elif not pids:
            self._start(name, json.loads(environment))

    def _start(self, name: str, environment: dict[str, str]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            os.environ.update(environment)
            self._become(name, parent)
        self._children[pid] = name
        self._say(f"started {name} {pid}")

    def _become(self, name: str, parent: int) -> None:
        status = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                return
            log = os.open(self._folder / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for stream, file in ((0, nothing), (1, log), (2, log)):
                os.dup2(file, stream)
            points = KillPoints(self._folder, name)
            points.armed.listen()
            if name in DISTRIBUTORS:
                points.wrap_distributor()
                status = distributor_service.main([])
            else:
                points.wrap_agent()
                status = agent_service.main([])
        finally:
            os._exit(status)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._report(pid, status)

    def _report(self, pid: int, status: int) -> None:
        name = self._children.pop(pid)
        self._say(f"ended {name} {pid} {os.waitstatus_to_exitcode(status)}")

    def _say(self, words: str) -> None:
        print(words, flush=True)


if __name__ == "__main__":
    place, *rest = sys.argv[1:]
    Nursery(Path(place), *rest or [""]).run()
