"""The logs of the process that runs the tests."""

from __future__ import annotations

import structlog


def reset_logs() -> None:
    """Let structlog print plain lines, as before a command set it up for its own process.

    Its defaults show the values of all variables beside a traceback, in colours, which takes a
    tenth of a second each time that a service survives an error.
    """
    structlog.reset_defaults()
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[*processors[:-1], renderer])
