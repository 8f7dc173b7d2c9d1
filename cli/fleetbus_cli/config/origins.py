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
    program: str
    is_verbose: bool
    printed: set[str] = field(default_factory=set[str])

    def add(self, line: str) -> None:
        """Print a line once: a command resolves its addresses more than once."""
        if line not in self.printed:
            self.printed.add(line)
            printer.note(f"{self.program}: {line}")


_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)
"""None outside of a command, and while a shell completes one."""


def note_origins(*, program: str = "fleetbus", verbose: bool = False) -> None:
    """Print from now on where addresses are from; all of them if `verbose` is set."""
    _notes.set(_Notes(program, verbose))


def print_origins(origins: Mapping[str, str]) -> None:
    """With `-v`, print where addresses are from, by their names."""
    notes = _notes.get()
    if notes is None or not notes.is_verbose:
        return
    for name, server in _ADDRESSES.items():
        notes.add(f"address of {server}: {origins.get(name, 'not set')}")


def print_home_file(path: str, subject: str = "the address of the fleet") -> None:
    """Print, once, that a file in the home directory decides which fleet answers.

    It may be from the fleet of another day. With `-v` all origins were printed before.

    Args:
        path: of the file; empty if something else decides.
        subject: what is from there.
    """
    notes = _notes.get()
    if notes is not None and path and not notes.is_verbose:
        notes.add(f"{subject} is from {path}; `fleetbus config view` shows all sources")


def print_other_fleet() -> None:
    """Print, once, that the environment decides, and that a dev fleet with other addresses runs.

    A shell keeps what `fleetbus dev env` printed for a fleet that has been started anew.
    """
    if (notes := _notes.get()) is not None:
        notes.add(
            "the environment names another fleet than the dev fleet that runs here;"
            ' `eval "$(fleetbus dev env)"` sets it to that'
        )
