"""Frees large blocks between which small ones stay; prints how many MB the process kept.

python tests/run.py scripts.freed_memory [fixed]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fleetbus_watcher.main import return_large_blocks


def resident_mb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def main() -> None:
    # A freed block teaches glibc to take the next ones from the heap, where the pins hold them.
    first = [b"x" * 3_000_000]
    first.clear()
    before = resident_mb()
    blocks: list[bytes] = []
    pins: list[bytes] = []
    for _ in range(20):
        blocks.append(b"x" * 2_700_000)
        pins.append(b"x" * 60_000)
    blocks.clear()
    print(resident_mb() - before)


if __name__ == "__main__":
    if sys.argv[1:] == ["fixed"]:
        return_large_blocks()
    main()
