"""The option that writes the golden vectors anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write proto/golden anew; look at the difference before you commit it",
    )


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether the vectors are to be written; the option is unknown unless tests/proto was named."""
    return bool(request.config.getoption("--update-golden", default=False))
