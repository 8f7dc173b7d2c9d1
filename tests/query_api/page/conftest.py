"""A browser for the tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes.chromium import Page, chromium, open_page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path


@pytest.fixture(scope="session")
def browser(servers_folder: Path) -> Generator[str]:
    """The shared browser."""
    with chromium(servers_folder / "chromium") as address:
        yield address


@pytest.fixture
async def page(browser: str) -> AsyncGenerator[Page]:
    """The only tab of a browser; at the end, nothing in it may have failed."""
    async with open_page(browser) as page:
        yield page
        assert page.errors == []
