"""The console script `fleetbus`: nothing but the way to the commands.

Their imports take half a second, in which somebody may well press Ctrl-C.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interrupted one ends silently, with the status of an interrupt."""
    try:
        from fleetbus.cli.app import run_command_line  # noqa: PLC0415 - see above

        run_command_line()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
