"""Objects that other code has reconciled are reconciled again (rule P8)."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType

import pytest

from fleetbus.controller.fingerprint import fingerprint

CODE = """
import fleetbus

controller = fleetbus.Controller("copier")
controller.watch("v1/pods", predicate=lambda old, new: True)

@controller.reconcile
{kind} reconcile(request, fleet):
    return None  # {word}

children = fleetbus.Children("family", parents="v1/pods", children="v1/pods")

@children.desired
async def desired(parent, cluster, fleet):
    return []
"""


def load(path: pathlib.Path, code: str) -> ModuleType:
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("tried", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("name", ["controller", "children"])
def test_p8_it_changes_with_the_file_of_the_authors_functions_and_with_nothing_else(
    tmp_path: pathlib.Path, kind: str, name: str
) -> None:
    path = tmp_path / "tried.py"
    first, again, changed = (
        fingerprint(getattr(load(path, CODE.format(kind=kind, word=word)), name))
        for word in ("one", "one", "two")
    )
    assert first == again
    assert first != changed
