"""Requests whose answers last: they count while they are opened, not while they are open.

A watch lasts for an hour and costs little; it must not use up what its user may have in progress.
The number of open watches has limits of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from starlette.types import Scope

_KEY: Final = "fleetbus.release"


def release_with(scope: Scope, release: Callable[[], None]) -> None:
    """Let `release` be called as soon as the answer of a request is known to last."""
    scope.setdefault(_KEY, []).append(release)


def release_capacity(scope: Scope) -> None:
    """Release what a request has used up, and log it; its answer lasts."""
    for release in cast("list[Callable[[], None]]", scope.pop(_KEY, [])):
        release()
