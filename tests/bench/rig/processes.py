"""The processes of a benchmark, and what they take."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

_SHOWN: Final = 2_000
"""Bytes of the log of a process that failed."""


@asynccontextmanager
async def process(
    command: Sequence[str], **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process until the block ends; its output is a pipe.

    The last lines of its log are shown if it fails by itself.
    """
    with tempfile.TemporaryFile() as log:
        child = await asyncio.create_subprocess_exec(
            *command, env=os.environ | environment, stderr=log, stdout=asyncio.subprocess.PIPE
        )
        try:
            yield child
        finally:
            if child.returncode is None:
                child.terminate()
            elif child.returncode:
                log.seek(0)
                sys.stderr.buffer.write(log.read()[-_SHOWN:])
            await child.communicate()  # nothing of its pipe is left open


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, to the nanosecond where the kernel counts them."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except FileNotFoundError:  # a thread has ended meanwhile
        return cpu_seconds(pid)
    if threads and all(threads):
        return sum(int(thread.split()[0]) for thread in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wake_ups(pid: int) -> int:
    """Return how often a process waited for something and was woken, all its threads together."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)
        count += int(switches[1]) if switches else 0
    return count


def rss_mb(pid: int | str = "self") -> float:
    """Resident memory of a process."""
    return _status_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """The most resident memory since the process began, or since `forget_peak`."""
    return _status_mb(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """Let the kernel measure the peak of a process anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_mb(pid: int | str, name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0
