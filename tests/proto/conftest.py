"""The option that writes the golden vectors anew, and patience for a busy machine."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing here: the cores are shared with servers and other runs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


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
