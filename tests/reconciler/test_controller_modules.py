"""A module that cannot be used is reported, and the controllers of the others go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus_reconciler.main import load_usable

GOOD = """
import fleetbus
good = fleetbus.Controller("{name}")
good.watch("v1/pods")
@good.reconcile
async def reconcile(request, fleet): ...
"""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(text)
    return str(path)


def test_a_module_that_cannot_be_used_keeps_no_other_from_work(tmp_path: Path) -> None:
    path = write(tmp_path, "one", GOOD.format(name="one"))
    modules = [
        write(tmp_path, "broken", "raise RuntimeError('password=S3CRET')"),
        path,
        write(tmp_path, "copy", GOOD.format(name="one")),
        write(tmp_path, "half", "import fleetbus\nhalf = fleetbus.Controller('half')\n"),
        write(tmp_path, "two", GOOD.format(name="two")),
        os.path.relpath(path),
    ]
    health = Health()
    with capture_logs() as lines:
        hosted = load_usable(modules, [], health)
    assert [controller.name for controller in hosted] == ["one", "two"]
    errors = {Path(str(line["module"])).stem: str(line["error"]) for line in lines}
    assert errors.keys() == {"broken", "copy", "half"}
    assert "cannot be imported: RuntimeError: password=***" in errors["broken"]
    assert errors["copy"].startswith(f"two controllers are named one: {path}:")
    assert f" and {modules[2]}:" in errors["copy"]
    assert not health.is_ready


def test_without_any_usable_module_the_process_ends_with_the_first_problem(tmp_path: Path) -> None:
    modules = [write(tmp_path, "empty", ""), str(tmp_path / "nowhere.py")]
    with pytest.raises(ConfigError, match="defines no fleetbus"):
        load_usable(modules, [], Health())
    health = Health()
    assert load_usable([], [], health) == []
    assert health.is_ready
