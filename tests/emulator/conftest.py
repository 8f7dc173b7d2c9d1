"""Fixtures for the tests of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from emulator.support.fault_rig import FaultRig, fault_rig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.fixture
async def faulty() -> AsyncGenerator[FaultRig]:
    """A served cluster `alpha` and a client of it."""
    async with fault_rig() as rig:
        yield rig
