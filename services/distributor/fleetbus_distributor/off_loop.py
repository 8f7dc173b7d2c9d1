"""Keeps long computations off the event loop, which all rounds of a process share (rule D15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sized
from typing import Final, ParamSpec, TypeVar

_SMALL: Final = 500
"""Objects on all clusters together that take a few milliseconds: a thread costs as much."""

P = ParamSpec("P")
R = TypeVar("R")


async def off_loop(
    share: Mapping[str, Sized], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Compute something about the objects of all clusters, in a thread if there are many.

    Args:
        share: cluster → its objects.
        function: computes without I/O, and changes nothing that others read.
        args: its arguments.
        kwargs: likewise.
    """
    if sum(map(len, share.values())) <= _SMALL:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
