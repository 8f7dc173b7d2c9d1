"""Run a module of the tests by its dotted name.

    python tests/run.py bench relist                a folder stands for its `main`
    python tests/run.py faults.watchers --cut

It finds other modules as pytest does: by their place below tests, like `support.rigs.fleet`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def main(name: str, *arguments: str) -> None:
    """Become the process of that module."""
    module = f"{name}.main" if TESTS.joinpath(*name.split(".")).is_dir() else name
    command = [sys.executable, "-P", "-m", module, *arguments]
    # All clusters of these programs are on this machine.
    environment = {"FLEETBUS_ALLOW_LOOPBACK": "1"} | os.environ | {"PYTHONPATH": str(TESTS)}
    os.execve(sys.executable, command, environment)  # noqa: S606 -- no shell


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
