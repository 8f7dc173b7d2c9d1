"""The ways to an API server: what a client promises holds over each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rigs.agents import WAYS, Connect, connect_by


@pytest.fixture(params=WAYS)
def connect(request: pytest.FixtureRequest, nats_url: str, tmp_path: Path) -> Connect:
    """Make a client over one of the ways."""
    return connect_by(request.param, nats_url, tmp_path)
