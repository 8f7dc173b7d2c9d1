"""Says on stderr which fleet answers: with `-v` always, else only if nobody may expect it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from fleetbus.process import printer

_ADDRESSES: Final = {
    "api_url": "the query API",
    "nats_url": "NATS",
    "redis_url": "the store",
}


@dataclass(slots=True)
class _Notes:
    is_verbose: bool
    printed: set[str] = field(default_factory=set[str])

    def add(self, line: str) -> None:
        """Print a line once: a command resolves its addresses more than once."""
        if line not in self.printed:
            self.printed.add(line)
            printer.note(f"fleetbus: {line}")


_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)
"""None outside of the command `fleetbus`."""


def note_origins(*, verbose: bool) -> None:
    """Print from now on where addresses are from; all of them if `verbose` is set."""
    _notes.set(_Notes(verbose))


def print_origins(origins: Mapping[str, str]) -> None:
    """With `-v`, print where addresses are from, by their names."""
    notes = _notes.get()
    if notes is None or not notes.is_verbose:
        return
    for name, what in _ADDRESSES.items():
        notes.add(f"address of {what}: {origins.get(name, 'not set')}")


def print_old_file(path: str) -> None:
    """Print that the query API's address is from the file of the former tool.

    It is written at the first use, and outlives the fleet of that day.

    Args:
        path: of the file; empty if the address is from elsewhere.
    """
    notes = _notes.get()
    if notes is not None and path:
        notes.add(
            f"the address of the query API is from {path};"
            " `fleetbus config view` shows what else there is"
        )
