"""The acceptance scenarios in their variants: small, and in `make scenarios` wide, too."""

from __future__ import annotations

import pytest

from support.full import FULL
from support.rigs.fleet_fixtures import WIDE

_NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 17, 18, 20)
_SCENARIOS = (*(f"test_t{number:02}_" for number in _NUMBERS), "test_distribution_")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One process of each service, then three reconcilers and two watchers of each cluster."""
    if not FULL or "open_rig" not in metafunc.fixturenames:
        return
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    is_scenario = metafunc.definition.path.name.startswith(_SCENARIOS)
    if is_scenario and "open_rig" not in chosen:
        metafunc.parametrize("open_rig", ["small", WIDE], indirect=True)
