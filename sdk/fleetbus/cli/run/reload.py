"""`fleetbus run` with reload: a process that watches the files, and one that runs the controllers.

A change stops the second one gracefully and starts another: what user code keeps in its modules,
threads included, cannot be taken back inside a process, and one whose loop is blocked could not
even begin to. Between the two is a pair of sockets: the child names its files, and learns from the
end of the line that its parent is gone.
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

_LINE: Final = "FLEETBUS_RUN_LINE"
_LOOK_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 20.0
"""Running reconciles have ten of them to finish, and some to hand back what is left."""
_CONFIG_ERROR: Final = 2
_HUNG: Final = 70
_SIGNALLED: Final = 128


# --- the child ------------------------------------------------------------------------------------


def is_child() -> bool:
    """Whether this process runs the controllers for a parent that watches."""
    return _LINE in os.environ


class Line:
    """The child's end of the line to its parent."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._socket = socket.socket(fileno=int(os.environ.pop(_LINE)))
        # Of files that change within a second the old bytecode would be taken for new.
        sys.dont_write_bytecode = True

    def tell(self, files: Iterable[str], *, is_loaded: bool) -> None:
        """Name the files whose change asks for another process, as they were when loaded."""
        named = {pathlib.Path(file) for file in files}
        held = [
            # What was written while we loaded may be newer than what we have.
            [path, written_ns if written_ns < self._began_ns else 0, size, inode]
            for path, written_ns, size, inode in signature_of(lambda: named)
        ]
        told = {"files": sorted(str(file) for file in named), "held": held, "loaded": is_loaded}
        with contextlib.suppress(OSError):  # the parent is gone, which `parent_left` tells
            self._socket.sendall(json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        """Give the line up."""
        self._socket.close()

    async def parent_left(self) -> None:
        """Return when there is no parent any more."""
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        with contextlib.suppress(ConnectionError):
            await loop.sock_recv(self._socket, 1)


# --- the parent -----------------------------------------------------------------------------------


@dataclass
class _Child:
    """The process that runs the controllers."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    heard: bytes = b""
    seen: Seen | None = None
    """What it has loaded, when it has just told."""
    is_loaded: bool = False

    def listen(self) -> None:
        """Take in what the child has told."""
        try:
            while part := self.line.recv(1 << 16):
                self.heard += part
        except BlockingIOError:
            pass
        *lines, self.heard = self.heard.split(b"\n")
        for line in lines:
            told = json.loads(line)
            held: list[tuple[str, int, int, int]] = [(p, t, s, i) for p, t, s, i in told["held"]]
            self.seen = Seen([pathlib.Path(name) for name in told["files"]], tuple(held))
            self.is_loaded = told["loaded"]

    def end(self) -> int:
        """Stop it gracefully, in the end by force; answers its exit status."""
        self.process.terminate()
        try:
            status = self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its leases keep others away from what it worked on until they have run out.
            _say(f"it does not stop within {_STOP_SECONDS:.0f} s and is killed")
            self.process.kill()
            status = self.process.wait()
        self.line.close()
        return status


class Reloader:
    """Starts the child anew after each change of a file that it has named.

    Args:
        command: the program and its arguments.
        modules: what the user named, to be watched before the child has told more.
    """

    def __init__(self, command: Sequence[str], modules: Sequence[str]) -> None:
        self._command = list(command)
        self._seen = Seen([pathlib.Path(name) for name in modules if name.endswith(".py")])
        self._told_to_stop = 0
        self._has_loaded = False

    def run(self) -> int:
        """Go on until told to stop, or until the child ends for a reason of its own.

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
        self._told_to_stop += 1
        if self._told_to_stop > 1:
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
                continue  # something changed
            if self._told_to_stop:
                return _after_stop(status)
            if status == _HUNG and time.monotonic() - started > 1:
                _say("a reconcile function never returned; its process ended and starts again")
                continue
            if status != _CONFIG_ERROR or not self._has_loaded:
                return status if status >= 0 else _SIGNALLED - status
            _say("nothing runs until that is mended; waiting for a change")
            self._wait_for_change()
            if self._told_to_stop:
                return 0

    def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        environment = os.environ | {_LINE: str(theirs.fileno())}
        process = subprocess.Popen(self._command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.setblocking(False)
        return _Child(process, ours)

    def _watch(self, child: _Child) -> int | None:
        """Until something changed (None), or the child has ended, by itself or told to."""
        self._seen = self._seen.again()
        while (status := child.process.poll()) is None:
            self._hear(child)
            if self._told_to_stop:
                return child.end()
            if changed := self._seen.changed():
                _say(f"{changed} changed: the running reconciles end, then it starts again")
                child.end()
                return None
            time.sleep(_LOOK_SECONDS)
        self._hear(child)
        child.line.close()
        return status

    def _hear(self, child: _Child) -> None:
        child.listen()
        if child.seen:
            self._seen, child.seen = child.seen, None
            self._has_loaded |= child.is_loaded

    def _wait_for_change(self) -> None:
        while not self._told_to_stop and not self._seen.changed():
            time.sleep(_LOOK_SECONDS)


def _after_stop(status: int) -> int:
    """The exit status when somebody has told us to stop, from that of the child."""
    # Ctrl-C reaches the child from its terminal and from us: one of the two may come so late, or so
    # early, that it minds no signals, and it ends by what was meant to end it.
    if status in (-signal.SIGINT, -signal.SIGTERM):
        return 0
    return status if status >= 0 else _SIGNALLED - status


class Seen:
    """Files as they were.

    Args:
        files: which.
        held: how they were; by default as they are now.
    """

    def __init__(self, files: Sequence[pathlib.Path], held: Signature | None = None) -> None:
        self._files = files
        self._at_first = self._before = self._now() if held is None else held

    def again(self) -> Seen:
        """The same files as they are now."""
        return Seen(self._files)

    def changed(self) -> str:
        """The name of a file that has changed and rests again, since the last look; else empty.

        An editor may write a file in several steps, or put another in its place.
        """
        before, self._before = self._before, self._now()
        if self._before != before or before == self._at_first:
            return ""
        different = set(before) ^ set(self._at_first)
        return pathlib.Path(min(different)[0]).name

    def _now(self) -> Signature:
        return signature_of(lambda: self._files)


def _say(text: str) -> None:
    print(f"fleetbus run: {text}", file=sys.stderr, flush=True)
