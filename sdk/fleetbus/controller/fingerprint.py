"""Identifies the code of a controller, and what it selects.

What other code has reconciled has to run again; and processes that select other events may not
acknowledge for each other (rule B12).
"""

from __future__ import annotations

import hashlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import name_of


def fingerprint(controller: Controller) -> str:
    """A hash of the files that define the controller's functions, the same in every process.

    Modules that these files import are not included.
    """
    parts = sorted({_source_of(function) for function in controller.functions()})
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def selection_digest(controller: Controller) -> str:
    """A hash of all that decides which events wake the controller, the same in every process."""
    watches = controller.watches
    parts = sorted(f"{watch.declaration}|{watch.wake_on_leave}" for watch in watches)
    if any(watch.predicate or watch.map or watch.clusters.function for watch in watches):
        parts.append(fingerprint(controller))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _source_of(function: Callable[..., object]) -> bytes:
    unwrapped: object = inspect.unwrap(function)
    kinds: tuple[Any, Any] = (unwrapped, type(unwrapped))
    for each in kinds:
        try:
            file = inspect.getsourcefile(each)
        except TypeError:
            continue  # a callable object, or a built-in
        if file and (path := pathlib.Path(file)).is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest().encode()
    return name_of(function).encode()
