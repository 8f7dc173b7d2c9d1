"""A browser for the tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes.chromium import Page, chromium_page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.fixture
async def page(tmp_path: Path) -> AsyncGenerator[Page]:
    """The only tab of a browser; at the end, nothing in it may have failed."""
    async with chromium_page(tmp_path) as found:
        yield found
        assert found.errors == []
