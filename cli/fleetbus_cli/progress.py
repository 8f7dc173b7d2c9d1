"""Shows on stderr that something takes longer than a second, if a person is looking."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from fleetbus.process import printer

_AFTER_SECONDS: Final = 1.0
_EVERY_SECONDS: Final = 0.2


class Progress:
    """A line on stderr that is erased at the end; nothing where stderr is not a terminal.

    Args:
        activity: is going on: `reading pods`.
    """

    def __init__(self, activity: str) -> None:
        self._what = activity
        self._is_on = printer.is_watched()
        self._shown_at = time.monotonic() + _AFTER_SECONDS - _EVERY_SECONDS
        self._is_shown = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_AFTER_SECONDS, self.show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._is_on:
            self._timer.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.clear()

    def show(self, state: str = "") -> None:
        """Show how far it is, if it has taken so long; often called, seldom written."""
        with self._lock:
            now = time.monotonic()
            if not self._is_on or now - self._shown_at < _EVERY_SECONDS:
                return
            self._shown_at, self._is_shown = now, True
            printer.status(f"{self._what} …{f' {state}' if state else ''}")

    def clear(self) -> None:
        """Erase the line; nothing is shown from now on."""
        self._timer.cancel()
        with self._lock:
            if self._is_shown:
                printer.clear_status()
            self._is_on = self._is_shown = False
