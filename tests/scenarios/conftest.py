"""The acceptance scenarios in their variants: small, and in `make scenarios` wide, too."""

from __future__ import annotations

import pytest

from support.full import FULL
from support.rigs.fleet_fixtures import WIDE

_NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 17, 18, 20)
_SCENARIOS = (*(f"test_t{number:02}_" for number in _NUMBERS), "test_distribution_")

_DIRECT = tuple(
    f"test_{name}_" for name in ("t08", "t09", "t12", "t13", "t21", "t22", "w11", "w19")
)
"""They are about access data, the pool of watchers, or a share of time, and write to no member."""


@pytest.fixture
def has_agents(request: pytest.FixtureRequest) -> bool:
    """Whether every second member is behind an agent; the scenarios themselves do not know."""
    return not request.path.name.startswith(_DIRECT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One process of each service, then three reconcilers and two watchers of each cluster."""
    if not FULL or "open_rig" not in metafunc.fixturenames:
        return
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    is_scenario = metafunc.definition.path.name.startswith(_SCENARIOS)
    if is_scenario and "open_rig" not in chosen:
        metafunc.parametrize("open_rig", ["small", WIDE], indirect=True)
