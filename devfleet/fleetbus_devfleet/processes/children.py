"""Child processes that never outlive us.

Three layers guard that, because each alone has a hole:

1. every child is stopped by whoever started it (a context manager's exit);
2. on Linux the kernel kills a child when we die, however we die (`PR_SET_PDEATHSIG`);
3. each child leads a session of its own, so that Ctrl-C in a terminal reaches us first and the
   children end in the order we choose.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus_devfleet.processes.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_HAS_PDEATHSIG = sys.platform == "linux"
_POLL = 0.005
_LOG_TAIL_LINES = 12
_STOP_PATIENCE = timedelta(seconds=5)
_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_TIMES = slice(11, 13)
_NANOSECONDS = 1_000_000_000
"""In a second."""
"""utime and stime, of the fields after the name."""
# Loaded before any fork: the code between fork and exec must not import or open anything.
_LIBC = ctypes.CDLL(None)


class ChildError(Exception):
    """A child did not start, or ended when it should run; the message has its last words."""


class Child:
    """One child process with its log file.

    Args:
        name: what messages call it.
        command: the program and its arguments.
        log: the file that takes its standard output and error; appended to.
        env: its whole environment; ours when absent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(word) for word in command]
        self._env = None if env is None else dict(env)
        self.process = _spawn(self._command, log=log, env=self._env)

    @property
    def pid(self) -> int:
        """The process id of the running, or last, process."""
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def raise_if_ended(self) -> None:
        """Raise ChildError with the last lines of the log when the process has ended."""
        status = self.exit_status
        if status is not None:
            raise ChildError(
                f"{self.name} ended with {_describe_status(status)}; "
                f"its log {self.log} ends with:\n{self.last_words()}"
            )

    def progress(self) -> int:
        """A sign of progress: the seconds for which the process has worked, or waited for a CPU.

        A process that waits for anything else, or fails again and again, needs minutes for one. On
        a loaded machine one that is ready to work may get no CPU for long: that is no standstill.
        0 where the kernel does not tell.
        """
        folder = Path(f"/proc/{self.pid}")
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            return 0
        try:
            schedule = (folder / "schedstat").read_text()
        except OSError:  # a kernel without this account
            schedule = ""
        return seconds_of(stat, schedule)

    def last_words(self) -> str:
        """The last lines of its log, for a message."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (nothing)"

    async def wait_until(self, is_ready: Callable[[], bool], *, within: timedelta) -> None:
        """Wait until `is_ready` says so.

        Raises:
            ChildError: the process ended first, or shows no progress for so long (see `progress`).
        """
        # In a thread, because `is_ready` may open a socket; the thread sees the end of the process,
        # so it never outlasts a cancelled caller that stops its child.
        await asyncio.to_thread(self.wait_until_blocking, is_ready, within=within)

    def wait_until_blocking(self, is_ready: Callable[[], bool], *, within: timedelta) -> None:
        """The same as `wait_until`, for code without an event loop."""
        patience = Patience(within)
        while not is_ready():
            self.raise_if_ended()
            if patience.is_over(self.progress()):
                raise ChildError(
                    f"{self.name} is not ready: {patience.waited}; "
                    f"its log {self.log} ends with:\n{self.last_words()}"
                )
            time.sleep(_POLL)

    def kill(self) -> None:
        """End it at once with SIGKILL, as a crash would, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to end with SIGTERM; `stop_blocking` or `stop` waits for it."""
        if self.is_running:
            self.process.terminate()

    def stop_blocking(self, *, patience: timedelta = _STOP_PATIENCE) -> None:
        """SIGTERM, then SIGKILL when the patience is over; returns when it is reaped."""
        end_process(self.process, patience=patience)

    async def stop(self, *, patience: timedelta = _STOP_PATIENCE) -> None:
        """The same as `stop_blocking`, without holding the event loop."""
        await asyncio.to_thread(self.stop_blocking, patience=patience)

    def respawn(self, command: Sequence[str | Path] | None = None) -> None:
        """Start it again, with another command line if one is given, after it has ended."""
        if self.is_running:
            raise ChildError(f"{self.name} still runs as process {self.pid}")
        if command is not None:
            self._command = [str(word) for word in command]
        self.process = _spawn(self._command, log=self.log, env=self._env)


def seconds_of(stat: str, schedule: str) -> int:
    """The seconds for which a process has worked, or waited for a CPU.

    Args:
        stat: its /proc/PID/stat.
        schedule: its /proc/PID/schedstat, or nothing.
    """
    # After the name, in parentheses, which may hold anything.
    user, system = stat.rpartition(")")[2].split()[_CPU_TIMES]
    worked = (int(user) + int(system)) / _TICKS
    _, waited, *_ = [*schedule.split(), "0", "0"]
    return int(worked + int(waited) / _NANOSECONDS)


def end_process(process: subprocess.Popen[bytes], *, patience: timedelta) -> None:
    """SIGTERM, then SIGKILL when the patience is over; returns when it is reaped."""
    process.terminate()  # does nothing to one that has ended
    try:
        process.wait(patience.total_seconds())
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def stop_children(*groups: Sequence[Child]) -> None:
    """Stop the children, one group after the other; when cancelled meanwhile, all at once."""
    try:
        for group in groups:
            for child in group:
                child.terminate()
            for child in group:
                await child.stop()
    finally:
        for group in groups:
            for child in group:
                child.kill()


def _spawn(
    command: Sequence[str], *, log: Path, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    # The kernel sends the parent-death signal when the *thread* that forked ends, so a worker
    # thread would take the child with it.
    if threading.current_thread() is not threading.main_thread():
        raise ChildError("child processes are started from the main thread only")
    parent = os.getpid()

    def die_with_parent() -> None:
        if _HAS_PDEATHSIG:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died between our fork and the line above
                os._exit(1)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink, warnings.catch_warnings():
        # Since 3.12 Python warns of any code between fork and exec while other threads run;
        # ours is two system calls.
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )


def _describe_status(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
