"""`fleetbus new`: creates a project with a controller, its test and a pyproject.toml."""

from __future__ import annotations

import json
import pathlib
import sys
from importlib import resources
from typing import Annotated, Final

import typer

import fleetbus
from fleetbus.errors import ConfigError
from fleetbus.process import printer

_PROJECT: Final = "pyproject.toml"
_FILES: Final = ("controller.py", "test_controller.py", _PROJECT)
_PLACEHOLDER: Final = "my-project"
"""The project name in the files of `new_project`, which are themselves a working project."""


def new(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the folder, the project and its controller, like my-operator."
        ),
    ],
) -> None:
    """Create a project: a controller, its test, a pyproject.toml."""
    _check_name(name)
    folder = pathlib.Path(name)
    template = resources.files("fleetbus.cli") / "new_project"
    try:
        folder.mkdir()
        for file in _FILES:
            text = (template / file).read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
            text += _sources() if file == _PROJECT else ""
            (folder / file).write_text(text, encoding="utf-8")
    except FileExistsError as e:
        raise ConfigError(f"{name} already exists; nothing was changed") from e
    except OSError as e:
        raise ConfigError(f"cannot create {name}: {e.strerror}") from e
    printer.block(f"created {', '.join(f'{name}/{file}' for file in _FILES)}\n")
    printer.block(f"`source {sys.prefix}/bin/activate` puts pytest and fleetbus on the PATH\n")
    printer.block(f"next:\n  cd {name}")
    printer.line("  python -m pytest              runs the test, on emulated clusters")
    printer.line("  fleetbus dev up               starts a fleet on this machine")
    printer.line("  fleetbus run controller.py    runs the controller; restarts it when you save")


def _sources() -> str:
    """Name the clone as the source of fleetbus, which is not on PyPI; empty outside a clone."""
    clone = pathlib.Path(fleetbus.__file__).parents[2]
    if not (clone / "devfleet" / _PROJECT).is_file():
        return ""
    return (
        "\n# fleetbus is not on PyPI yet: uv takes it from this clone.\n[tool.uv.sources]\n"
        f"fleetbus = {{ path = {json.dumps(str(clone / 'sdk'))}, editable = true }}\n"
        f"fleetbus-devfleet = {{ path = {json.dumps(str(clone / 'devfleet'))}, editable = true }}\n"
    )


def _check_name(name: str) -> None:
    from fleetbus.bus.durables import RESERVED_NAMES  # noqa: PLC0415 -- import cost
    from fleetbus.controller.controller import Controller  # noqa: PLC0415 -- import cost

    Controller(name)
    if name in RESERVED_NAMES or name == "fleetbus":
        raise ConfigError(f"the name {name!r} is reserved; choose another one")
