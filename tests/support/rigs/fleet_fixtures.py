"""The fixture of tests that need a whole fleet; conftests import it."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from fleetbus_reconciler.timing import ReconcilerTiming
from support.rigs.fleet import Rig, fleet_rig

WIDE = "wide"
ONE_OF_EACH = pytest.mark.parametrize("open_rig", ["small"], indirect=True)
"""For scenarios that say themselves how many processes there are."""


_EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


@pytest.fixture
def has_agents(request: pytest.FixtureRequest) -> bool:
    """Whether some clusters of a fleet are behind agents: of examples, and of most scenarios."""
    return request.path.is_relative_to(_EXAMPLES)


@pytest.fixture
async def open_rig(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    nats_url: str,
    valkey_url: str,
    *,
    has_agents: bool,
) -> AsyncGenerator[Callable[..., Any]]:
    """Call it with the names of clusters; everything is stopped at the end of the test."""
    is_wide: bool = getattr(request, "param", "") == WIDE
    async with AsyncExitStack() as stack:

        async def open_one(*names: str, **options: Any) -> Rig:
            return await stack.enter_async_context(
                fleet_rig(
                    *names,
                    folder=tmp_path,
                    nats_url=nats_url,
                    valkey_url=valkey_url,
                    is_wide=is_wide,
                    has_agents=has_agents,
                    **options,
                )
            )

        yield open_one


def with_quick_checks(open_rig: Callable[..., Awaitable[Rig]]) -> Callable[..., Awaitable[Rig]]:
    """The same, with a projector that looks at store and bus five times a second."""

    async def open_quick(*names: str, **options: Any) -> Rig:
        rig = await open_rig(*names, **options)
        rig.reconciler_timing = ReconcilerTiming(
            checks=timedelta(milliseconds=200), quiet_durables=timedelta(milliseconds=200)
        )
        return rig

    return open_quick
