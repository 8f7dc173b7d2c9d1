"""Run a module of the tests by its dotted name.

    python tests/run.py bench relist                a folder stands for its `main`
    python tests/run.py faults.watchers --cut

It finds the other modules as pytest does: by their place in tests, those of tests/support by name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def main(name: str, *arguments: str) -> None:
    """Become the process of that module."""
    module = f"{name}.main" if TESTS.joinpath(*name.split(".")).is_dir() else name
    path = os.pathsep.join([str(TESTS), str(TESTS / "support")])
    command = [sys.executable, "-P", "-m", module, *arguments]
    # All clusters of these programs are on this machine.
    environment = {"FLEETBUS_ALLOW_LOOPBACK": "1"} | os.environ | {"PYTHONPATH": path}
    os.execve(sys.executable, command, environment)  # noqa: S606 -- no shell


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
