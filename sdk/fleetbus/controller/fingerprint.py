"""Which code a controller runs: what was proved by other code is not proved for this one."""

from __future__ import annotations

import hashlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import name_of


def fingerprint(controller: Controller) -> str:
    """Of the files in which the author's functions stand; the same in every process that has them.

    Modules that these files import are not looked at.
    """
    parts = sorted({_source_of(function) for function in controller.functions()})
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _source_of(function: Callable[..., object]) -> bytes:
    shown: object = inspect.unwrap(function)
    kinds: tuple[Any, Any] = (shown, type(shown))
    for each in kinds:
        try:
            file = inspect.getsourcefile(each)
        except TypeError:
            continue  # an object that is called, or something built in
        if file and (path := pathlib.Path(file)).is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest().encode()
    return name_of(function).encode()
