"""The fixtures of tests and examples; they are defined in tests/support."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from support.full import FULL, UI, examples
from support.logs import reset_logs
from support.rigs.fleet_fixtures import has_agents, open_rig
from support.servers.fixtures import (
    is_installed,
    nats,
    nats_process,
    nats_url,
    no_leaked_tasks,
    no_leaks,
    redis,
    servers_folder,
    store,
    store_processes,
    valkey_process,
    valkey_url,
)
from support.servers.real_cluster import REAL

__all__ = [
    "has_agents",
    "nats",
    "nats_process",
    "nats_url",
    "no_leaked_tasks",
    "no_leaks",
    "open_rig",
    "redis",
    "servers_folder",
    "store",
    "store_processes",
    "valkey_process",
    "valkey_url",
]


# How long an example takes says nothing: the cores are shared with servers and other runs.
settings.register_profile(
    "patient",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# The typed models of kubernetes_asyncio cost two seconds; no test of this process needs them.
os.environ.setdefault("FLEETBUS_LIGHT_KUBE", "1")
# All emulated clusters are on this machine, as a development fleet is.
os.environ.setdefault("FLEETBUS_ALLOW_LOOPBACK", "1")


@pytest.fixture(autouse=True)
def logs_as_configured_by_default() -> Generator[None]:
    """Undo what a command of a test set up for the logs of its process, this one."""
    yield
    reset_logs()


def pytest_configure() -> None:
    """Let SIGTERM end the run like Ctrl-C: fixtures are torn down, no server survives.

    A shell lets what it starts in the background ignore SIGINT, and the processes of tests would
    inherit that.
    """
    reset_logs()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Four processes for two cores: half of a run is waiting for real servers."""
    return min(2 * (os.cpu_count() or 1), 4)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked `stores` on each of them; what is for Redis alone is skipped without."""
    marker = metafunc.definition.get_closest_marker("stores")
    if marker is not None and "valkey_process" in metafunc.fixturenames:
        found = [name for name in marker.args if is_installed(name)]
        metafunc.parametrize("valkey_process", found or marker.args, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before what `-m` selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is for `make scenarios`, or does not touch the clusters that somebody named.

    All tests of tests/scenarios have a longer form, and those of properties more examples; those of
    examples are scenarios in short.
    """
    for item in items:
        is_scenario = {"scenarios", "examples"} & {parent.name for parent in item.path.parents[:2]}
        if is_scenario or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("longer")
        if not FULL and item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="takes long: `make scenarios` runs it"))
        if not (FULL or UI) and item.get_closest_marker("ui"):
            item.add_marker(pytest.mark.skip(reason="takes long: `make test-ui` runs it"))
    for item in items if REAL else ():
        is_ours = item.path.parent.name == "conformance"  # they decide by themselves
        if not is_ours and "open_rig" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="starts emulated clusters of its own"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Set aside what is alive after a test: thousands of tests need not look at it again.

    Not before: the fixtures, and all that hangs on them, would be set aside for ever.
    """
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage be looked for while thousands of modules and tests come, and none goes.

    What they made is set aside then, so that the collection after each test takes no time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
