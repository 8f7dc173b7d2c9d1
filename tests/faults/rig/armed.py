"""The point at which a process of a campaign kills or stops itself on demand.

Product code has no such points: a campaign wraps the methods around them, in its own process.
SIGUSR1 arms a process: it dies at the point that its file names when it next gets there, or, with
`STOP` before the name, stands still there until it gets SIGCONT.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Final

STOP: Final = "stop "


class Armed:
    """The point at which this process is to die, if any.

    Args:
        path: the file that names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._point = ""

    def listen(self) -> None:
        signal.signal(signal.SIGUSR1, self._read)

    def reach(self, point: str) -> None:
        """Die here, if armed for it."""
        if self._point == point:
            die()

    def is_at(self, point: str) -> bool:
        return self._point == point

    def _read(self, _number: int, _frame: FrameType | None) -> None:
        self._point = self._path.read_text().strip()


def stand_still() -> None:
    """As if the machine gave this process no time, until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    """As a crash would: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
