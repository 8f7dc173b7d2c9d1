"""Counts the calls of functions: a measure of work that no load of the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager


class Calls:
    """Counts the calls of Python and C functions: a measure of work that no load changes."""

    count = 0


@contextmanager
def counted_calls() -> Generator[Calls]:
    calls = Calls()

    def count(_frame: object, event: str, _argument: object) -> None:
        calls.count += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
