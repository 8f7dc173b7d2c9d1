"""Runs a command and prints its peak memory in KiB: a small process starts it.

    python -m bench.programs.peak_memory COMMAND [ARGUMENT ...]

The figure of a command that a large process starts includes what that one had before.
"""

from __future__ import annotations

import os
import subprocess
import sys


def main(command: list[str]) -> int:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    print(used.ru_maxrss)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
