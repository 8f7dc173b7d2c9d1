"""Runs a command and prints the most memory that it had, in KiB; ends with its status.

python tests/bench/programs/peak_memory.py COMMAND...

It imports nothing of ours: the figure would include what this process had before.
"""

from __future__ import annotations

import os
import subprocess
import sys


def main(command: list[str]) -> int:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    print(used.ru_maxrss)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
