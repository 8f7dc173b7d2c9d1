"""Reads the running processes and their states from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs; a zombie does not."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """The letter of a process's state, like `S` for one that sleeps; "" for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]


def seconds_denied(*pids: int) -> float:
    """Return how long this thread, and the first of each process, was ready and did not run.

    A limit in seconds says nothing of what the machine gave to others. 0 where no kernel tells.
    """
    threads = [Path("/proc/thread-self"), *(Path(f"/proc/{pid}") for pid in pids)]
    try:
        return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9
    except OSError:
        return 0.0


def running_children() -> list[str]:
    """The command lines of the processes that this one has started and that still run."""
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [
        _command_of(process)
        for process in processes
        if _parent_of(process) == os.getpid() and is_alive(int(process.name))
    ]


def processes_of(folder: Path) -> dict[int, str]:
    """Process id and command line of all whose environment or command names a folder."""
    named = str(folder).encode()
    processes: dict[int, str] = {}
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            content = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if named in content and is_alive(int(process.name)):
            processes[int(process.name)] = _command_of(process)
    return processes


def _parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text().replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "(ended)"
