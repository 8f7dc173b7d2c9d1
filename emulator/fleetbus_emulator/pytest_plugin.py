"""The pytest plugin: `fleet`, `cluster` and `fault`, emulated clusters for one test.

    @pytest.mark.fleet(["alpha", "beta"], workloads=False)
    def test_something(fleet, fault): ...

Pytest loads this module wherever the emulator is installed, so it imports nothing heavy until a
test asks for a fixture.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fleetbus_emulator.apiserver import Action, Rule
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet

_MARKER = (
    "fleet(clusters=3, **options): the emulated clusters of the `fleet` fixture, as a number or a "
    "list of names; the options are those of fleetbus_emulator.fleet.emulated_fleet"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Generator[EmulatedFleet]:
    """Emulated clusters, three unless the marker `fleet` says otherwise; empty for each test."""
    from fleetbus_emulator.fleet import emulated_fleet  # noqa: PLC0415 - see above

    marker = request.node.get_closest_marker("fleet")
    args: tuple[Any, ...] = marker.args if marker else ()
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    with contextlib.ExitStack() as exits:
        try:
            emulated = exits.enter_context(emulated_fleet(*args, **options))
        except (TypeError, ValueError) as e:  # an invalid option
            pytest.fail(f"@pytest.mark.fleet: {e}", pytrace=False)
        yield emulated


@pytest.fixture
def cluster(fleet: EmulatedFleet) -> EmulatedCluster:
    """The first cluster of the fleet."""
    return fleet.clusters[0]


@pytest.fixture
def fault(fleet: EmulatedFleet) -> Callable[..., Rule]:
    """Make a cluster misbehave until the test ends: `fault("eu1", Fail(503), verb="list")`."""

    def add(name: str, action: Action, **match: Any) -> Rule:
        return fleet[name].add_fault(action, **match)

    return add
