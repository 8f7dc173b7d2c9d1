"""Waits for problems that somebody has to fix: credentials, servers, configuration.

It is not ready meanwhile and says why, tries again after pauses that grow, and goes on by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from fleetbus.process.log_once import LogOnce
from fleetbus.process.pauses import pause_of

if TYPE_CHECKING:
    from fleetbus.process.health import Health

T = TypeVar("T")

log = structlog.get_logger()

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_LONGEST_PAUSE: Final = timedelta(seconds=5)


async def wait_until_usable(
    name: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    health: Health,
    failures: type[Exception] | tuple[type[Exception], ...],
) -> T:
    """Repeat an attempt until it succeeds; return its result.

    Args:
        name: of the readiness check that fails meanwhile, such as `redis`.
        attempt: what is tried.
        health: of the process.
        failures: the errors that may pass, if only because a person mends something; their text
            becomes that of the readiness check. Any other error is raised.
    """
    trouble = "not checked yet"
    health.ready_when(name, lambda: trouble)
    log_once = LogOnce()
    attempts = 0
    while True:
        try:
            result = await attempt()
        except failures as e:
            trouble = str(e) or type(e).__name__
            if log_once.should_log(trouble):
                log.warning("waiting_until_usable", what=name, error=trouble)
        else:
            trouble = ""
            return result
        attempts += 1
        await pause_after(attempts)


async def pause_after(failures: int) -> None:
    """Sleep after so many failures in a row: from a quarter of a second up to 5 s, with jitter."""
    pause = pause_of(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
    await asyncio.sleep(pause.total_seconds() * random.uniform(0.5, 1))  # noqa: S311 -- no secret
