"""`fleetbus dev`: start a stack that stays, show its state, stop it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from fleetbus_devfleet.checklist import Checklist
from fleetbus_devfleet.processes.children import end_process
from fleetbus_devfleet.processes.patience import Patience
from fleetbus_devfleet.stack.plan import APISERVER, clean_environment, progress_option
from fleetbus_devfleet.stack.state import (
    PartStatus,
    StackState,
    is_alive,
    is_owned,
    probe,
    read_state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fleetbus_devfleet.console import Console
    from fleetbus_devfleet.stack.plan import Layout

RUNNING = "running"
_POLL = 0.05
# From owning the folder to the first state.
_FIRST_STATE_PATIENCE = timedelta(seconds=3)
_START_PATIENCE = timedelta(seconds=120)
"""Without progress; longer than the supervisor waits, which says more."""
_STOP_PATIENCE = timedelta(seconds=20)


class DevError(Exception):
    """The stack could not be started or stopped; the message says why."""


def start(
    layout: Layout,
    *,
    clusters: int,
    agents: int = 0,
    capture: Path | None = None,
    record: bool,
    secrets: bool = False,
    progress_interval: timedelta | None,
    console: Console,
) -> StackState:
    """Start a supervisor that outlives us, and wait until its stack runs.

    Of several that start at the same time in one folder, one does; the others wait for it.

    Args:
        layout: where.
        clusters: how many.
        agents: how many of them are behind agents.
        capture: the clusters of this file instead, with its objects.
        record: write the ground truth of each cluster to a file.
        secrets: watch Secrets, too, without their values.
        progress_interval: how often the clusters' stores report progress; None for all the time.
        console: shows the progress.

    Raises:
        DevError: it failed; the message has the reason.
        OSError: the folder cannot be used.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    with (layout.root / "starting").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        state = _settled_state(layout)
        counts = ["--clusters", str(clusters), "--agents", str(agents)]
        chosen = counts if capture is None else ["--from", str(capture)]
        switches = [("--record", record), ("--secrets", secrets)]
        options = [option for option, is_set in switches if is_set]
        options += progress_option(progress_interval)
        return state or _start(layout, [*chosen, *options], console=console)


def _start(layout: Layout, options: Sequence[str], *, console: Console) -> StackState:
    layout.state.unlink(missing_ok=True)  # of an owner that was killed: nobody owns it now
    log = layout.root / "supervisor.log"
    with log.open("wb") as sink:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-m", "fleetbus_devfleet"),
                *("--dir", str(layout.root), *options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
            start_new_session=True,
        )
    try:
        with Checklist(console, title="starting the fleet") as checklist:
            state = _wait_running(layout, supervisor, checklist)
    except BaseException:
        # Ctrl-C: half a fleet is of no use to anybody. If need be, it dies with its owner.
        end_process(supervisor, patience=_STOP_PATIENCE)
        raise
    # It outlives us on purpose; a Popen that is dropped while its process runs complains of that.
    supervisor.returncode = 0
    return state


def running_state(layout: Layout) -> StackState | None:
    """The state of the stack in a folder; None if nobody owns one, whatever files are left."""
    deadline = time.monotonic() + _FIRST_STATE_PATIENCE.total_seconds()
    while is_owned(layout):
        state = read_state(layout.state)
        if state is not None or time.monotonic() > deadline:
            return state
        time.sleep(_POLL)
    return None


def _settled_state(layout: Layout) -> StackState | None:
    """The state of a stack that runs; waits for one that starts or stops."""
    deadline = time.monotonic() + _START_PATIENCE.total_seconds()
    while True:
        state = running_state(layout)
        if state is None or state.phase == RUNNING:
            return state
        if time.monotonic() > deadline:
            raise DevError(f"process {state.pid} still is {state.phase} the fleet")
        time.sleep(_POLL)


