"""Commands inside the process of the tests: a process of their own takes half a second to import.

Call them from plain functions, because they run an event loop. That a command ends alike in a
process of its own is shown once for each kind.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import typer.main

from fleetbus_cli.app import app
from support.logs import reset_logs

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def given_back() -> Generator[None]:
    """Restore what a command changes in its process: signal handlers, logs, GC thresholds."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        reset_logs()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def status_of(main: Callable[..., Any], *arguments: Any) -> int:
    """The exit status of a command, however it gives it."""
    with given_back():
        try:
            status = main(*arguments)
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int | None), status
    return status or 0


@cache
def _command_line() -> Any:
    """All commands of `fleetbus`; building them takes longer than running most of them."""
    return typer.main.get_command(app)


def fleetbus(*argv: str) -> int:
    """The exit status of a command of `fleetbus`; raises what `main` would print as an error."""
    return int(_command_line().main(list(argv), standalone_mode=False) or 0)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line printed on standard error; fails on more lines or a traceback."""
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert printed.count("\n") == 1, printed
    return printed
