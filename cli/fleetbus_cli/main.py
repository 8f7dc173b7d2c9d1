"""The console script `fleetbus`.

Importing the commands takes half a second; they are imported inside `main` so that Ctrl-C during
that time prints no traceback.
"""

from __future__ import annotations

import sys

from fleetbus.process import printer

INTERRUPTED = 130


def main() -> None:
    """Run the command line; exit silently with status 130 on Ctrl-C."""
    sys.excepthook = printer.print_traceback
    try:
        from fleetbus_cli.app import run_command_line  # noqa: PLC0415 - see above

        run_command_line()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