def difference(
    state: StackState,
    clusters: int | None,
    *,
    agents: int | None = None,
    record: bool,
    secrets: bool = False,
    progress_interval: timedelta | None = None,
) -> str:
    """Describe how the running stack differs from the requested one; empty if it does not.

    Args:
        state: The stack.
        clusters: The requested number; None for any.
        agents: How many of them have to be behind agents; None for any.
        record: Whether its ground truth has to be written to files.
        secrets: Whether Secrets have to be watched.
        progress_interval: How often its stores have to report progress; None for any.
    """
    if clusters is not None and clusters != len(state.clusters):
        return f"with --clusters {len(state.clusters)} and not {clusters}"
    if agents is not None and agents != len(state.behind_agents):
        return f"with --agents {len(state.behind_agents)} and not {agents}"
    if progress_interval and progress_interval.total_seconds() != state.progress_seconds:
        return "with another --progress-interval"
    missing = [("--record", record, state.record), ("--secrets", secrets, state.secrets)]
    return next(
        (f"without {name}" for name, requested, has in missing if requested and not has), ""
    )


def inspect(state: StackState) -> list[PartStatus]:
    """Ask every part of a stack whether it is ready."""
    return asyncio.run(_inspect(state))


async def _inspect(state: StackState) -> list[PartStatus]:
    parts = await probe(state.parts)
    problem = await _record_problem(state) if state.record and state.admin_url else ""
    return [
        replace(part, state="not ready", problem=problem)
        if problem and part.name == APISERVER and not part.problem
        else part
        for part in parts
    ]


async def _record_problem(state: StackState) -> str:
    """The reason why the ground truth of a cluster is no longer written; empty if all are."""
    import aiohttp

    from fleetbus_emulator.apiserver.admin import AdminClient, AdminError

    try:
        async with AdminClient(state.admin_url) as admin:
            clusters = await admin.clusters()
    except (aiohttp.ClientError, AdminError):
        return ""  # the probe has reported it
    return "; ".join(info.record_problem for info in clusters if info.record_problem)


def stop(state: StackState, layout: Layout) -> None:
    """Stop the owner of a stack; returns when no process of it is left.

    Raises:
        DevError: a process is left.
    """
    _signal(state.pid, signal.SIGTERM)
    if not _wait_gone(state, layout):
        # Its children get SIGKILL from the kernel when it dies.
        _signal(state.pid, signal.SIGKILL)
        if not _wait_gone(state, layout):
            left = [part.name for part in state.parts if is_alive(part.pid)]
            raise DevError(f"process {state.pid} was killed, but there still are: {left}")
    layout.state.unlink(missing_ok=True)


def _wait_running(
    layout: Layout, supervisor: subprocess.Popen[bytes], checklist: Checklist
) -> StackState:
    patience = Patience(_START_PATIENCE)
    state: StackState | None = None
    while not patience.is_over(state.ready if state is not None else None):
        ended = supervisor.poll() is not None
        state = read_state(layout.state)
        if state is not None:
            if state.phase == RUNNING:
                _tick(checklist, state)
                return state
            if state.error:
                raise DevError(state.error)
            _tick(checklist, state)
        if ended:
            words = (layout.root / "supervisor.log").read_text(errors="replace").strip()
            raise DevError(f"the supervisor ended with status {supervisor.returncode}:\n{words}")
        time.sleep(_POLL)
    late = f"the fleet does not run: {patience.waited}"
    raise DevError(f"{late}; not ready: {_not_ready(state)}; logs are in {layout.root / 'logs'}")


def _not_ready(state: StackState | None) -> str:
    missing = [part.name for part in state.parts if part.name not in state.ready] if state else []
    return ", ".join(missing) or "anything"


def _tick(checklist: Checklist, state: StackState) -> None:
    for part in state.parts:
        checklist.report(part.name, part.name in state.ready)


def _wait_gone(state: StackState, layout: Layout) -> bool:
    deadline = time.monotonic() + _STOP_PATIENCE.total_seconds()
    pids = [state.pid, *(part.pid for part in state.parts)]
    while time.monotonic() < deadline:
        if not is_owned(layout) and not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(_POLL)
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
