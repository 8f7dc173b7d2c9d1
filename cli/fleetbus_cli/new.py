"""`fleetbus new`: creates a project with a controller, its test and a pyproject.toml."""

from __future__ import annotations

import pathlib
import sys
from importlib import resources
from typing import Annotated, Final

import typer

from fleetbus.bus.durable_names import RESERVED_NAMES
from fleetbus.errors import ConfigError
from fleetbus.process import printer

_FILES: Final = ("controller.py", "test_controller.py", "pyproject.toml")
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
    template = resources.files("fleetbus_cli") / "new_project"
    try:
        folder.mkdir()
        for file in _FILES:
            text = (template / file).read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
            (folder / file).write_text(text, encoding="utf-8")
    except FileExistsError as e:
        raise ConfigError(f"{name} already exists; nothing was changed") from e
    except OSError as e:
        raise ConfigError(f"cannot create {name}: {e.strerror}") from e
    printer.line(f"created {', '.join(f'{name}/{file}' for file in _FILES)}")
    printer.line()
    printer.line(f"`source {sys.prefix}/bin/activate` puts fleetbus on the PATH")
    printer.line(
        "`python -m pip install -e '.[test]'` installs the project with pytest, in any environment"
    )
    printer.line("  that has fleetbus, or with `--find-links` of a folder with its wheels")
    printer.line()
    printer.line("next:")
    printer.line(f"  cd {name}")
    printer.line("  python -m pytest              runs the test, on emulated clusters")
    printer.line("  fleetbus dev up               starts a fleet on this machine")
    printer.line("  fleetbus run controller.py    runs the controller; restarts it when you save")
    printer.line("and, in another terminal, something to greet:")
    printer.line('  eval "$(fleetbus dev env)"')
    printer.line("  kubectl --context eu1 create configmap motd")
    printer.line("  kubectl --context eu1 label configmap motd greet=yes")
    printer.line("  kubectl --context eu1 get configmap motd -o jsonpath='{.metadata.annotations}'")


def _check_name(name: str) -> None:
    from fleetbus.controller.controller import Controller  # noqa: PLC0415 -- import cost

    Controller(name)
    if name in RESERVED_NAMES or name == "fleetbus":
        raise ConfigError(f"the name {name!r} is reserved; choose another one")
