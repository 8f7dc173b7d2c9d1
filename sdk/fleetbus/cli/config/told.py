"""Tells on stderr which fleet answers: with `-v` always, else only if nobody may expect it."""

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
class _Teller:
    is_verbose: bool
    told: set[str] = field(default_factory=set[str])

    def tell(self, line: str) -> None:
        """Print a line once: a command resolves its addresses more than once."""
        if line not in self.told:
            self.told.add(line)
            printer.note(f"fleetbus: {line}")


_teller: ContextVar[_Teller | None] = ContextVar("teller", default=None)
"""None outside of the command `fleetbus`."""


def begin_telling(*, verbose: bool) -> None:
    """Tell from now on where addresses are from; all of them if `verbose` is set."""
    _teller.set(_Teller(verbose))


def tell_origins(origins: Mapping[str, str]) -> None:
    """With `-v`, tell where addresses are from, by their names."""
    teller = _teller.get()
    if teller is None or not teller.is_verbose:
        return
    for name, what in _ADDRESSES.items():
        teller.tell(f"address of {what}: {origins.get(name, 'not set')}")


def tell_old_file(path: str) -> None:
    """Tell that the query API's address is from the file of the former tool.

    It is written at the first use, and outlives the fleet of that day.

    Args:
        path: of the file; empty if the address is from elsewhere.
    """
    teller = _teller.get()
    if teller is not None and path:
        teller.tell(
            f"the address of the query API is from {path};"
            " `fleetbus config view` shows what else there is"
        )
