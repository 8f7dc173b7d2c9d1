"""Restarts the process of `fleetbus run` when a file changes.

The parent watches the files, the child runs the controllers. A change stops the child gracefully
and starts another: module state and threads of user code cannot be undone inside a process, and a
child whose event loop is blocked could not even try. A socket pair connects the two: the child
reports its files, and sees from the end of the stream that its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from fleetbus.clusters.providers.file_watch import Signature, signature_of
from fleetbus.process import printer
from fleetbus_cli.target import DEV_STATE

_PIPE: Final = "FLEETBUS_RUN_PIPE"
_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 20.0
"""Ten seconds for running reconciles to finish, the rest to release the leases."""
_CONFIG_ERROR: Final = 2
_BLOCKED: Final = 70
_SIGNALED: Final = 128


# --- the child ------------------------------------------------------------------------------------


def is_child() -> bool:
    """Whether a parent process watches the files for this one."""
    return _PIPE in os.environ


class ParentPipe:
    """The child's end of the socket pair."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._socket = socket.socket(fileno=int(os.environ.pop(_PIPE)))
        # Bytecode has timestamps in seconds: of a file that changes twice in one it would be stale.
        sys.dont_write_bytecode = True

    def report(self, files: Iterable[str], *, is_loaded: bool) -> None:
        """Report the files whose change needs a restart, as they were when loaded."""
        named = {pathlib.Path(file) for file in files}
        signature = [
            # A file written during the import may be newer than what was imported.
            [path, written_ns if written_ns < self._began_ns else 0, size, inode]
            for path, written_ns, size, inode in signature_of(lambda: named)
        ]
        paths = sorted(str(file) for file in named)
        report = {"files": paths, "signature": signature, "loaded": is_loaded}
        with contextlib.suppress(OSError):  # the parent is gone; see `wait_parent_gone`
            self._socket.sendall(json.dumps(report).encode() + b"\n")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    async def wait_parent_gone(self) -> None:
        """Return once the parent is gone."""
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        with contextlib.suppress(ConnectionError):
            await loop.sock_recv(self._socket, 1)


# --- the parent -----------------------------------------------------------------------------------


@dataclass
class _Child:
    """The process that runs the controllers."""

    process: subprocess.Popen[bytes]
    pipe: socket.socket
    buffer: bytes = b""
    reported: FileWatch | None = None
    """The files of its last report, until the parent has taken it."""
    is_loaded: bool = False

    def read_reports(self) -> None:
        """Read what the child has reported."""
        try:
            while chunk := self.pipe.recv(1 << 16):
                self.buffer += chunk
        except BlockingIOError:
            pass
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            report = json.loads(line)
            signature: Signature = tuple((p, t, s, i) for p, t, s, i in report["signature"])
            self.reported = FileWatch([pathlib.Path(name) for name in report["files"]], signature)
            self.is_loaded = report["loaded"]

    def stop(self) -> int:
        """Terminate it, kill it after a timeout; return its exit status."""
        self.process.terminate()
        try:
            status = self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its items stay leased until the leases expire.
            _say(f"not stopped after {_STOP_SECONDS:.0f} s; killed")
            self.process.kill()
            status = self.process.wait()
        self.pipe.close()
        return status


class Reloader:
    """Restarts the child after each change of a file that it has reported.

    Args:
        command: the program and its arguments.
        modules: the arguments of the user, watched until the child has reported its files.
    """

    def __init__(self, command: Sequence[str], modules: Sequence[str]) -> None:
        self._command = list(command)
        self._files = FileWatch([pathlib.Path(name) for name in modules if name.endswith(".py")])
        self._stop_signals = 0
        self._has_loaded = False

    def run(self) -> int:
        """Run until a signal, or until the child exits by itself.

        Returns:
            The exit status.
        """
        before = {n: signal.signal(n, self._stop) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signals += 1
        if self._stop_signals > 1:
            raise KeyboardInterrupt(number)

    def _run(self) -> int:
        while True:
            started = time.monotonic()
            child = self._start()
            try:
                status = self._watch(child)
            except BaseException:
                child.process.kill()
                child.process.wait()
                raise
            if status is None:
                continue  # a file changed
            if self._stop_signals:
                return _after_stop(status)
            if status == _BLOCKED and time.monotonic() - started > 1:
                _say("a reconcile function never returned; its process exited, restarting")
                continue
            if status != _CONFIG_ERROR or not self._has_loaded:
                return status if status >= 0 else _SIGNALED - status
            _say("not running; waiting for a change of the files")
            self._wait_for_change()
            if self._stop_signals:
                return 0

    def _start(self) -> _Child:
        parent_end, child_end = socket.socketpair()
        environment = os.environ | {_PIPE: str(child_end.fileno())}
        process = subprocess.Popen(self._command, env=environment, pass_fds=[child_end.fileno()])
        child_end.close()
        parent_end.setblocking(False)
        return _Child(process, parent_end)

    def _watch(self, child: _Child) -> int | None:
        """Return None when a file changed, or the exit status once the child has exited."""
        self._files = self._files.renewed()
        while (status := child.process.poll()) is None:
            self._read_reports(child)
            if self._stop_signals:
                return child.stop()
            if changed := self._files.changed():
                trigger = "the dev fleet" if changed == DEV_STATE else changed
                _say(f"{trigger} changed: restarting once the running reconciles have finished")
                child.stop()
                return None
            time.sleep(_POLL_SECONDS)
        self._read_reports(child)
        child.pipe.close()
        return status

    def _read_reports(self, child: _Child) -> None:
        child.read_reports()
        if child.reported:
            self._files, child.reported = child.reported, None
            self._has_loaded |= child.is_loaded

    def _wait_for_change(self) -> None:
        while not self._stop_signals and not self._files.changed():
            time.sleep(_POLL_SECONDS)


def _after_stop(status: int) -> int:
    """Return the exit status after a signal, from that of the child."""
    # Ctrl-C reaches the child twice, from the terminal and from us. One of the two may arrive while
    # it has no handler, at the start or the end, and kill it.
    if status in (-signal.SIGINT, -signal.SIGTERM):
        return 0
    return status if status >= 0 else _SIGNALED - status


class FileWatch:
    """Detects changes of files.

    Args:
        files: the files.
        signature: how they were at first; by default as they are now.
    """

    def __init__(self, files: Sequence[pathlib.Path], signature: Signature | None = None) -> None:
        self._files = files
        self._at_first = self._before = self._now() if signature is None else signature

    def renewed(self) -> FileWatch:
        """Watch the same files from their present state."""
        return FileWatch(self._files)

    def changed(self) -> str:
        """Return the name of a changed file once it is stable between two polls; else empty.

        An editor may write a file in several steps, or replace it.
        """
        before, self._before = self._before, self._now()
        if self._before != before or before == self._at_first:
            return ""
        different = set(before) ^ set(self._at_first)
        return pathlib.Path(min(different)[0]).name

    def _now(self) -> Signature:
        return signature_of(lambda: self._files)


def _say(text: str) -> None:
    printer.note(f"fleetbus run: {text}")
