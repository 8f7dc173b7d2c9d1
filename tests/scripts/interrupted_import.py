"""The command line with Ctrl-C in the moment in which it imports the module of the argument."""

from __future__ import annotations

import os
import signal
import sys


class CtrlC:
    """Finds no module, but says by a signal that one is looked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name:
            os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.meta_path.insert(0, CtrlC(sys.argv[1]))
    sys.argv = ["fleetbus", "dev", "status", "--dir", "/nonexistent"]
    from fleetbus_cli.main import main

    main()
