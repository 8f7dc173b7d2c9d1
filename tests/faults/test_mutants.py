"""Every mutation still takes a rule away: what it patches exists, and is different afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from faults.distributors.mutants import DISTRIBUTOR_MUTATIONS
from faults.queries.mutants import QUERY_MUTATIONS
from faults.watchers.mutants import MUTATIONS
from faults.workers.mutants import ROLLOUT_MUTATIONS, WORKER_MUTATIONS
from fleetbus.workqueue import scripts

Attribute = tuple[object, str]
_PACKAGES = (
    "fleetbus",
    "fleetbus_agent",
    "fleetbus_distributor",
    "fleetbus_proto",
    "fleetbus_query_api",
    "fleetbus_watcher",
)
_ALL = (
    MUTATIONS
    | WORKER_MUTATIONS
    | ROLLOUT_MUTATIONS
    | {name: mutation.apply for name, mutation in DISTRIBUTOR_MUTATIONS.items()}
    | {name: mutation.apply for name, mutation in QUERY_MUTATIONS.items()}
)


def attributes() -> dict[Attribute, Any]:
    """All of the modules of ours that are imported, and of their classes."""
    modules = [
        module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES
    ]
    owners: list[type | ModuleType] = [*modules]
    for module in modules:
        owners += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
    return {(owner, name): value for owner in owners for name, value in vars(owner).items()}


@pytest.fixture(scope="module")
def before() -> dict[Attribute, Any]:
    """The attributes that every test finds, and leaves."""
    return attributes()


@pytest.fixture
def changed(before: dict[Attribute, Any]) -> Generator[Callable[[], list[Attribute]]]:
    """Which attributes are other ones than before the test; after it they are as they were."""

    def look() -> list[Attribute]:
        return [key for key, value in attributes().items() if before.get(key, look) is not value]

    yield look
    for owner, name in look():
        if (owner, name) in before:
            setattr(owner, name, before[owner, name])
        else:
            delattr(owner, name)


@pytest.mark.parametrize("name", [*_ALL])
def test_v6_a_mutation_replaces_what_is_there(
    name: str, before: dict[Attribute, Any], changed: Callable[[], list[Attribute]]
):
    _ALL[name]()
    attributes = changed()
    assert attributes, "it changes nothing"
    assert [key for key in attributes if key not in before] == [], "it adds what nobody calls"


@pytest.mark.parametrize("name", ["no-fence-check", "done-drops-dirty"])
def test_v6_a_mutation_of_lua_finds_the_text_that_it_changes(
    name: str, changed: Callable[[], list[Attribute]]
):
    folder = Path(str(scripts.__file__)).parent
    names = [path.stem for path in folder.glob("lua/*.lua")]
    before = {script: scripts.load(script).text for script in names}
    WORKER_MUTATIONS[name]()
    assert changed()
    after = {script: scripts.load(script).text for script in names}
    assert {script for script in names if before[script] != after[script]}
